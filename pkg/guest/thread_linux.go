package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
)

// EnableVariable is the environment variable that asks a runtime for a control thread,
// with the value "true".
const EnableVariable = "LIBTPU_CHECKPOINTING_ENABLED"

// ErrNotEnabled: the environment does not ask for a control thread.
var ErrNotEnabled = errors.New(EnableVariable + " is not true")

// ThreadOptions are the choices of StartControlThread. The zero value is fine.
type ThreadOptions struct {
	// LowestFD is the least number that the descriptors in the thread's name may
	// have; they must not exceed tpuwire.MaxFD.
	LowestFD int
}

// A ControlThread is a thread of this process that a driver can find by its name, and
// that answers its requests.
type ControlThread struct {
	name tpuwire.ThreadName
	stop context.CancelFunc
	done chan struct{}
	err  error // valid when done is closed
}

// StartControlThread makes the two pipes, and a thread with the right name that serves
// m over them until ctx ends or Stop is called. It returns ErrNotEnabled if the
// environment does not ask for it: then the process cannot be checkpointed, and runs
// as if it could.
//
// A driver writes and reads through descriptors that only the thread's name tells. All
// ends of the pipes are in this process, so the driver sees no end of file if the thread
// ends.
func StartControlThread(ctx context.Context, m *Machine, o ThreadOptions) (*ControlThread, error) {
	if os.Getenv(EnableVariable) != "true" {
		return nil, ErrNotEnabled
	}
	p, err := openPipes(o.LowestFD)
	if err != nil {
		return nil, fmt.Errorf("control thread: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	t := &ControlThread{name: p.name(), stop: stop, done: make(chan struct{})}
	named := make(chan error, 1)
	go t.run(ctx, p, m, named)
	if err := <-named; err != nil {
		t.Stop()
		return nil, fmt.Errorf("control thread: %w", err)
	}
	return t, nil
}

// Name is the thread's name, and tells the descriptors.
func (t *ControlThread) Name() tpuwire.ThreadName { return t.name }

// Done is closed when the thread has ended.
func (t *ControlThread) Done() <-chan struct{} { return t.done }

// Stop ends the thread, closes the pipes, and returns what Serve returned, if that is
// not due to Stop.
func (t *ControlThread) Stop() error {
	t.stop()
	<-t.done
	if errors.Is(t.err, context.Canceled) {
		return nil
	}
	return t.err
}

// run is the thread. The Go runtime ends a locked thread together with its goroutine,
// and starts no thread from it, so the name does not spread.
func (t *ControlThread) run(ctx context.Context, p *pipes, m *Machine, named chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// The main thread's name is the process'. While this goroutine keeps it,
		// another one gets another thread.
		other := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(other)
			t.serve(ctx, p, m, named)
		}()
		<-other
		runtime.UnlockOSThread()
		return
	}
	t.serve(ctx, p, m, named)
}

func (t *ControlThread) serve(ctx context.Context, p *pipes, m *Machine, named chan<- error) {
	defer close(t.done)
	defer p.close()
	if err := nameThread(t.name.String()); err != nil {
		named <- err
		return
	}
	named <- nil
	t.err = Serve(ctx, p.requests, p.answers, m)
}

// nameThread names the calling thread.
func nameThread(name string) error {
	text, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(text)), 0, 0, 0); err != nil {
		return fmt.Errorf("name the thread %s: %w", name, err)
	}
	return nil
}
