package vfio

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fdnotifier"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/devices/tpuproxy/util"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/eventfd"
	"gvisor.dev/gvisor/pkg/sentry/fsutil"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/sync"
	"gvisor.dev/gvisor/pkg/usermem"
	"gvisor.dev/gvisor/pkg/waiter"
)

// pciDeviceFD is an open TPU. One that was open when its sandbox was saved is gone
// after the restore: a device of the host cannot be had again without going through
// its group, and its registers and interrupts would not be what they were.
type pciDeviceFD struct {
	vfsfd vfs.FileDescription
	vfs.FileDescriptionDefaultImpl
	vfs.DentryMetadataFileDescriptionImpl
	vfs.NoLockFD

	hostFD        int32
	deviceAddress string
	containerName string
	queue         waiter.Queue

	mapsMu     sync.Mutex        `state:"nosave"`
	mappings   memmap.MappingSet // protected by mapsMu
	memmapFile fsutil.MmapPreciseFile
	tpuproxy   *tpuproxy
}

// gone reports that this is a file of another life. Loading an image takes the
// host's file from memmapFile, and nothing ever gives it back.
func (fd *pciDeviceFD) gone() bool { return fd.memmapFile.FD() < 0 }

// Release implements vfs.FileDescriptionImpl.Release.
func (fd *pciDeviceFD) Release(context.Context) {
	fd.tpuproxy.untrackFD(fd)
	if fd.gone() {
		return
	}
	fdnotifier.RemoveFD(fd.hostFD)
	fd.queue.Notify(waiter.EventHUp)
	fd.memmapFile.MappableRelease() // closes hostFD once it is not mapped any more
}

// EventRegister implements waiter.Waitable.EventRegister.
func (fd *pciDeviceFD) EventRegister(e *waiter.Entry) error {
	fd.queue.EventRegister(e)
	if fd.gone() {
		return nil
	}
	err := fdnotifier.UpdateFD(fd.hostFD)
	if err != nil {
		fd.queue.EventUnregister(e)
	}
	return err
}

// EventUnregister implements waiter.Waitable.EventUnregister.
func (fd *pciDeviceFD) EventUnregister(e *waiter.Entry) {
	fd.queue.EventUnregister(e)
	if fd.gone() {
		return
	}
	if err := fdnotifier.UpdateFD(fd.hostFD); err != nil {
		panic("no events of a VFIO device: " + err.Error())
	}
}

// Readiness implements waiter.Waitable.Readiness.
func (fd *pciDeviceFD) Readiness(mask waiter.EventMask) waiter.EventMask {
	if fd.gone() {
		return mask & (waiter.EventErr | waiter.EventHUp)
	}
	return fdnotifier.NonBlockingPoll(fd.hostFD, mask)
}

// Epollable implements vfs.FileDescriptionImpl.Epollable.
func (fd *pciDeviceFD) Epollable() bool { return true }

// Ioctl implements vfs.FileDescriptionImpl.Ioctl.
func (fd *pciDeviceFD) Ioctl(ctx context.Context, _ usermem.IO, _ uintptr, args arch.SyscallArguments) (uintptr, error) {
	if fd.gone() {
		return 0, linuxerr.ENODEV
	}
	t := kernel.TaskFromContext(ctx)
	cmd, arg := args[1].Uint(), args[2].Pointer()
	switch cmd {
	case linux.VFIO_DEVICE_GET_INFO:
		return fd.exchange(t, cmd, arg, (*linux.VFIODeviceInfoMin)(nil).SizeBytes())
	case linux.VFIO_DEVICE_GET_REGION_INFO:
		return fd.exchange(t, cmd, arg, (*linux.VFIORegionInfo)(nil).SizeBytes())
	case linux.VFIO_DEVICE_GET_IRQ_INFO:
		return fd.exchange(t, cmd, arg, (*linux.VFIOIrqInfo)(nil).SizeBytes())
	case linux.VFIO_DEVICE_SET_IRQS:
		return fd.setIRQs(ctx, t, arg)
	case linux.VFIO_DEVICE_RESET:
		return util.IOCTLInvoke[uint32, uintptr](fd.hostFD, cmd, 0)
	}
	return 0, linuxerr.ENOSYS
}

// maxExchange is more than any answer of VFIO with all its capabilities.
const maxExchange = 16 << 10

// exchange makes an ioctl whose argument begins with its own size, and is both
// question and answer. least is the size without capabilities.
func (fd *pciDeviceFD) exchange(t *kernel.Task, cmd uint32, arg hostarch.Addr, least int) (uintptr, error) {
	size, err := copyInSize(t, arg)
	if err != nil {
		return 0, err
	}
	if size < least {
		return 0, linuxerr.EINVAL
	}
	buf := make([]byte, min(size, maxExchange))
	if _, err := t.CopyInBytes(arg, buf); err != nil {
		return 0, err
	}
	putSize(buf)
	n, err := util.IOCTLInvokePtrArg[uint32](fd.hostFD, cmd, &buf[0])
	if err != nil {
		return 0, err
	}
	_, err = t.CopyOutBytes(arg, buf)
	return n, err
}

// The size is the first field of all structures that VFIO exchanges. It is read
// apart from the rest, which the sandbox may change at any time, and written over
// what is read then.
func copyInSize(t *kernel.Task, arg hostarch.Addr) (int, error) {
	var field [4]byte
	_, err := t.CopyInBytes(arg, field[:])
	return int(binary.NativeEndian.Uint32(field[:])), err
}

func putSize(buf []byte) { binary.NativeEndian.PutUint32(buf, uint32(len(buf))) }

const (
	maxVectors  = 2048 // of an MSI-X table
	noEventFD   = -1   // in place of an eventfd: no interrupt for this vector
	eventFDSize = 4

	irqFlags = linux.VFIO_IRQ_SET_DATA_TYPE_MASK | linux.VFIO_IRQ_SET_ACTION_TYPE_MASK
)

func (fd *pciDeviceFD) setIRQs(ctx context.Context, t *kernel.Task, arg hostarch.Addr) (uintptr, error) {
	var set linux.VFIOIrqSet
	if _, err := set.CopyIn(t, arg); err != nil {
		return 0, err
	}
	if set.Flags&^irqFlags != 0 || set.Count > maxVectors {
		return 0, linuxerr.EINVAL
	}
	var size int // of the data
	switch set.Flags & linux.VFIO_IRQ_SET_DATA_TYPE_MASK {
	case linux.VFIO_IRQ_SET_DATA_NONE:
	case linux.VFIO_IRQ_SET_DATA_BOOL:
		size = int(set.Count)
	case linux.VFIO_IRQ_SET_DATA_EVENTFD:
		size = int(set.Count) * eventFDSize
	default:
		return 0, linuxerr.EINVAL
	}
	head := set.SizeBytes()
	if int(set.Argsz) < head+size {
		return 0, linuxerr.EINVAL
	}
	buf := make([]byte, head+size)
	set.MarshalUnsafe(buf)
	putSize(buf)
	data := buf[head:]
	if _, err := t.CopyInBytes(arg+hostarch.Addr(head), data); err != nil {
		return 0, err
	}
	if set.Flags&linux.VFIO_IRQ_SET_DATA_EVENTFD != 0 {
		release, err := hostEventFDs(ctx, t, data)
		defer release()
		if err != nil {
			return 0, err
		}
	}
	return util.IOCTLInvokePtrArg[uint32](fd.hostFD, linux.VFIO_DEVICE_SET_IRQS, &buf[0])
}

// hostEventFDs replaces the sandbox's eventfds in data by the host's, which are good
// until release is called.
func hostEventFDs(ctx context.Context, t *kernel.Task, data []byte) (release func(), err error) {
	var held []*vfs.FileDescription
	release = func() {
		for _, file := range held {
			file.DecRef(ctx)
		}
	}
	for ; len(data) > 0; data = data[eventFDSize:] {
		number := int32(binary.NativeEndian.Uint32(data))
		if number == noEventFD {
			continue
		}
		file := t.GetFile(number)
		if file == nil {
			return release, linuxerr.EBADF
		}
		held = append(held, file)
		events, ok := file.Impl().(*eventfd.EventFileDescription)
		if !ok {
			return release, linuxerr.EINVAL
		}
		host, err := events.HostFD()
		if err != nil {
			return release, err
		}
		binary.NativeEndian.PutUint32(data, uint32(host))
	}
	return release, nil
}

// maxTransfer bounds the memory for one read or write of a region, which the sandbox
// asks for; what is more is a short read or write.
const maxTransfer = 1 << 20

// PRead implements vfs.FileDescriptionImpl.PRead.
func (fd *pciDeviceFD) PRead(ctx context.Context, dst usermem.IOSequence, offset int64, _ vfs.ReadOptions) (int64, error) {
	if fd.gone() {
		return 0, linuxerr.ENODEV
	}
	if offset < 0 {
		return 0, linuxerr.EINVAL
	}
	buf := make([]byte, min(dst.NumBytes(), maxTransfer))
	n, err := unix.Pread(int(fd.hostFD), buf, offset)
	if err != nil {
		return 0, err
	}
	done, err := dst.CopyOut(ctx, buf[:n])
	return int64(done), err
}

// PWrite implements vfs.FileDescriptionImpl.PWrite.
func (fd *pciDeviceFD) PWrite(ctx context.Context, src usermem.IOSequence, offset int64, _ vfs.WriteOptions) (int64, error) {
	if fd.gone() {
		return 0, linuxerr.ENODEV
	}
	if offset < 0 {
		return 0, linuxerr.EINVAL
	}
	buf := make([]byte, min(src.NumBytes(), maxTransfer))
	n, err := src.CopyIn(ctx, buf)
	if n == 0 {
		return 0, err
	}
	n, err = unix.Pwrite(int(fd.hostFD), buf[:n], offset)
	return int64(max(n, 0)), err
}
