package savehook

import (
	"math"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/goid"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// spareWaiters is how many outcomes of other attempts (refused ones, or ones that
// a guest provokes through /proc/gvisor/checkpoint) may come in a row before ours
// without being waited for anew.
const spareWaiters = 16

// An attempt is one checkpoint attempt, from its pre-save callbacks on.
//
// gVisor reports the outcome of every attempt to Kernel.CheckpointWait, without
// saying which attempt it is, but always on the goroutine that made it. While an
// attempt lasts its goroutine lives, so the goroutine's ID tells ours from others.
type attempt struct {
	k       *kernel.Kernel
	hooks   []Hooks
	goid    int64
	started time.Time
	exec    *kernel.SaveRestoreExecConfig
	done    chan struct{}

	mu sync.Mutex
	// +checklocks:mu
	keys []any
	// +checklocks:mu
	known bool // the outcome is
	// +checklocks:mu
	ended bool
}

func newAttempt(k *kernel.Kernel, hooks []Hooks) *attempt {
	return &attempt{
		k:       k,
		hooks:   hooks,
		goid:    goid.Get(),
		started: time.Now(),
		done:    make(chan struct{}),
	}
}

func (a *attempt) mine() bool { return goid.Get() == a.goid }

// over reports whether the outcome is known, though the undo may still run.
func (a *attempt) over() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.known
}

func (a *attempt) setKnown() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known = true
}

func (a *attempt) age() time.Duration { return time.Since(a.started).Round(time.Millisecond) }

// watch waits for the attempt's outcome and acts on it, then calls after.
func (a *attempt) watch(after func()) {
	next := a.k.CheckpointGen().Count + 1
	for i := range uint32(spareWaiters) {
		a.wait(next+i, after)
	}
}

// wait registers for the outcome number count. The callback runs under gVisor's
// locks: it only decides, and leaves the work to a goroutine.
func (a *attempt) wait(count uint32, after func()) {
	// An outcome that is already past is reported at once, on this goroutine,
	// which may be the attempt's own: that one is not the attempt's outcome.
	onOurs, registered := a.mine(), false
	key := a.k.CheckpointWait.Register(func(gen kernel.CheckpointGeneration, err error) {
		switch {
		case gen.Count == math.MaxUint32: // the sandbox is being torn down
			go a.finish(nil, false, after)
		case a.mine() && (!onOurs || registered):
			a.setKnown()
			if err == nil {
				a.saved()
			}
			go a.finish(err, err != nil, after)
		default:
			go a.wait(gen.Count+spareWaiters, after)
		}
	}, count)
	if onOurs {
		registered = true
	}
	a.mu.Lock()
	ended := a.ended
	if !ended {
		a.keys = append(a.keys, key)
	}
	a.mu.Unlock()
	if ended {
		a.k.CheckpointWait.Unregister(key)
	}
}

func (a *attempt) saved() {
	for _, h := range a.hooks {
		if h.Saved != nil {
			h.Saved(a.k)
		}
	}
}

func (a *attempt) finish(cause error, failed bool, after func()) {
	a.mu.Lock()
	if a.ended {
		a.mu.Unlock()
		return
	}
	a.ended = true
	keys := a.keys
	a.mu.Unlock()
	for _, key := range keys {
		a.k.CheckpointWait.Unregister(key)
	}
	defer after()
	if !failed {
		return
	}
	// gVisor refuses an exec hook where one is left from before, so that the next
	// attempt would fail as well.
	a.k.SaveRestoreExecConfig = a.exec
	if a.k.TaskSet().IsExiting() {
		return
	}
	if err := undo(a.k, a.hooks, cause); err != nil {
		log.Warningf("undoing a failed checkpoint: %v", err)
	}
}
