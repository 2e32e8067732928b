package control

import (
	"errors"
	"fmt"

	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/kernel"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/settings"
	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// PreSave asks every TPU runtime of the sandbox to let go of its TPU. On an error
// nothing is left detached that could be brought back, and the error says how each
// one ended; otherwise the record is in the kernel's checkpoint state.
func (p *Plane) PreSave(k *kernel.Kernel) error {
	if !p.tpuMayBeOpen(k) {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if recordPending(k) {
		// Saved while paused, and not resumed since: they are still detached, and
		// what is owed to them is in the kernel's state, which is saved again.
		log.Infof("tpu: the runtimes are still detached from the checkpoint before")
		return nil
	}
	if err := p.checkpoint(k); err != nil {
		return fmt.Errorf("tpu: %w", err)
	}
	return nil
}

func (p *Plane) checkpoint(k *kernel.Kernel) error {
	s, err := p.survey(k)
	if err != nil {
		return err
	}
	defer s.release()
	if len(s.members) == 0 {
		return nil
	}
	p.memory = orNew(p.memory)
	p.memory.recall(s.runtimes)
	defer func() { p.memory.keep(s.runtimes) }()
	if err := preconditions(s.members); err != nil {
		return err
	}
	if err := p.pause.begin(k); err != nil {
		return err
	}
	defer p.pause.end(k)

	err = p.detach(k, s)
	if err == nil {
		err = lookAgain(k, s)
	}
	if err == nil {
		err = p.keepRecord(k, s.members)
	}
	if err != nil {
		return join(err, p.undo(k, s.members))
	}
	return nil
}

// A survey is who was found before anything was sent.
type survey struct {
	holders  []*process
	runtimes []*runtime
	members  []*member
}

func (s *survey) release() { release(s.runtimes) }

// survey finds the holders and the runtimes, and refuses what cannot be
// checkpointed.
func (p *Plane) survey(k *kernel.Kernel) (*survey, error) {
	s := &survey{holders: findHolders(k)}
	if len(s.holders) == 0 {
		return s, nil
	}
	var err error
	if s.runtimes, err = findRuntimes(k, s.holders); err != nil {
		return nil, err
	}
	var errs []error
	metricRuntimes.Set(uint64(len(s.runtimes)))
	left := unmanaged(s.holders, s.runtimes)
	metricUnmanaged.Set(uint64(len(left)))
	for _, holder := range left {
		errs = append(errs, refuseUnmanaged(k, holder))
	}
	for _, r := range s.runtimes {
		set, err := settingsOf(k, r.process.container)
		if err != nil {
			errs = append(errs, r.fail(err))
			continue
		}
		m := &member{runtime: r, settings: set, notes: p.note}
		if p.leased != nil && p.leased(r.channel.responsePipe) {
			m.found = controlpb.RuntimeState_STATE_LOCKED
		}
		s.members = append(s.members, m)
	}
	if err := join(errs...); err != nil {
		s.release()
		return nil, err
	}
	return s, nil
}

func refuseUnmanaged(k *kernel.Kernel, holder *process) error {
	set, err := settingsOf(k, holder.container)
	if err != nil {
		return holder.fail(err)
	}
	err = noRuntime(holder)
	if !set.AllowUnmanaged {
		return err
	}
	log.Warningf("tpu: %v; its TPU will be lost to the restored sandbox, as annotation %sunmanaged allows", err, settings.Prefix)
	return nil
}

// preconditions drops old answers, and refuses channels that cannot be used.
func preconditions(members []*member) error {
	var errs []error
	for _, m := range members {
		dropped, err := m.channel.drain()
		m.warnDropped(dropped)
		if err != nil {
			errs = append(errs, m.fail(err))
		}
	}
	return join(errs...)
}

// detach runs the handshake's rounds. Members that were found detached leave the
// exchange: they are left as they were found.
func (p *Plane) detach(k *kernel.Kernel, s *survey) error {
	c := startClock()
	var lock []*member
	for _, m := range s.members {
		if m.settings.Handshake == settings.HandshakeLock {
			lock = append(lock, m)
		}
	}
	if err := p.step(k, c, actGetState, lock); err != nil {
		return err
	}
	if err := classify(lock); err != nil {
		return err
	}
	var free []*member
	for _, m := range lock {
		if m.found == controlpb.RuntimeState_STATE_RUNNING {
			free = append(free, m)
		}
	}
	if err := p.step(k, c, actLock, free); err != nil {
		return err
	}
	var there []*member
	for _, m := range s.members {
		if m.found != controlpb.RuntimeState_STATE_DETACHED {
			there = append(there, m)
		}
	}
	return p.step(k, c, actCheckpoint, there)
}

// step is a round that every member has to pass. A checkpoint that nobody wants any
// more ends between two steps: a runtime would not stop in the middle of one.
func (p *Plane) step(k *kernel.Kernel, c clock, action controlpb.ControlAction, members []*member) error {
	_, errs := failed(members, p.round(k, c, action, members))
	if len(errs) == 0 && p.canceled.Load() {
		return ErrCanceled
	}
	return join(errs...)
}

// classify notes in which state each member was found.
func classify(members []*member) error {
	var errs []error
	for _, m := range members {
		m.found = m.state
		switch m.state {
		case controlpb.RuntimeState_STATE_UNSPECIFIED:
			m.found = controlpb.RuntimeState_STATE_RUNNING
		case controlpb.RuntimeState_STATE_RUNNING, controlpb.RuntimeState_STATE_LOCKED, controlpb.RuntimeState_STATE_DETACHED:
		default:
			failure := m.fail(fmt.Errorf("%w: it is %s and cannot be checkpointed", ErrWrongState, tpuwire.StateName(m.state)))
			failure.Action = actGetState
			errs = append(errs, failure)
		}
	}
	return join(errs...)
}

// lookAgain looks once more after the last answer: whoever has opened a TPU since,
// or has gone, spoils the checkpoint.
func lookAgain(k *kernel.Kernel, s *survey) error {
	before := map[any]bool{}
	for _, holder := range s.holders {
		for file := range holder.tpus {
			before[file] = true
		}
	}
	known := map[any]*process{}
	for _, r := range s.runtimes {
		known[r.process.group] = r.process
	}
	var errs []error
	for _, m := range s.members {
		if m.exited() {
			m.standing = lost
			errs = append(errs, m.fail(fmt.Errorf("%w after it had answered", ErrExited)))
		}
	}
	for _, holder := range findHolders(k) {
		opened := false
		for file := range holder.tpus {
			opened = opened || !before[file]
		}
		switch {
		case opened:
			errs = append(errs, holder.fail(ErrReopened))
		case known[holder.group] != nil:
			log.Warningf("tpu: %v", holder.fail(errors.New("still holds a TPU open, though it answered that it has let go")))
		}
	}
	return join(errs...)
}

func orNew(m memory) memory {
	if m == nil {
		return memory{}
	}
	return m
}
