package control

import (
	"maps"
	"slices"

	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/api"
)

// processes lists who holds a TPU, or has held one that it was asked to let go of. It
// asks nobody anything, so that it can be called at any time.
func (d *Desk) processes(k *kernel.Kernel) ([]api.Process, error) {
	holders := append(findHolders(k), d.askedBefore(k)...)
	holders = holders[:min(len(holders), maxRuntimes)]
	runtimes, err := findRuntimes(k, holders)
	if err != nil {
		return nil, err
	}
	defer release(runtimes)
	without := map[*process]bool{}
	for _, p := range unmanaged(holders, runtimes) {
		without[p] = true
	}
	all := make([]api.Process, 0, len(holders))
	for _, p := range holders {
		entry := api.Process{Container: p.container, PID: p.pid, Command: validText(p.command), Devices: devicePaths(k, p)}
		for _, r := range runtimes {
			if r.process == p {
				entry.Threads = append(entry.Threads, d.thread(k, r))
			}
		}
		switch {
		case without[p]:
			entry.Problem = noRuntime(p).Error()
		case len(entry.Threads) == 0 && len(p.tpus) == 0:
			continue // was asked once, and has neither a TPU nor a runtime now
		case len(entry.Threads) == 0:
			entry.Inherited = true
		}
		all = append(all, entry)
	}
	return all, nil
}

// askedBefore returns the processes that have no TPU open, and a thread that was asked
// before.
func (d *Desk) askedBefore(k *kernel.Kernel) []*process {
	tables := tableCache{k: k, tpus: map[*kernel.FDTable]map[*vfs.FileDescription]bool{}}
	ids := k.RootPIDNamespace()
	var found []*process
	for _, g := range collect(k) {
		asked, holds := false, false
		for _, t := range g.tasks {
			asked = asked || d.knows(int32(ids.IDOfTask(t)))
			holds = holds || len(tables.of(t)) > 0
		}
		if asked && !holds {
			found = append(found, newProcess(k, g, nil))
		}
	}
	return found
}

func (d *Desk) knows(tid int32) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.known[tid]
	return ok
}

func (d *Desk) thread(k *kernel.Kernel, r *runtime) api.Thread {
	sctx := k.SupervisorContext()
	request, _ := inode(sctx, r.channel.requestFile)
	response, _ := inode(sctx, r.channel.responseFile)
	t := api.Thread{
		TID: r.tid, RequestFD: r.fds.RequestFD, ResponseFD: r.fds.ResponseFD,
		RequestPipe: request, ResponsePipe: response,
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if known, ok := d.known[r.tid]; ok {
		t.State, t.StateTime, t.Topology = known.state, known.when, known.topology
	}
	return t
}

// maxPaths is how many open TPUs of one process are named.
const maxPaths = 64

// devicePaths names the process' open TPUs. A file that is closed meanwhile is left
// out.
func devicePaths(k *kernel.Kernel, p *process) []string {
	sctx := k.SupervisorContext()
	paths := map[string]bool{}
	for file := range p.tpus {
		if len(paths) == maxPaths {
			break
		}
		if !file.TryIncRef() {
			continue
		}
		paths[devicePath(k, p, file)] = true
		file.DecRef(sctx)
	}
	return slices.Sorted(maps.Keys(paths))
}

func devicePath(k *kernel.Kernel, p *process, file *vfs.FileDescription) string {
	sctx := k.SupervisorContext()
	mounts := p.group.Leader().MountNamespace()
	if mounts == nil || !mounts.TryIncRef() {
		return "?"
	}
	defer mounts.DecRef(sctx)
	root := mounts.Root(sctx)
	defer root.DecRef(sctx)
	path, err := k.VFS().PathnameWithDeleted(sctx, root, file.VirtualDentry())
	if err != nil {
		return "?"
	}
	return validText(path)
}
