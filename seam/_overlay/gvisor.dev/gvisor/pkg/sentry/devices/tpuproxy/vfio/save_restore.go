package vfio

import (
	goContext "context"
	"sync/atomic"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/devutil"
	"gvisor.dev/gvisor/pkg/fdnotifier"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
)

// Nothing is closed or changed by a save: the sandbox may go on running, with its
// files, mappings and DMA. What the image holds of the host's files is worthless
// there, and is replaced when the image is loaded.

func (fd *tpuFD) beforeSave()       {}
func (fd *vfioFD) beforeSave()      {}
func (fd *pciDeviceFD) beforeSave() {} // loaded as gone: see there

func (fd *tpuFD) afterLoad(ctx goContext.Context) {
	group := fd.device.num
	if plan := restored.Load(); plan != nil {
		if present, ok := plan.Successor(group); ok {
			group = present
		}
	}
	// The node keeps leading to where its name says, which may be elsewhere.
	fd.device = &tpuDevice{
		minor: fd.device.minor, num: group, useDevGofer: fd.device.useDevGofer,
		tpuproxy: fd.device.tpuproxy, present: true,
	}
	hostFD, open := reopen(ctx, groupPath(group), fd.device.useDevGofer, fd.containerName, fd.vfsfd.StatusFlags())
	fd.hostFD = hostFD
	notify(fdnotifier.AddFD(hostFD, &fd.queue))
	fd.memmapFile.SetFD(int(hostFD))
	if open {
		fd.device.tpuproxy.trackFD(fd)
	}
}

func (fd *vfioFD) afterLoad(ctx goContext.Context) {
	hostFD, open := reopen(ctx, containerPath, fd.device.useDevGofer, fd.containerName, fd.vfsfd.StatusFlags())
	fd.hostFD = hostFD
	notify(fdnotifier.AddFD(hostFD, &fd.queue))
	fd.memmapFile.SetFD(int(hostFD))
	if open {
		fd.device.tpuproxy.trackFD(fd)
	}
}

func notify(err error) {
	if err != nil {
		panic("no events of a restored VFIO file: " + err.Error())
	}
}

// reopen opens a file of the host again. If that fails, the sandbox is restored all
// the same: it gets a file in its place that answers every ioctl with ENOTTY, and that
// does not count as open.
func reopen(ctx goContext.Context, name string, useDevGofer bool, containerName string, flags uint32) (hostFD int32, open bool) {
	fd, err := reopenHost(ctx, name, useDevGofer, containerName, flags)
	if err == nil {
		return int32(fd), true
	}
	log.Warningf("/dev/%s, which was open when the sandbox was saved, cannot be opened: %v; using it will fail", name, err)
	standIn, _, errno := unix.Syscall(unix.SYS_EVENTFD2, 0, linux.EFD_NONBLOCK, 0)
	if errno != 0 {
		panic("no file in place of /dev/" + name + ": " + errno.Error())
	}
	return int32(standIn), false
}

func reopenHost(ctx goContext.Context, name string, useDevGofer bool, containerName string, flags uint32) (int, error) {
	if !useDevGofer {
		return openDev(name, flags)
	}
	provider := devutil.GoferClientProviderFromContext(ctx)
	if provider == nil {
		return -1, unix.ENODEV
	}
	client := provider.GetDevGoferClient(containerName)
	if client == nil {
		return -1, unix.ENODEV
	}
	return client.OpenAt(ctx.(context.Context), name, flags)
}

// memoryGroups are the ids of the memory cgroups of the sandbox, at the last call of
// KeepDMA.
var memoryGroups atomic.Pointer[map[uint32]struct{}]

// KeepDMA makes sure that a save does not take away the pages under a DMA mapping.
// Saving gives back to the host those pages of the sandbox's memory that hold zeroes
// and are not known to be in use. The device would go on with the old page, and the
// sandbox would get a new one. Pages that the host has in memory, as it has all that
// a device can reach, are in use once they have been counted.
//
// It is called before the sandbox is paused for a save; what is mapped after that is
// counted when the mapped devices are made ready.
func KeepDMA(k *kernel.Kernel) {
	if !AnyDevicesOpen(k.VFS()) {
		return
	}
	groups := map[uint32]struct{}{0: {}}
	for _, t := range k.TaskSet().Root.Tasks() {
		groups[pgalloc.MemoryCgroupIDFromContext(t.AsyncContext())] = struct{}{}
	}
	memoryGroups.Store(&groups)
	count(k)
}

func count(k *kernel.Kernel) {
	groups := memoryGroups.Load()
	if k == nil || groups == nil {
		return
	}
	if err := k.MemoryFile().UpdateUsage(*groups); err != nil {
		log.Warningf("memory under DMA may be taken away by the save: %v", err)
	}
}
