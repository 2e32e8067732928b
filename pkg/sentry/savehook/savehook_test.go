package savehook

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/sentry/kernel"

	"tpuvisor.dev/tpuvisor/internal/kerneltest"
)

// limit is a generous bound against hangs.
const limit = 20 * time.Second

// A journal notes which callbacks ran, in order.
type journal struct {
	mu    sync.Mutex
	lines []string
	fail  map[string]error
}

func (j *journal) hooks(name string) Hooks {
	note := func(what string) func(*kernel.Kernel) error {
		return func(*kernel.Kernel) error { return j.note(what + " " + name) }
	}
	return Hooks{
		Name:        name,
		PreSave:     note("pre-save"),
		PostResume:  note("post-resume"),
		PostRestore: note("post-restore"),
		Saved:       func(*kernel.Kernel) { _ = j.note("saved " + name) },
		Abort:       func(_ *kernel.Kernel, cause error) error { return j.note(fmt.Sprintf("abort %s: %v", name, cause)) },
	}
}

func (j *journal) note(line string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
	return j.fail[line]
}

func (j *journal) take() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	lines := j.lines
	j.lines = nil
	return lines
}

func (j *journal) expect(t *testing.T, want ...string) {
	t.Helper()
	if got := j.take(); !slices.Equal(got, want) {
		t.Errorf("callbacks: got %q, want %q", got, want)
	}
}

func setup(t *testing.T, names ...string) (*kerneltest.Kernel, *Registry, *journal) {
	t.Helper()
	j := &journal{fail: map[string]error{}}
	r := &Registry{}
	for _, n := range names {
		r.Register(j.hooks(n))
	}
	return kerneltest.Boot(t), r, j
}

func settle(t *testing.T, r *Registry) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- r.Settle(t.Context()) }()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(limit):
		t.Fatal("the attempt never ended")
	}
}

func TestOrder(t *testing.T) {
	k, r, j := setup(t, "a", "b")
	if err := r.PreSave(k.Kernel); err != nil {
		t.Fatal(err)
	}
	j.expect(t, "pre-save a", "pre-save b")
	if err := r.PostResume(k.Kernel); err != nil {
		t.Fatal(err)
	}
	j.expect(t, "post-resume b", "post-resume a")
	k.OnCheckpointAttempt(nil)
	settle(t, r)
	j.expect(t, "saved a", "saved b")
	if err := r.PostRestore(k.Kernel); err != nil {
		t.Fatal(err)
	}
	j.expect(t, "post-restore b", "post-restore a")
}

func TestPreSaveFailureUndoesEarlierOnes(t *testing.T) {
	k, r, j := setup(t, "a", "b", "c")
	boom := errors.New("boom")
	j.fail["pre-save c"] = boom
	if err := r.PreSave(k.Kernel); !errors.Is(err, boom) {
		t.Fatalf("got %v, want boom", err)
	}
	j.expect(t, "pre-save a", "pre-save b", "pre-save c", "abort b: boom", "abort a: boom")
	j.fail = nil
	if err := r.PreSave(k.Kernel); err != nil {
		t.Fatalf("the next attempt: %v", err)
	}
}

func TestLaterFailureAborts(t *testing.T) {
	k, r, j := setup(t, "a", "b")
	if err := r.PreSave(k.Kernel); err != nil {
		t.Fatal(err)
	}
	j.take()
	k.SaveRestoreExecConfig = &kernel.SaveRestoreExecConfig{}
	k.OnCheckpointAttempt(errors.New("disk full"))
	settle(t, r)
	j.expect(t, "abort b: disk full", "abort a: disk full")
	if k.SaveRestoreExecConfig != nil {
		t.Error("the failed attempt's exec hook is still configured, which would fail the next one")
	}
	if err := r.PreSave(k.Kernel); err != nil {
		t.Fatalf("the next attempt: %v", err)
	}
	k.OnCheckpointAttempt(errors.New("again"))
	settle(t, r)
	j.expect(t, "pre-save a", "pre-save b", "abort b: again", "abort a: again")
}

// TestNextAttemptRightAway begins an attempt in the moment in which the one before
// has ended.
func TestNextAttemptRightAway(t *testing.T) {
	k, r, _ := setup(t, "a")
	for i := range 100 {
		if err := r.PreSave(k.Kernel); err != nil {
			t.Fatalf("attempt %d: %v", i, err)
		}
		if k.SaveRestoreExecConfig != nil {
			t.Fatalf("attempt %d finds the exec hook of the one before", i)
		}
		var outcome error
		if i%2 == 1 {
			outcome = errors.New("disk full")
			k.SaveRestoreExecConfig = &kernel.SaveRestoreExecConfig{}
		}
		k.OnCheckpointAttempt(outcome)
	}
	settle(t, r)
}

func TestOthersOutcomesAreNotOurs(t *testing.T) {
	k, r, j := setup(t, "a")
	if err := r.PreSave(k.Kernel); err != nil {
		t.Fatal(err)
	}
	j.take()
	r.mu.Lock()
	a := r.current
	r.mu.Unlock()
	for i := range 4 * spareWaiters {
		other := make(chan struct{})
		go func() {
			defer close(other)
			if err := r.PreSave(k.Kernel); !errors.Is(err, ErrBusy) {
				t.Errorf("a second attempt: got %v, want ErrBusy", err)
			}
			k.OnCheckpointAttempt(ErrBusy)
		}()
		<-other
		awaitSpare(t, a, spareWaiters+i+1)
	}
	j.expect(t)
	k.OnCheckpointAttempt(errors.New("ours"))
	settle(t, r)
	j.expect(t, "abort a: ours")
}

// awaitSpare waits until the waiter that the last outcome took is made anew.
func awaitSpare(t *testing.T, a *attempt, want int) {
	t.Helper()
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		a.mu.Lock()
		got := len(a.keys)
		a.mu.Unlock()
		if got >= want {
			return
		}
		if time.Since(start) > limit {
			t.Fatalf("%d waiters, want %d", got, want)
		}
	}
}

func TestTeardownEndsTheAttempt(t *testing.T) {
	k, r, j := setup(t, "a")
	if err := r.PreSave(k.Kernel); err != nil {
		t.Fatal(err)
	}
	j.take()
	k.SignalAllCheckpointWaiters(errors.New("destroyed"))
	settle(t, r)
	j.expect(t)
}

func TestResumeWaitsForTheAttempt(t *testing.T) {
	k, r, j := setup(t, "a")
	if err := r.PreSave(k.Kernel); err != nil {
		t.Fatal(err)
	}
	j.take()
	resumed := make(chan error, 1)
	go func() { resumed <- r.PostResume(k.Kernel) }()
	select {
	case <-resumed:
		t.Fatal("resume did not wait for the attempt under way")
	case <-time.After(20 * time.Millisecond):
	}
	j.expect(t)
	k.OnCheckpointAttempt(nil)
	select {
	case err := <-resumed:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(limit):
		t.Fatal("resume never returned")
	}
	j.expect(t, "saved a", "post-resume a")
}

func TestNoCallbacksNoCost(t *testing.T) {
	k, r, _ := setup(t)
	allocs := testing.AllocsPerRun(100, func() {
		if err := r.PreSave(k.Kernel); err != nil {
			t.Fatal(err)
		}
		if err := r.PostResume(k.Kernel); err != nil {
			t.Fatal(err)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations without a callback", allocs)
	}
}

func TestRegisterRefusesMistakes(t *testing.T) {
	for _, tc := range []struct{ name, second string }{{"no name", ""}, {"twice", "a"}} {
		t.Run(tc.name, func(t *testing.T) {
			r := &Registry{}
			r.Register(Hooks{Name: "a"})
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			r.Register(Hooks{Name: tc.second})
		})
	}
}
