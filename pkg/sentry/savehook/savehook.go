// Package savehook is the registry between gVisor's save and restore code and
// whoever has work to do around it: named callbacks that run before a save, after
// a resume, after a restore, and when a checkpoint attempt fails after the
// pre-save callbacks have succeeded.
//
// gVisor calls PreSave, PostResume and PostRestore through the seam (folder
// seam/); callbacks are registered once, from runsc's main, before any sandbox
// starts. The package may import gVisor's kernel and nothing else of this module.
package savehook

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// Hooks are the callbacks of one subsystem. Any of the functions may be nil.
// None is called with a kernel lock held, and each may talk to guest tasks.
type Hooks struct {
	// Name says in errors and in the log whose callbacks these are.
	Name string

	// PreSave runs before the kernel is saved. An error ends the attempt; what
	// the callback itself has done, it undoes itself.
	PreSave func(*kernel.Kernel) error

	// Abort runs when the attempt has failed after PreSave succeeded: a later
	// callback, the save/restore exec hook, CUDA, or the save itself. cause is
	// what failed. What Abort returns is added to the error of the attempt where
	// that is still being made, and else reported to the log.
	Abort func(k *kernel.Kernel, cause error) error

	// Saved runs when the attempt has succeeded, before gVisor reports it. It
	// may wait a moment, under locks of gVisor.
	Saved func(*kernel.Kernel)

	// PostResume runs when a kernel that was saved, or only paused, runs again.
	PostResume func(*kernel.Kernel) error

	// PostRestore runs when a restored kernel has started.
	PostRestore func(*kernel.Kernel) error
}

// ErrBusy is the kind of the error of an attempt that found another one under
// way in the same sandbox.
var ErrBusy = errors.New("another checkpoint of this sandbox is under way")

// A Registry holds callbacks and the attempt under way. The zero value is ready.
type Registry struct {
	mu sync.Mutex
	// +checklocks:mu
	hooks []Hooks
	// +checklocks:mu
	current *attempt
}

// Register adds callbacks. They run in the order of registration and are undone
// in reverse. It panics when the name is empty or taken: both are mistakes in
// main.
func (r *Registry) Register(h Hooks) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.Name == "" {
		panic("savehook: callbacks without a name")
	}
	if slices.ContainsFunc(r.hooks, func(o Hooks) bool { return o.Name == h.Name }) {
		panic(fmt.Sprintf("savehook: callbacks %q registered twice", h.Name))
	}
	r.hooks = append(r.hooks, h)
}

func (r *Registry) registered() []Hooks {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hooks
}

// PreSave runs the pre-save callbacks of one checkpoint attempt, on the goroutine
// that goes on to save the kernel. When it returns nil the attempt is watched,
// and its failure runs the Abort callbacks.
func (r *Registry) PreSave(k *kernel.Kernel) error {
	hooks := r.registered()
	if len(hooks) == 0 {
		return nil
	}
	a := newAttempt(k, hooks)
	if err := r.begin(a); err != nil {
		return err
	}
	a.exec = k.SaveRestoreExecConfig // the undo of the attempt before may set it until here
	for i, h := range hooks {
		if h.PreSave == nil {
			continue
		}
		if err := h.PreSave(k); err != nil {
			err = errors.Join(err, undo(k, hooks[:i], err))
			r.end(a)
			return err
		}
	}
	a.watch(func() { r.end(a) })
	return nil
}

// begin makes a the attempt under way. It refuses where there is one already,
// but waits for the undo of one that has failed.
func (r *Registry) begin(a *attempt) error {
	for {
		r.mu.Lock()
		other := r.current
		if other == nil {
			r.current = a
		}
		r.mu.Unlock()
		if other == nil {
			return nil
		}
		if !other.over() {
			return fmt.Errorf("%w (for %v); wait for it to end and try again", ErrBusy, other.age())
		}
		<-other.done
	}
}

// Settle waits until the attempt under way, if there is one, has ended and what
// it had detached is undone. It returns early with the context's error.
func (r *Registry) Settle(ctx context.Context) error {
	r.mu.Lock()
	a := r.current
	r.mu.Unlock()
	if a == nil {
		return nil
	}
	select {
	case <-a.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *Registry) end(a *attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current == a {
		r.current = nil
	}
	close(a.done)
}

// PostResume runs the post-resume callbacks, the last registered first. Called
// by a plain resume while a checkpoint attempt is under way, it first waits for
// the end of that attempt, which owns what was detached for it.
func (r *Registry) PostResume(k *kernel.Kernel) error {
	r.mu.Lock()
	a := r.current
	r.mu.Unlock()
	if a != nil && !a.mine() {
		<-a.done
		if k.IsPaused() || k.TaskSet().IsExiting() {
			return nil
		}
	}
	return runReversed(k, r.registered(), func(h Hooks) func(*kernel.Kernel) error { return h.PostResume })
}

// PostRestore runs the post-restore callbacks, the last registered first.
func (r *Registry) PostRestore(k *kernel.Kernel) error {
	return runReversed(k, r.registered(), func(h Hooks) func(*kernel.Kernel) error { return h.PostRestore })
}

func runReversed(k *kernel.Kernel, hooks []Hooks, pick func(Hooks) func(*kernel.Kernel) error) error {
	var errs []error
	for _, h := range slices.Backward(hooks) {
		if f := pick(h); f != nil {
			errs = append(errs, f(k))
		}
	}
	return errors.Join(errs...)
}

// undo runs the Abort callbacks of hooks in reverse.
func undo(k *kernel.Kernel, hooks []Hooks, cause error) error {
	var errs []error
	for _, h := range slices.Backward(hooks) {
		if h.Abort != nil {
			errs = append(errs, h.Abort(k, cause))
		}
	}
	return errors.Join(errs...)
}
