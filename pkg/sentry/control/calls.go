package control

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"gvisor.dev/gvisor/pkg/sentry/kernel"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/api"
	"tpuvisor.dev/tpuvisor/pkg/sentry/savehook"
)

// Calls makes the desk answer the operations of package api: handle is
// savehook.Handle.
func (d *Desk) Calls(handle func(op string, h savehook.Handler)) {
	handle(api.OpWatch, answer(d.watch))
	handle(api.OpStatus, answer(func(*kernel.Kernel, struct{}) (api.Status, error) { return d.status(), nil }))
	handle(api.OpTrace, answer(func(*kernel.Kernel, struct{}) (api.Trace, error) { return d.trace(), nil }))
	handle(api.OpPS, answer(func(k *kernel.Kernel, _ struct{}) ([]api.Process, error) { return d.processes(k) }))
	handle(api.OpState, answer(d.states))
	handle(api.OpWait, answer(d.wait))
	handle(api.OpSettle, answer(d.settle))
	handle(api.OpAnswered, answer(d.answered))
	handle(api.OpCancel, answer(func(_ *kernel.Kernel, args api.Cancel) (api.Canceled, error) { return d.cancel(args), nil }))
	handle(api.OpGate, answer(d.shutGate))
	handle(api.OpOpen, answer(func(k *kernel.Kernel, args api.Gated) (struct{}, error) {
		d.openGate(k, args)
		return struct{}{}, nil
	}))
	handle(api.OpLock, answer(d.lock))
	handle(api.OpUnlock, answer(func(k *kernel.Kernel, _ struct{}) (api.Locked, error) { return d.unlock(k) }))
}

// answer makes a Handler of a function with typed arguments; those that are left
// out are zero.
func answer[Args, Result any](f func(*kernel.Kernel, Args) (Result, error)) savehook.Handler {
	return func(k *kernel.Kernel, data json.RawMessage) (any, error) {
		var args Args
		if len(data) > 0 {
			if err := json.Unmarshal(data, &args); err != nil {
				return nil, fmt.Errorf("the call's arguments: %w", err)
			}
		}
		return f(k, args)
	}
}

func (d *Desk) watch(k *kernel.Kernel, args api.Watch) (api.Events, error) {
	d.mu.Lock()
	l := &d.log
	if args.Begin {
		defer d.mu.Unlock()
		l.watched = time.Now()
		return api.Events{Now: time.Now(), Sequence: l.sequence}, nil
	}
	l.watchers++
	l.seen = max(l.seen, min(args.After, l.sequence))
	d.wake() // the end of the save may wait for it
	d.mu.Unlock()
	d.await(k, api.WaitTime, func() bool { return l.sequence > args.After })
	d.mu.Lock()
	defer d.mu.Unlock()
	l.watchers--
	l.watched, l.told = time.Now(), l.sequence
	d.wake() // the end of the sandbox may wait for it
	return api.Events{Events: l.after(args.After), Now: time.Now(), Sequence: l.sequence}, nil
}

// checkpointAfter finds a checkpoint that is under way or over, with a larger ID. d.mu is
// held.
func (d *Desk) checkpointAfter(id uint64) *operation {
	for _, op := range append(slices.Clone(d.past), d.current) {
		if op != nil && op.ID > id && op.Kind == api.KindCheckpoint {
			return op
		}
	}
	return nil
}

// askTime is how long it is waited for a checkpoint to begin. A command that has given
// up leaves its connection behind for so long.
const askTime = time.Second

// answered waits for the runtimes' answers to a checkpoint. It gives up only while
// there is none, so that whoever asks again misses nothing.
func (d *Desk) answered(k *kernel.Kernel, _ struct{}) (op api.Operation, err error) {
	d.mu.Lock()
	d.log.askers++
	over := d.lastID
	if d.current != nil {
		over = d.current.ID - 1
	}
	d.mu.Unlock()
	var seen *operation
	done := func() bool {
		if seen == nil {
			seen = d.checkpointAfter(over)
		}
		if seen == nil || seen.phase() == api.PhaseDetach && seen.End.IsZero() {
			return false
		}
		op = seen.clone(true)
		return true
	}
	for !d.await(k, askTime, done) && seen != nil && !k.TaskSet().IsExiting() {
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log.askers--
	d.wake()
	return op, nil
}

func (d *Desk) status() api.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := api.Status{Now: time.Now(), Lease: d.lease.describe(), Sequence: d.log.sequence}
	if d.current != nil {
		op := d.current.clone(false)
		s.Current = &op
	}
	for _, op := range slices.Backward(d.past) {
		s.Last = append(s.Last, op.clone(false))
	}
	return s
}

func (d *Desk) trace() api.Trace {
	d.mu.Lock()
	defer d.mu.Unlock()
	var t api.Trace
	if d.current != nil {
		t.Operations = append(t.Operations, d.current.clone(true))
	}
	for _, op := range slices.Backward(d.past) {
		t.Operations = append(t.Operations, op.clone(true))
	}
	return t
}

// stateLimit is how long a runtime may take to say its state, if nobody says else.
const stateLimit = 5 * time.Second

func (d *Desk) states(k *kernel.Kernel, args api.StateArgs) ([]api.RuntimeState, error) {
	limit := args.Limit
	switch {
	case limit == 0:
		limit = stateLimit
	case limit < time.Second || limit > time.Minute: // a checkpoint waits meanwhile
		return nil, fmt.Errorf("the limit is %v; allowed is 1s to 1m", limit)
	}
	op, err := d.tryBegin(api.KindState, api.PhaseAsk)
	if err != nil {
		return nil, err
	}
	states, err := d.plane.states(k, limit)
	failed := err
	for _, s := range states {
		if s.Error != "" && failed == nil {
			failed = fmt.Errorf("%s", s.Error)
		}
	}
	d.end(op, failed)
	return states, err
}

// wait returns when the TPUs are back, or are known not to come back, or after a
// while.
func (d *Desk) wait(k *kernel.Kernel, args api.Wait) (api.Outcome, error) {
	d.reads(1)
	defer d.reads(-1)
	end := time.Now().Add(api.WaitTime)
	for {
		o, sequence := d.outcome(args.After)
		if o.Done && o.Error == "" && d.plane.mayBePending(k) {
			o = api.Outcome{Waiting: "a resume of the sandbox", Paused: k.IsPaused()}
		}
		left := time.Until(end)
		if o.Done || left <= 0 || k.TaskSet().IsExiting() {
			return o, nil
		}
		d.await(k, left, func() bool { return d.log.sequence > sequence })
	}
}

// reads notes the beginning or the end of a call that waits for an outcome.
func (d *Desk) reads(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.readers += n
	if n < 0 {
		d.read++
		d.wake()
	}
}

// outcome is that of the last operation after one that gives TPUs back.
func (d *Desk) outcome(after uint64) (o api.Outcome, sequence uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if op := d.current; op != nil && op.givesBack() {
		return api.Outcome{Waiting: fmt.Sprintf("a %s, phase %s", op.Kind, op.phase())}, d.log.sequence
	}
	for _, op := range slices.Backward(d.past) {
		if op.ID > after && op.givesBack() {
			if op.Kind != api.KindCheckpoint || op.lost() {
				o.Error = op.Error
			}
			break
		}
	}
	o.Done = true
	return o, d.log.sequence
}

// givesBack reports whether the TPUs are back at the operation's end, if all is well.
func (op *operation) givesBack() bool {
	switch op.Kind {
	case api.KindCheckpoint, api.KindResume, api.KindRestore:
		return true
	}
	return false
}

// lost reports whether a runtime has not taken back its TPU.
func (op *operation) lost() bool {
	return slices.ContainsFunc(op.Steps, func(s api.Step) bool {
		return (s.Action == "RESTORE" || s.Action == "UNLOCK") && s.Result != acked.String()
	})
}

// settle returns when no checkpoint is under way any more, or after a while.
func (d *Desk) settle(k *kernel.Kernel, _ struct{}) (api.Settled, error) {
	var s api.Settled
	d.await(k, api.WaitTime, func() bool {
		s = api.Settled{Done: d.current == nil || d.current.Kind != api.KindCheckpoint}
		if n := len(d.past); s.Done && n > 0 && d.past[n-1].Kind == api.KindCheckpoint {
			s.Undone = d.past[n-1].Undone
		}
		return s.Done
	})
	return s, nil
}

// cancel makes the checkpoint under way end with an error, if it is not being saved
// yet.
func (d *Desk) cancel(args api.Cancel) api.Canceled {
	d.mu.Lock()
	defer d.mu.Unlock()
	op := d.current
	if op == nil || op.Kind != api.KindCheckpoint || op.Start.Before(args.Since) {
		return api.Canceled{}
	}
	phase := op.phase()
	if phase == api.PhaseDetach {
		d.plane.canceled.Store(true)
	}
	return api.Canceled{Canceled: phase == api.PhaseDetach || phase == api.PhaseUndo, Phase: phase}
}
