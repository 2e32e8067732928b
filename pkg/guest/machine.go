package guest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// DefaultLimit is how long an action may take if the driver does not say.
const DefaultLimit = 180 * time.Second

// Config is what a Machine is made of.
type Config struct {
	// Device must be set, and must be open.
	Device Device

	// Hold makes operations wait, from CHECKPOINT until RESTORE is done, as if the
	// driver had sent LOCK before: those in flight end first, and later ones start
	// when the device is back. Without it, those in flight are cancelled and later
	// ones are errors, as in libtpu.
	Hold bool
}

// A Machine is one runtime: its state, and what it does about each request. It is
// RUNNING at first. Its methods may be called from any goroutine.
type Machine struct {
	device Device
	hold   bool

	// turn is held while a request is dealt with, and taken before mu.
	turn sync.Mutex

	mu sync.Mutex
	// +checklocks:mu
	state controlpb.RuntimeState
	// +checklocks:mu
	before controlpb.RuntimeState // what CHECKPOINT found, while detached
	// +checklocks:mu
	gate gate
	// +checklocks:mu
	changed chan struct{} // closed, and made anew, when anything here changes
}

// NewMachine returns a runtime whose device is attached.
func NewMachine(c Config) *Machine {
	m := &Machine{device: c.Device, hold: c.Hold, state: running, changed: make(chan struct{})}
	m.gate.renew()
	return m
}

// State is what GETSTATE would tell.
func (m *Machine) State() controlpb.RuntimeState {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// Answer does what a request asks and returns the answer. Requests are dealt with one
// after the other; ctx ends the one under way.
func (m *Machine) Answer(ctx context.Context, request *controlpb.ControlRequest) *controlpb.ControlResponse {
	m.turn.Lock()
	defer m.turn.Unlock()
	ctx, cancel := context.WithTimeout(ctx, limit(request))
	defer cancel()

	row := transition(m.State(), request.GetAction())
	var err error
	switch {
	case row.Success == Refused:
		err = fmt.Errorf("%s is refused in state %s", tpuwire.ActionName(row.Action), tpuwire.StateName(row.From))
		m.become(row.Failure)
	case row.Action == restore:
		err = m.restore(ctx, row, request.GetExpectedTopology())
	default:
		err = m.perform(ctx, row)
	}
	return m.response(row.Action, err)
}

func limit(request *controlpb.ControlRequest) time.Duration {
	if seconds := request.GetTimeoutSecs(); seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	return DefaultLimit
}

// perform does what row says, for actions that are no RESTORE.
func (m *Machine) perform(ctx context.Context, row Transition) error {
	var err error
	switch row.Action {
	case lock:
		err = m.quiesce(ctx, true)
	case checkpoint:
		err = m.detach(ctx, row)
	}
	if err != nil {
		m.fail(row, err)
		return err
	}
	m.succeed(row)
	return nil
}

func (m *Machine) detach(ctx context.Context, row Transition) error {
	if err := m.quiesce(ctx, m.hold || row.From == locked); err != nil {
		return err
	}
	m.mu.Lock()
	m.before = row.From
	m.mu.Unlock()
	return m.device.Detach(ctx)
}

// restore refuses hardware that differs before it opens it, and is detached still.
func (m *Machine) restore(ctx context.Context, row Transition, expected *controlpb.TpuTopology) error {
	if err := CheckTopology(expected, m.device.Topology()); err != nil {
		return err
	}
	m.become(row.During)
	if err := m.device.Attach(ctx, expected); err != nil {
		m.fail(row, err)
		return err
	}
	m.succeed(row)
	return nil
}

// succeed enters the state that an action's success leads to.
func (m *Machine) succeed(row Transition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if row.Success == AsBefore {
		m.enter(m.before)
		return
	}
	m.enter(row.Success)
}

// fail enters the state that an action's failure leads to.
func (m *Machine) fail(row Transition, err error) {
	if errors.Is(err, ErrFaulted) {
		m.become(faulted)
		return
	}
	m.become(row.Failure)
}

// become ends an action, or a part of one, in state.
func (m *Machine) become(state controlpb.RuntimeState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.enter(state)
}

// enter is become for callers that hold m.mu.
//
// +checklocks:m.mu
func (m *Machine) enter(state controlpb.RuntimeState) {
	m.state = state
	m.gate.follow(state)
	m.notify()
}

// notify wakes everyone who waits for a change.
//
// +checklocks:m.mu
func (m *Machine) notify() {
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *Machine) response(action controlpb.ControlAction, err error) *controlpb.ControlResponse {
	response := &controlpb.ControlResponse{
		Success:        proto.Bool(err == nil),
		CurrentState:   m.State().Enum(),
		ActiveTopology: m.device.Topology(),
	}
	switch {
	case err != nil:
		response.ErrorMessage = proto.String(words(err))
	case action == checkpoint:
		response.Telemetry = &controlpb.ControlResponse_CheckpointStats{CheckpointStats: &controlpb.CheckpointStats{}}
	case action == restore:
		response.Telemetry = &controlpb.ControlResponse_RestoreStats{RestoreStats: &controlpb.RestoreStats{}}
	}
	return response
}
