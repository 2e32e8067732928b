package guest

import (
	"slices"

	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// Short names for what the table below is made of.
const (
	running   = controlpb.RuntimeState_STATE_RUNNING
	locked    = controlpb.RuntimeState_STATE_LOCKED
	detached  = controlpb.RuntimeState_STATE_DETACHED
	restoring = controlpb.RuntimeState_STATE_RESTORING
	faulted   = controlpb.RuntimeState_STATE_FAULTED

	lock       = controlpb.ControlAction_ACTION_LOCK
	checkpoint = controlpb.ControlAction_ACTION_CHECKPOINT
	restore    = controlpb.ControlAction_ACTION_RESTORE
	unlock     = controlpb.ControlAction_ACTION_UNLOCK
	getState   = controlpb.ControlAction_ACTION_GETSTATE
)

const (
	// AsBefore stands for the state that CHECKPOINT found: RUNNING or LOCKED.
	AsBefore controlpb.RuntimeState = -1

	// Refused stands for no success: the action is refused.
	Refused controlpb.RuntimeState = -2
)

// A Transition is what an action does in a state.
type Transition struct {
	From    controlpb.RuntimeState
	Action  controlpb.ControlAction
	During  controlpb.RuntimeState // while the action is under way
	Success controlpb.RuntimeState // after it, or AsBefore, or Refused
	Failure controlpb.RuntimeState // after a failure or a refusal
}

// transitions is the one place that says what is allowed, in the order of the table in
// docs/protocol.md. Requests are dealt with one at a time, so none finds a runtime
// RESTORING.
var transitions = []Transition{
	{running, lock, running, locked, running},
	{running, checkpoint, running, detached, running},
	{running, restore, running, Refused, faulted},
	{running, unlock, running, running, running},
	{running, getState, running, running, running},

	{locked, lock, locked, Refused, locked},
	{locked, checkpoint, locked, detached, locked},
	{locked, restore, locked, Refused, faulted},
	{locked, unlock, locked, running, locked},
	{locked, getState, locked, locked, locked},

	{detached, lock, detached, Refused, detached},
	{detached, checkpoint, detached, Refused, detached},
	{detached, restore, restoring, AsBefore, faulted},
	{detached, unlock, detached, Refused, detached},
	{detached, getState, detached, detached, detached},

	{faulted, lock, faulted, Refused, faulted},
	{faulted, checkpoint, faulted, Refused, faulted},
	{faulted, restore, faulted, Refused, faulted},
	{faulted, unlock, faulted, Refused, faulted},
	{faulted, getState, faulted, faulted, faulted},
}

// Transitions returns a copy of the table of what each action does in each state.
func Transitions() []Transition { return slices.Clone(transitions) }

// transition finds the row for an action. An action that the protocol does not know is
// refused and changes nothing.
func transition(from controlpb.RuntimeState, action controlpb.ControlAction) Transition {
	for _, row := range transitions {
		if row.From == from && row.Action == action {
			return row
		}
	}
	return Transition{From: from, Action: action, During: from, Success: Refused, Failure: from}
}
