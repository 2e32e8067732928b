package inprocess

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"gvisor.dev/gvisor/pkg/sentry/kernel"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control"
	"tpuvisor.dev/tpuvisor/pkg/sentry/savehook"
	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
	"tpuvisor.dev/tpuvisor/test/faults"
)

// kinds are what the table's kinds of error are in Go.
var kinds = map[faults.Error]error{
	faults.Refused:     tpuwire.ErrRefused,
	faults.WrongState:  control.ErrWrongState,
	faults.NotMessage:  tpuwire.ErrNotMessage,
	faults.TooLarge:    tpuwire.ErrTooLarge,
	faults.NoAnswer:    tpuwire.ErrNoAnswer,
	faults.Closed:      tpuwire.ErrClosed,
	faults.Exited:      control.ErrExited,
	faults.Topology:    control.ErrTopology,
	faults.NoRuntime:   control.ErrNoRuntime,
	faults.TooMany:     control.ErrTooMany,
	faults.Lost:        control.ErrLost,
	faults.Unread:      control.ErrUnread,
	faults.Reopened:    control.ErrReopened,
	faults.PausedTwice: control.ErrPausedTwice,
	faults.Exiting:     control.ErrSandboxExiting,
	faults.Busy:        savehook.ErrBusy,
}

// maxText is how long an error's text may be, in bytes.
const maxText = 4 << 10

// runtimeErrors lists the errors about single runtimes, the first ones first.
func runtimeErrors(err error) (all []*control.RuntimeError) {
	var several interface{ Unwrap() []error }
	if errors.As(err, &several) {
		for _, inner := range several.Unwrap() {
			all = append(all, runtimeErrors(inner)...)
		}
	}
	// Without any inside, the several are the cause of one.
	var one *control.RuntimeError
	if len(all) == 0 && errors.As(err, &one) {
		all = append(all, one)
	}
	return all
}

// about returns the first error about the member, or nil.
func (m *member) about(err error) *control.RuntimeError {
	all := runtimeErrors(err)
	if i := slices.IndexFunc(all, func(e *control.RuntimeError) bool { return e.PID == int32(m.pid) }); i >= 0 {
		return all[i]
	}
	return nil
}

// wantError wants an error of the row's kind about each that misbehaves, or none.
func (r *trial) wantError(t *testing.T, want faults.Outcome, err error) {
	t.Helper()
	wantText(t, err)
	if want.Error == faults.None {
		if err != nil {
			t.Errorf("got error %v, want none", err)
		}
		return
	}
	for _, rank := range r.bad {
		m := r.members[rank]
		e := m.about(err)
		if e == nil {
			t.Errorf("no error about rank %d (pid %d): %v", rank, m.pid, err)
			continue
		}
		if !errors.Is(e, kinds[want.Error]) {
			t.Errorf("rank %d: got %v, want kind %q", rank, e, want.Error)
		}
		if e.Container != "c1" || e.Command != m.command {
			t.Errorf("rank %d: the error names container %q and command %q", rank, e.Container, e.Command)
		}
		if got := tpuwire.ActionName(e.Action); !strings.Contains(r.row.Fault+r.row.Verb(r.phase), got) && !want.Later && want.Error != faults.Exited {
			t.Errorf("rank %d: the error is about %s", rank, got)
		}
	}
}

// wantText wants a text of bearable length that is safe for a terminal.
func wantText(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	text := err.Error()
	if len(text) > maxText {
		t.Errorf("the error has %d bytes", len(text))
	}
	for _, c := range text {
		if unicode.IsControl(c) && c != '\n' || unicode.Is(unicode.Cf, c) || c == utf8.RuneError {
			t.Errorf("the error has a control byte %q: %q", c, text)
			return
		}
	}
}

// wantDuration wants silence to be borne exactly as long as is promised, and the end
// of a guest to be noticed at once.
func (r *trial) wantDuration(t *testing.T, kind faults.Error, took time.Duration) {
	t.Helper()
	if r.real {
		if took > patience/2 {
			t.Errorf("it took %v", took)
		}
		return
	}
	if most := 2 * (r.limit + min(r.limit/10, 10*time.Second)); took > most {
		t.Errorf("it took %v, more than %v", took, most)
	}
	if kind != faults.NoAnswer && !r.row.OneMesh && took > r.limit+r.limit/50 {
		t.Errorf("it took %v", took)
	}
}

// wantThen wants what becomes of the member.
func (m *member) wantThen(t *testing.T, then faults.Then, err error) {
	t.Helper()
	switch then {
	case faults.Named:
		if m.about(err) == nil {
			t.Errorf("rank %d is not named: %v", m.rank, err)
		}
		return
	case faults.Gone:
		if m.tg.Count() > 0 {
			t.Errorf("rank %d has not ended", m.rank)
		}
		return
	case faults.Running:
	}
	if state := m.runtime.State(); state != controlpb.RuntimeState_STATE_RUNNING {
		t.Errorf("rank %d is %s; the error: %v", m.rank, tpuwire.StateName(state), err)
	} else if !m.tpu.isOpen() {
		t.Errorf("rank %d is RUNNING without its TPU", m.rank)
	}
	if m.runtime.IsWedged() {
		t.Errorf("rank %d is wedged: it was sent a RESTORE that it must not get; the error: %v", m.rank, err)
	}
}

// wantOnce wants no verb to have come twice, and nothing but requests to have been
// written.
func (m *member) wantOnce(t *testing.T) {
	t.Helper()
	m.wantAtMost(t, 1)
}

// wantAtMost is wantOnce for so many times.
func (m *member) wantAtMost(t *testing.T, most int) {
	t.Helper()
	for action, n := range m.verbs(t) {
		if n > most && action != controlpb.ControlAction_ACTION_GETSTATE {
			t.Errorf("rank %d got %s %d times", m.rank, tpuwire.ActionName(action), n)
		}
	}
}

// exited waits until the tasks have ended that are ending.
func (r *trial) exited(t *testing.T) {
	t.Helper()
	if !r.real {
		return
	}
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		ending := false
		for _, m := range r.members {
			ending = ending || m.dead.Load() && (m.serving.Load() || m.tg.Count() > 0)
			ending = ending || m.ended.Load() && (m.serving.Load() || m.thread.ExitState() == kernel.TaskExitNone)
		}
		if !ending {
			return
		}
		if time.Since(start) > patience {
			t.Fatal("what was told to end does not")
		}
	}
}

// wantCount wants nothing to be left over.
func (w *world) wantCount(t *testing.T, before count) {
	t.Helper()
	w.wantNobody(t)
	after := w.count()
	if after.paused != before.paused {
		t.Errorf("paused was %v, and is %v", before.paused, after.paused)
	}
	for m, refs := range after.refs {
		for fd, n := range refs {
			if was, there := before.refs[m][fd]; there && n != was && fd != m.tpu.fd && !m.ended.Load() {
				t.Errorf("rank %d: FD %d had %d references, and has %d", m.rank, fd, was, n)
			}
		}
	}
}

var stacks = make([]byte, 4<<20)

// wantNobody wants no goroutine of the control plane to be left.
func (w *world) wantNobody(t *testing.T) {
	t.Helper()
	w.rest()
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		var left []string
		for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(stack, "/pkg/sentry/control.") || strings.Contains(stack, "/pkg/sentry/savehook.") {
				left = append(left, stack)
			}
		}
		if len(left) == 0 {
			return
		}
		if !w.real || time.Since(start) > patience {
			t.Errorf("%d goroutines are left over:\n%s", len(left), strings.Join(left, "\n\n"))
			return
		}
	}
}
