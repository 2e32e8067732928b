package guest

import (
	"context"
	"errors"
	"fmt"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

var (
	// ErrDetached: an operation was begun while the device is detached. libtpu ends
	// the process in this case.
	ErrDetached = errors.New("TPU operation while the TPU is detached")

	// ErrCancelled: an operation was in flight when CHECKPOINT came.
	ErrCancelled = errors.New("TPU operation cancelled by a checkpoint")
)

// A gate says what becomes of operations. The Machine's mu guards it.
type gate struct {
	closed   bool // no operation starts
	waits    bool // those that cannot start wait; else they fail
	inFlight int

	cut    context.Context // ends when operations in flight are to be cancelled
	cancel context.CancelCauseFunc
}

func (g *gate) renew() {
	g.cut, g.cancel = context.WithCancelCause(context.Background())
}

// follow sets the gate for a state that has been reached. In DETACHED and RESTORING
// it stays as CHECKPOINT set it.
func (g *gate) follow(state controlpb.RuntimeState) {
	switch state {
	case running:
		g.closed, g.waits = false, false
	case locked:
		g.closed, g.waits = true, true
	case faulted:
		g.closed, g.waits = true, false
	}
}

// Do runs one operation on the device: nothing that uses the device may run elsewhere.
// It waits while operations are held back. op's context ends with ctx, or when the
// operation is cancelled by a checkpoint; op must return then.
//
// The error is op's own, ctx's, or wraps ErrDetached, ErrCancelled or ErrFaulted.
func (m *Machine) Do(ctx context.Context, op func(context.Context) error) error {
	cut, err := m.begin(ctx)
	if err != nil {
		return err
	}
	defer m.end()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(cut, func() { cancel(context.Cause(cut)) })
	defer stop()
	err = op(ctx)
	if cut.Err() != nil {
		return errors.Join(ErrCancelled, err)
	}
	return err
}

// begin waits until an operation may start and returns what cuts it short.
func (m *Machine) begin(ctx context.Context) (context.Context, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.gate.closed && m.gate.waits {
		if err := m.wait(ctx); err != nil {
			return nil, fmt.Errorf("TPU operation held back in state %s: %w", tpuwire.StateName(m.state), err)
		}
	}
	switch {
	case m.state == faulted:
		return nil, ErrFaulted
	case m.gate.closed:
		return nil, fmt.Errorf("%w: state %s", ErrDetached, tpuwire.StateName(m.state))
	}
	m.gate.inFlight++
	return m.gate.cut, nil
}

func (m *Machine) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gate.inFlight--
	m.notify()
}

// wait returns when something has changed, or ctx has ended. m.mu is given up
// meanwhile.
//
// +checklocks:m.mu
func (m *Machine) wait(ctx context.Context) error {
	changed := m.changed
	m.mu.Unlock()
	defer m.mu.Lock()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// quiesce lets no more operations start, and returns when none is in flight. If hold
// is set, operations wait for each other's sake; else those in flight are cancelled.
// After an error, the next state's gate applies.
func (m *Machine) quiesce(ctx context.Context, hold bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gate.closed, m.gate.waits = true, hold
	if !hold {
		m.gate.cancel(ErrCancelled)
		m.gate.renew()
	}
	for m.gate.inFlight > 0 {
		if err := m.wait(ctx); err != nil {
			return fmt.Errorf("%d operations still in flight: %w", m.gate.inFlight, err)
		}
	}
	return nil
}
