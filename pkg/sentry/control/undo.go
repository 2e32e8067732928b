package control

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gvisor.dev/gvisor/pkg/sentry/kernel"

	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// undo brings every member back to where it was found: RESTORE to all that are or
// may be detached, at the same time, then UNLOCK to all that were locked. The
// returned note, which goes into the error of the failed checkpoint, says how each
// of them ended; it is nil if there was nothing to undo.
func (p *Plane) undo(k *kernel.Kernel, members []*member) error {
	touched := owedAnything(members)
	if len(touched) == 0 {
		return nil
	}
	p.clearUp(k, touched)
	bad, errs := p.giveBack(k, startClock(), members)
	return describeUndo(touched, bad, errs)
}

// askLimit is how long a runtime may take to tell its state, before it is treated
// as one that may be detached.
const askLimit = 10 * time.Second

// clearUp asks those for their state whose answer to CHECKPOINT did not tell what
// became of it: a RESTORE to one that is not detached would make it unusable.
func (p *Plane) clearUp(k *kernel.Kernel, members []*member) {
	var some []*member
	for _, m := range members {
		if m.inDoubt() {
			m.state = controlpb.RuntimeState_STATE_UNSPECIFIED
			some = append(some, m)
		}
	}
	limits := make([]time.Duration, len(some))
	for i, m := range some {
		limits[i] = m.settings.CheckpointLimit
		m.settings.CheckpointLimit = min(askLimit, limits[i])
	}
	errs := p.round(k, startClock(), actGetState, some)
	for i, m := range some {
		m.settings.CheckpointLimit = limits[i]
		if errs[i] == nil {
			m.settleDoubt()
		}
	}
}

// giveBack sends what is owed, in rounds: first RESTORE, then UNLOCK. It returns
// the members that failed, each with its first error.
func (p *Plane) giveBack(k *kernel.Kernel, c clock, members []*member) (bad []*member, errs []error) {
	for _, action := range []controlpb.ControlAction{actRestore, actUnlock} {
		some := owing(members, action)
		failing, why := failed(some, p.round(k, c, action, some))
		for i, m := range failing {
			if !slices.Contains(bad, m) {
				bad, errs = append(bad, m), append(errs, why[i])
			}
		}
	}
	return bad, errs
}

func owedAnything(members []*member) []*member {
	var some []*member
	for _, m := range members {
		if m.standing.owed() != controlpb.ControlAction_ACTION_UNSPECIFIED {
			some = append(some, m)
		}
	}
	return some
}

// An undoError tells how the runtimes ended that a failed checkpoint had touched.
type undoError struct {
	back   []*member
	errors failures
}

func (e *undoError) Unwrap() []error { return e.errors }

func (e *undoError) Error() string {
	var parts []string
	if len(e.back) > 0 {
		pids := make([]string, 0, maxListed+1)
		for i, m := range e.back {
			if i == maxListed {
				pids = append(pids, fmt.Sprintf("and %d more", len(e.back)-maxListed))
				break
			}
			pids = append(pids, fmt.Sprint(m.process.pid))
		}
		parts = append(parts, fmt.Sprintf("undone: RUNNING again: pid %s", strings.Join(pids, ", ")))
	}
	if len(e.errors) > 0 {
		parts = append(parts, "not undone: "+e.errors.Error())
	}
	return strings.Join(parts, "; ")
}

func describeUndo(touched, bad []*member, errs []error) *undoError {
	e := &undoError{errors: errs}
	for _, m := range touched {
		if !slices.Contains(bad, m) {
			e.back = append(e.back, m)
		}
	}
	return e
}

// Abort undoes what PreSave did when the attempt has failed after it: gVisor does
// not call PostResume then.
func (p *Plane) Abort(k *kernel.Kernel, _ error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.detached
	p.detached = nil
	if d == nil || !recordPending(k) {
		return nil // nothing was detached, or a resume has given it back
	}
	// What cannot be given back now stays in the record, for the resume.
	if err := p.pause.begin(k); err != nil {
		return err
	}
	defer p.pause.end(k)
	dropRecord(k)
	members, err := p.findAgain(k, d, false)
	defer p.letGo(members)
	var undone *undoError
	if errors.As(p.undo(k, members), &undone) && len(undone.errors) > 0 {
		return join(err, undone)
	}
	return err
}
