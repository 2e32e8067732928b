package control

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/pipe"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/api"
	"tpuvisor.dev/tpuvisor/pkg/sentry/control/settings"
	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

var (
	errPaused   = errors.New("the sandbox is paused, so that its runtimes cannot answer; resume it first")
	errDetached = errors.New("the runtimes have let go of their TPUs for a checkpoint; resume the sandbox first")
	errNotHeld  = errors.New("the runtimes are not locked")
)

// who is the runtime in the words of package api.
func (r *runtime) who() api.Runtime {
	return api.Runtime{
		Container: r.process.container, PID: r.process.pid, TID: r.tid,
		Command: validText(r.process.command),
	}
}

func sortedRuntimes(all []api.Runtime) []api.Runtime {
	slices.SortFunc(all, func(a, b api.Runtime) int { return cmp.Compare(a.TID, b.TID) })
	return all
}

// together finds the runtimes with find and calls f with them, which may ask them
// anything but to let go of their TPUs or to take them back.
func (p *Plane) together(k *kernel.Kernel, find func(*kernel.Kernel) (*survey, error), f func(s *survey) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case k.IsPaused():
		return errPaused
	case recordPending(k):
		return errDetached
	}
	s, err := find(k)
	if err != nil {
		return err
	}
	defer s.release()
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
	return f(s)
}

// whoever finds the runtimes there are, whatever else holds a TPU.
func (p *Plane) whoever(k *kernel.Kernel) (*survey, error) {
	s := &survey{holders: findHolders(k)}
	var err error
	if s.runtimes, err = findRuntimes(k, s.holders); err != nil {
		return nil, err
	}
	for _, r := range s.runtimes {
		s.members = append(s.members, &member{runtime: r, settings: settings.Default(), notes: p.note})
	}
	return s, nil
}

// states asks each runtime for its state, and returns what each answered. The error
// is that none could be asked.
func (p *Plane) states(k *kernel.Kernel, limit time.Duration) ([]api.RuntimeState, error) {
	var all []api.RuntimeState
	err := p.together(k, p.whoever, func(s *survey) error {
		took := make([]time.Duration, len(s.members))
		for i, m := range s.members {
			m.settings.CheckpointLimit = limit
			m.notes = func(m *member, a controlpb.ControlAction, r result, elapsed time.Duration, err error) {
				took[i] = elapsed
				p.note(m, a, r, elapsed, err)
			}
		}
		errs := p.round(k, startClock(), actGetState, s.members)
		for i, m := range s.members {
			state := api.RuntimeState{Runtime: m.who(), Topology: topologyOf(m.active), Elapsed: took[i], Error: oneLine(errs[i])}
			if m.state != controlpb.RuntimeState_STATE_UNSPECIFIED {
				state.State = tpuwire.StateName(m.state)
			}
			all = append(all, state)
		}
		return nil
	})
	return all, err
}

// A lockedRuntime is one that holds a lock, and what tells it from others.
type lockedRuntime struct {
	who      api.Runtime
	response *pipe.Pipe
}

// lockAll locks those that the lease does not hold yet, and returns all. If any of
// them fails, those that were locked now are unlocked again.
func (p *Plane) lockAll(k *kernel.Kernel) ([]lockedRuntime, error) {
	var all []lockedRuntime
	err := p.together(k, p.survey, func(s *survey) error {
		var free []*member
		for _, m := range s.members {
			if m.found != controlpb.RuntimeState_STATE_LOCKED {
				free = append(free, m)
			}
			all = append(all, lockedRuntime{who: m.who(), response: m.channel.responsePipe})
		}
		_, errs := failed(free, p.round(k, startClock(), actLock, free))
		if err := join(errs...); err != nil {
			return join(err, p.undo(k, free))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// unlockAll unlocks those that the lease holds.
func (p *Plane) unlockAll(k *kernel.Kernel) error {
	return p.together(k, p.survey, func(s *survey) error {
		var held []*member
		for _, m := range s.members {
			if m.found == controlpb.RuntimeState_STATE_LOCKED {
				m.standing, m.found = locked, controlpb.RuntimeState_STATE_RUNNING
				held = append(held, m)
			}
		}
		if len(held) == 0 {
			return errNotHeld
		}
		_, errs := failed(held, p.round(k, startClock(), actUnlock, held))
		return join(errs...)
	})
}
