package control

import (
	"cmp"
	"fmt"
	"slices"

	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy"
)

// A process is a thread group that holds a TPU.
type process struct {
	group     *kernel.ThreadGroup
	tasks     []*kernel.Task // that had not exited, by thread ID
	pid       int32
	container string
	command   string

	// tpus are the open files that are TPUs. They are compared and never used, so
	// no reference is held.
	tpus map[*vfs.FileDescription]bool

	// rejected says why a thread with a control thread's name is no runtime, for
	// the first few of them.
	rejected []string
}

// maxRejected is how many threads that are no runtime an error tells about.
const maxRejected = 3

func (p *process) reject(tid int32, name string, why error) {
	if len(p.rejected) < maxRejected {
		p.rejected = append(p.rejected, fmt.Sprintf("thread %d %s: %v", tid, quoteCommand(name), why))
	}
}

func (p *process) fail(err error) *RuntimeError {
	return &RuntimeError{Container: p.container, PID: p.pid, Command: p.command, Err: err}
}

// group is what the walk collects under the task set's lock.
type group struct {
	tg    *kernel.ThreadGroup
	tasks []*kernel.Task
}

// collect lists the sandbox's thread groups and their tasks. Nothing is asked of
// them under the task set's lock: most of what a task can say takes that lock
// again, and two read locks with a clone waiting between them are a deadlock.
func collect(k *kernel.Kernel) []group {
	var all []group
	k.TaskSet().ForEachThreadGroup(func(tg *kernel.ThreadGroup, _ *kernel.Task) {
		g := group{tg: tg}
		tg.ForEachTaskLocked(func(t *kernel.Task) bool {
			if t.ExitState() == kernel.TaskExitNone {
				g.tasks = append(g.tasks, t)
			}
			return true
		})
		if len(g.tasks) > 0 {
			all = append(all, g)
		}
	})
	return all
}

// findHolders returns the processes of which any thread has a TPU open, by process
// ID.
func findHolders(k *kernel.Kernel) []*process {
	tables := tableCache{k: k, tpus: map[*kernel.FDTable]map[*vfs.FileDescription]bool{}}
	var holders []*process
	for _, g := range collect(k) {
		tpus := map[*vfs.FileDescription]bool{}
		for _, t := range g.tasks {
			for file := range tables.of(t) {
				tpus[file] = true
			}
		}
		if len(tpus) > 0 {
			holders = append(holders, newProcess(k, g, tpus))
		}
	}
	slices.SortFunc(holders, func(a, b *process) int { return cmp.Compare(a.pid, b.pid) })
	return holders
}

func newProcess(k *kernel.Kernel, g group, tpus map[*vfs.FileDescription]bool) *process {
	leader := g.tg.Leader()
	ids := k.RootPIDNamespace()
	p := &process{
		group:     g.tg,
		tasks:     g.tasks,
		pid:       int32(ids.IDOfThreadGroup(g.tg)),
		container: leader.ContainerID(),
		command:   leader.Name(),
		tpus:      tpus,
	}
	tids := make(map[*kernel.Task]kernel.ThreadID, len(g.tasks))
	for _, t := range g.tasks {
		tids[t] = ids.IDOfTask(t)
	}
	slices.SortFunc(p.tasks, func(a, b *kernel.Task) int { return cmp.Compare(tids[a], tids[b]) })
	return p
}

// A tableCache remembers which TPUs an FD table holds: threads share their tables,
// and some processes do too.
type tableCache struct {
	k    *kernel.Kernel
	tpus map[*kernel.FDTable]map[*vfs.FileDescription]bool
}

func (c *tableCache) of(t *kernel.Task) map[*vfs.FileDescription]bool {
	table := tableOf(t)
	if table == nil {
		return nil
	}
	sctx := c.k.SupervisorContext()
	defer table.DecRef(sctx)
	tpus, ok := c.tpus[table]
	if ok {
		return tpus
	}
	// ForEach wants a lock that is not to be had here: the guest goes on.
	for _, fd := range table.GetFDs(sctx) {
		file, _ := table.Get(fd)
		if file == nil {
			continue
		}
		if tpuproxy.IsTPU(file) {
			if tpus == nil {
				tpus = map[*vfs.FileDescription]bool{}
			}
			tpus[file] = true
		}
		file.DecRef(sctx)
	}
	c.tpus[table] = tpus
	return tpus
}

// tableOf returns the task's FD table with a reference, or nil if the task has
// given it up: the table of a task that has exited is still there, without
// references.
func tableOf(t *kernel.Task) (table *kernel.FDTable) {
	t.WithMuLocked(func(t *kernel.Task) {
		if fds := t.FDTable(); fds != nil && fds.TryIncRef() {
			table = fds
		}
	})
	return table
}

// openFile returns the file at fd in the task's own table, with a reference, or
// nil.
func openFile(k *kernel.Kernel, t *kernel.Task, fd int32) *vfs.FileDescription {
	table := tableOf(t)
	if table == nil {
		return nil
	}
	defer table.DecRef(k.SupervisorContext())
	file, _ := table.Get(fd)
	return file
}
