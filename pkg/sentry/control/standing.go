package control

import (
	"fmt"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// A standing is where a runtime stands in an exchange, as far as the sentry knows:
// it says what is owed to the runtime on the way back.
type standing int

// The standings. A runtime is taken to be attached when nothing was sent to it.
const (
	attached        standing = iota // uses its TPU; nothing is owed
	locking                         // LOCK was sent, and is not known to be refused
	locked                          // LOCK was acknowledged
	detaching                       // CHECKPOINT was sent, and is not known to be refused
	detached                        // CHECKPOINT was acknowledged
	lockedDetaching                 // as detaching, and locked before
	lockedDetached                  // as detached, and locked before
	restoring                       // RESTORE was sent; it is never sent again
	lockedRestoring                 // as restoring, and locked before
	unlocking                       // UNLOCK was sent; it is never sent again
	stranded                        // RESTORE was refused: detached for good
	lost                            // exited, or unrecoverable by its own word
	numStandings
)

var standingNames = [numStandings]string{
	attached: "attached", locking: "locking", locked: "locked",
	detaching: "detaching", detached: "detached",
	lockedDetaching: "locked, detaching", lockedDetached: "locked, detached",
	restoring: "restoring", lockedRestoring: "locked, restoring", unlocking: "unlocking",
	stranded: "stranded", lost: "lost",
}

func (s standing) String() string { return standingNames[s] }

// A result is what became of a request.
type result int

const (
	sent    result = iota // written, or at least a part of it
	acked                 // answered with success, in a state that fits
	refused               // answered, and it was not done
	unknown               // no answer, or none that tells
	gone                  // the runtime has exited or is unrecoverable
	numResults
)

var resultNames = [numResults]string{sent: "sent", acked: "acknowledged", refused: "refused", unknown: "unknown", gone: "gone"}

func (r result) String() string { return resultNames[r] }

// A move is one row of the table of transitions.
type move struct {
	from   standing
	action controlpb.ControlAction
	result result
	to     standing
}

const (
	actLock       = controlpb.ControlAction_ACTION_LOCK
	actCheckpoint = controlpb.ControlAction_ACTION_CHECKPOINT
	actRestore    = controlpb.ControlAction_ACTION_RESTORE
	actUnlock     = controlpb.ControlAction_ACTION_UNLOCK
	actGetState   = controlpb.ControlAction_ACTION_GETSTATE
)

// moves is the whole table. docs/exchange.md shows it, and a test compares the
// two. What is not in it changes nothing, but for gone, which leads to lost from
// everywhere.
var moves = []move{
	{attached, actLock, sent, locking},
	{locking, actLock, acked, locked},
	{locking, actLock, refused, attached},

	{attached, actCheckpoint, sent, detaching},
	{detaching, actCheckpoint, acked, detached},
	{detaching, actCheckpoint, refused, attached},
	{locked, actCheckpoint, sent, lockedDetaching},
	{lockedDetaching, actCheckpoint, acked, lockedDetached},
	{lockedDetaching, actCheckpoint, refused, locked},

	{detaching, actRestore, sent, restoring},
	{detached, actRestore, sent, restoring},
	{restoring, actRestore, acked, attached},
	{restoring, actRestore, refused, stranded},
	{lockedDetaching, actRestore, sent, lockedRestoring},
	{lockedDetached, actRestore, sent, lockedRestoring},
	{lockedRestoring, actRestore, acked, locked},
	{lockedRestoring, actRestore, refused, stranded},

	{locking, actUnlock, sent, unlocking},
	{locked, actUnlock, sent, unlocking},
	{unlocking, actUnlock, acked, attached},
}

// after returns the standing that a result leads to.
func (s standing) after(action controlpb.ControlAction, r result) standing {
	if r == gone {
		return lost
	}
	for _, m := range moves {
		if m.from == s && m.action == action && m.result == r {
			return m.to
		}
	}
	return s
}

// owed returns what has to be sent next to bring the runtime back to where it was
// found, or UNSPECIFIED for nothing.
func (s standing) owed() controlpb.ControlAction {
	switch s {
	case detaching, detached, lockedDetaching, lockedDetached:
		return actRestore
	case locking, locked:
		return actUnlock
	case attached, restoring, lockedRestoring, unlocking, stranded, lost:
	}
	return controlpb.ControlAction_ACTION_UNSPECIFIED
}

// wantState returns whether an answer of success to action fits with a state. A
// runtime may leave its state out.
func wantState(action controlpb.ControlAction, held bool, state controlpb.RuntimeState) error {
	want := map[controlpb.ControlAction]controlpb.RuntimeState{
		actLock:       controlpb.RuntimeState_STATE_LOCKED,
		actCheckpoint: controlpb.RuntimeState_STATE_DETACHED,
		actRestore:    controlpb.RuntimeState_STATE_RUNNING,
		actUnlock:     controlpb.RuntimeState_STATE_RUNNING,
	}[action]
	switch {
	case state == controlpb.RuntimeState_STATE_UNSPECIFIED, state == want, action == actGetState:
		return nil
	case action == actRestore && held && state == controlpb.RuntimeState_STATE_LOCKED:
		return nil
	}
	return fmt.Errorf("%w: %s, where %s was expected", ErrWrongState, tpuwire.StateName(state), tpuwire.StateName(want))
}
