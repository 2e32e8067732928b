package control

import (
	"errors"
	"fmt"

	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/pipe"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
)

// maxRuntimes is how many runtimes of one sandbox are asked at the most: several
// times what the largest host has chips for, and little enough to be no burden.
const maxRuntimes = 1024

// A runtime is one pair of pipes to ask over, and the tasks that name it: names
// and pipes are inherited on clone and fork, so there may be several of these.
type runtime struct {
	process *process       // of the first of the tasks
	tasks   []*kernel.Task // by process, then thread ID; the first stands for all
	tid     int32          // of the first task
	fds     tpuwire.ThreadName
	channel *channel
}

// exited reports whether nobody is left who names this runtime.
func (r *runtime) exited() bool {
	for _, t := range r.tasks {
		if t.ExitState() == kernel.TaskExitNone {
			return false
		}
	}
	return true
}

// fail wraps err with who the runtime is.
func (r *runtime) fail(err error) *RuntimeError {
	return &RuntimeError{
		Container: r.process.container,
		PID:       r.process.pid,
		TID:       r.tid,
		Command:   r.process.command,
		Err:       err,
	}
}

// A runtimeFinder turns threads with a control thread's name into runtimes.
type runtimeFinder struct {
	k       *kernel.Kernel
	byPipe  map[*pipe.Pipe]*runtime // under both of its pipes
	found   []*runtime
	tooMany bool
}

// findRuntimes returns the runtimes of the processes, with references to their
// pipes that the caller drops with release.
func findRuntimes(k *kernel.Kernel, holders []*process) ([]*runtime, error) {
	f := &runtimeFinder{k: k, byPipe: map[*pipe.Pipe]*runtime{}}
	for _, p := range holders {
		for _, t := range p.tasks {
			name := t.Name()
			if fds, ok := tpuwire.ParseThreadName(name); ok {
				f.add(p, t, name, fds)
			}
		}
	}
	if f.tooMany {
		release(f.found)
		return nil, fmt.Errorf("%w: more than %d in this sandbox", ErrTooMany, maxRuntimes)
	}
	return f.found, nil
}

func (f *runtimeFinder) add(p *process, t *kernel.Task, name string, fds tpuwire.ThreadName) {
	tid := int32(f.k.RootPIDNamespace().IDOfTask(t))
	ch, err := openChannel(f.k, t, fds)
	if err != nil {
		p.reject(tid, name, err)
		return
	}
	a, b := f.byPipe[ch.requestPipe], f.byPipe[ch.responsePipe]
	switch {
	case a != nil && a == b:
		a.tasks = append(a.tasks, t)
		ch.release()
	case a != nil || b != nil:
		p.reject(tid, name, errors.New("shares one of its pipes with another runtime"))
		ch.release()
	case len(f.found) == maxRuntimes:
		f.tooMany = true
		ch.release()
	default:
		r := &runtime{process: p, tasks: []*kernel.Task{t}, tid: tid, fds: fds, channel: ch}
		f.byPipe[ch.requestPipe], f.byPipe[ch.responsePipe] = r, r
		f.found = append(f.found, r)
	}
}

func release(runtimes []*runtime) {
	for _, r := range runtimes {
		r.channel.release()
	}
}

// unmanaged returns the processes that hold a TPU which no runtime of theirs, nor
// one of a process that they have it from, can be asked to let go of.
func unmanaged(holders []*process, runtimes []*runtime) []*process {
	managed := map[*process]bool{}
	covered := map[*vfs.FileDescription]bool{}
	for _, r := range runtimes {
		managed[r.process] = true
		for file := range r.process.tpus {
			covered[file] = true
		}
	}
	var left []*process
	for _, p := range holders {
		if managed[p] {
			continue
		}
		for file := range p.tpus {
			if !covered[file] {
				left = append(left, p)
				break
			}
		}
	}
	return left
}

// noRuntime says why a process cannot be checkpointed and what usually helps.
func noRuntime(p *process) error {
	err := ErrNoRuntime
	for _, why := range p.rejected {
		err = fmt.Errorf("%w; %s", err, why)
	}
	if len(p.rejected) == 0 {
		err = fmt.Errorf("%w: it has no libtpu control thread; use libtpu 0.0.48 or newer and set LIBTPU_CHECKPOINTING_ENABLED=true in its environment", err)
	}
	return p.fail(err)
}
