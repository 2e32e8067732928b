package control

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// The kinds of failure that are not of the wire, for errors.Is.
var (
	// ErrNoRuntime: a process holds a TPU, and there is nobody to ask for it.
	ErrNoRuntime = errors.New("holds a TPU and has no runtime that can be asked to let go of it")
	// ErrWrongState: the runtime says that it succeeded, and is in a state that does not fit.
	ErrWrongState = errors.New("answered with success but is in a state that does not fit")
	// ErrExited: the control thread or its process has ended.
	ErrExited = errors.New("the control thread has exited")
	// ErrTopology: the TPUs after a restore are not as those that were saved.
	ErrTopology = errors.New("topology differs from the saved one")
	// ErrReopened: a TPU was opened while the runtimes were asked to let go.
	ErrReopened = errors.New("opened a TPU while the checkpoint was under way")
	// ErrPausedTwice: the sandbox is paused more than once.
	ErrPausedTwice = errors.New("the sandbox is paused more than once, so its runtimes cannot be asked; resume it and try again")
	// ErrLost: a runtime of the record cannot be found again.
	ErrLost = errors.New("its pipes cannot be found again")
	// ErrUnread: an earlier request is still unanswered.
	ErrUnread = errors.New("has not yet answered an earlier request")
	// ErrTooMany: the sandbox has more runtimes than the sentry is willing to ask.
	ErrTooMany = errors.New("too many runtimes")
	// ErrSandboxExiting: the sandbox is being killed.
	ErrSandboxExiting = errors.New("the sandbox is exiting")
	// ErrRecord: the record in the checkpoint cannot be used.
	ErrRecord = errors.New("the checkpoint's TPU record cannot be used")
)

// maxCommand is how many bytes of a command's name an error shows; a task's name
// has 15 at the most.
const maxCommand = 32

func quoteCommand(name string) string { return tpuwire.Quote(name, maxCommand) }

// A RuntimeError is a failure of one runtime, or of one process that should have
// one. Its text is safe for a terminal.
type RuntimeError struct {
	Container string
	PID, TID  int32 // in the sandbox's root PID namespace; TID is 0 for a process
	Command   string
	Action    controlpb.ControlAction // what it was asked; UNSPECIFIED if nothing
	Elapsed   time.Duration           // since it was asked; 0 if it was not
	State     controlpb.RuntimeState  // as it last said; UNSPECIFIED if it never did
	Err       error
}

func (e *RuntimeError) Error() string {
	var b strings.Builder
	if e.Action != controlpb.ControlAction_ACTION_UNSPECIFIED {
		fmt.Fprintf(&b, "%s of ", tpuwire.ActionName(e.Action))
	}
	fmt.Fprintf(&b, "pid %d (%s) in container %q", e.PID, quoteCommand(e.Command), e.Container)
	if elapsed := roundElapsed(e.Elapsed); elapsed > 0 {
		fmt.Fprintf(&b, " after %v", elapsed)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	// A refusal says its state itself.
	if e.State != controlpb.RuntimeState_STATE_UNSPECIFIED && !errors.Is(e.Err, tpuwire.ErrRefused) {
		fmt.Fprintf(&b, " (state %s)", tpuwire.StateName(e.State))
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *RuntimeError) Unwrap() error { return e.Err }

func roundElapsed(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(100 * time.Millisecond)
}

// maxListed is how many failures one error lists: with hundreds of runtimes that
// fail alike, the first few say it all.
const maxListed = 8

// A failures is several errors in one line, for the one line that an operator
// gets.
type failures []error

func (f failures) Error() string {
	parts := make([]string, 0, maxListed+1)
	for i, err := range f {
		if i == maxListed {
			parts = append(parts, fmt.Sprintf("and %d more", len(f)-maxListed))
			break
		}
		parts = append(parts, err.Error())
	}
	return strings.Join(parts, "; ")
}

func (f failures) Unwrap() []error { return f }

// join returns nil for no errors, the error for one, and a failures for more.
func join(errs ...error) error {
	var all failures
	for _, err := range errs {
		if err != nil {
			all = append(all, err)
		}
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return all
}
