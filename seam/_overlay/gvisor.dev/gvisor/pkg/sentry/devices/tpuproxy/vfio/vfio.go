// Package vfio lets a sandbox use the TPUs of its host through VFIO.
package vfio

import (
	"errors"
	"path"
	"slices"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/devutil"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fdnotifier"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/sync"
	"gvisor.dev/gvisor/pkg/waiter"

	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy/laid"
	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy/remap"
)

const (
	// VFIO_MINOR is the minor number of /dev/vfio/vfio, which is a misc device.
	VFIO_MINOR = 196

	dirName       = "vfio"
	containerPath = dirName + "/vfio"
)

func init() {
	laid.VFIO.OpenGroups = OpenGroups
	laid.VFIO.RestorePlan = RestorePlan
	laid.VFIO.GroupOfNode = GroupOfNode
	laid.VFIO.AddGroup = AddGroup
}

// tpuproxy is what the devices of one kernel share: which of their files are open.
type tpuproxy struct {
	mu      sync.Mutex                           `state:"nosave"`
	openFDs map[vfs.FileDescriptionImpl]struct{} `state:"nosave"`
}

func (t *tpuproxy) trackFD(fd vfs.FileDescriptionImpl) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.openFDs == nil { // after a restore
		t.openFDs = make(map[vfs.FileDescriptionImpl]struct{})
	}
	t.openFDs[fd] = struct{}{}
}

func (t *tpuproxy) untrackFD(fd vfs.FileDescriptionImpl) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.openFDs, fd)
}

// tpuDevice is the device behind the node of an IOMMU group.
type tpuDevice struct {
	mu          sync.Mutex `state:"nosave"`
	minor       uint32
	num         uint32 // number of the group, which names its node on the host
	useDevGofer bool
	tpuproxy    *tpuproxy
	present     bool `state:"nosave"` // num is a group of this host, not of the one that was saved on
}

// group is the number of the group on this host.
func (dev *tpuDevice) group() uint32 {
	dev.mu.Lock()
	defer dev.mu.Unlock()
	if plan := restored.Load(); plan != nil && !dev.present {
		dev.num = plan.Target(dev.num)
	}
	dev.present = true
	return dev.num
}

// Open implements vfs.Device.Open.
func (dev *tpuDevice) Open(ctx context.Context, mnt *vfs.Mount, d *vfs.Dentry, opts vfs.OpenOptions) (*vfs.FileDescription, error) {
	hostFD, containerName, err := openHost(ctx, groupPath(dev.group()), opts.Flags, dev.useDevGofer)
	if err != nil {
		return nil, err
	}
	fd := &tpuFD{hostFD: int32(hostFD), containerName: containerName, device: dev}
	fd.memmapFile.SetFD(hostFD)
	if err := start(ctx, &fd.vfsfd, fd, hostFD, &fd.queue, mnt, d, opts.Flags); err != nil {
		return nil, err
	}
	dev.tpuproxy.trackFD(fd)
	return &fd.vfsfd, nil
}

// vfioDevice is the device behind /dev/vfio/vfio.
type vfioDevice struct {
	useDevGofer bool
	tpuproxy    *tpuproxy
}

// Open implements vfs.Device.Open.
func (dev *vfioDevice) Open(ctx context.Context, mnt *vfs.Mount, d *vfs.Dentry, opts vfs.OpenOptions) (*vfs.FileDescription, error) {
	hostFD, containerName, err := openHost(ctx, containerPath, opts.Flags, dev.useDevGofer)
	if err != nil {
		return nil, err
	}
	fd := &vfioFD{hostFD: int32(hostFD), containerName: containerName, device: dev}
	fd.memmapFile.SetFD(hostFD)
	if err := start(ctx, &fd.vfsfd, fd, hostFD, &fd.queue, mnt, d, opts.Flags); err != nil {
		return nil, err
	}
	dev.tpuproxy.trackFD(fd)
	return &fd.vfsfd, nil
}

// start makes file the description of impl, and lets the host's events reach queue.
// It closes hostFD if it fails.
func start(ctx context.Context, file *vfs.FileDescription, impl vfs.FileDescriptionImpl, hostFD int, queue *waiter.Queue, mnt *vfs.Mount, d *vfs.Dentry, flags uint32) error {
	// The notifier comes first: once the description exists, only its release
	// may close the host's.
	if err := fdnotifier.AddFD(int32(hostFD), queue); err != nil {
		unix.Close(hostFD)
		return err
	}
	err := file.Init(impl, flags, auth.CredentialsFromContext(ctx), mnt, d, &vfs.FileDescriptionOptions{
		UseDentryMetadata: true,
		SpecialFile:       true,
	})
	if err != nil {
		fdnotifier.RemoveFD(int32(hostFD))
		unix.Close(hostFD)
	}
	return err
}

func groupPath(group uint32) string {
	return path.Join(dirName, strconv.FormatUint(uint64(group), 10))
}

func openHost(ctx context.Context, name string, flags uint32, useDevGofer bool) (fd int, containerName string, err error) {
	if !useDevGofer {
		fd, err = openDev(name, flags)
		return fd, "", err
	}
	client := devutil.GoferClientFromContext(ctx)
	if client == nil {
		ctx.Warningf("no gofer to open /dev/%s with", name)
		return -1, "", linuxerr.ENOENT
	}
	fd, err = client.OpenAt(ctx, name, flags)
	return fd, client.ContainerName(), err
}

func openDev(name string, flags uint32) (int, error) {
	return unix.Openat(-1, path.Join("/dev", name), int(flags&unix.O_ACCMODE)|unix.O_NOFOLLOW, 0)
}

// Register makes /dev/vfio/vfio known. It may be called again.
func Register(fs *vfs.VirtualFilesystem, useDevGofer bool) error {
	if fs.IsDeviceRegistered(vfs.CharDevice, linux.MISC_MAJOR, VFIO_MINOR) {
		return nil
	}
	dev := &vfioDevice{useDevGofer: useDevGofer, tpuproxy: new(tpuproxy)}
	return fs.RegisterDevice(vfs.CharDevice, linux.MISC_MAJOR, VFIO_MINOR, dev, deviceOptions())
}

// RegisterTPUDevice makes the node of a group known under a minor number. It may be
// called again, and must be called after Register.
func RegisterTPUDevice(fs *vfs.VirtualFilesystem, minor, deviceNum uint32, useDevGofer bool) error {
	major, err := GetTPUDeviceMajor(fs)
	if err != nil {
		return err
	}
	if fs.IsDeviceRegistered(vfs.CharDevice, major, minor) {
		return nil
	}
	return registerGroup(fs, major, minor, deviceNum, useDevGofer)
}

func registerGroup(fs *vfs.VirtualFilesystem, major, minor, group uint32, useDevGofer bool) error {
	proxy := proxyOf(fs)
	if proxy == nil {
		return errors.New("a VFIO group before /dev/vfio/vfio")
	}
	dev := &tpuDevice{minor: minor, num: group, useDevGofer: useDevGofer, tpuproxy: proxy, present: true}
	return fs.RegisterDevice(vfs.CharDevice, major, minor, dev, deviceOptions())
}

// deviceOptions have no path: every container of the sandbox that starts later would
// have the node, and TPU runtimes open all that there are.
func deviceOptions() *vfs.RegisterDeviceOptions {
	return &vfs.RegisterDeviceOptions{GroupName: dirName}
}

var major struct {
	once  sync.Once
	value uint32
	err   error
}

// GetTPUDeviceMajor gives the major number of the nodes of groups. It is the same
// for every kernel of this process; a restored one keeps the nodes it was saved
// with besides.
func GetTPUDeviceMajor(fs *vfs.VirtualFilesystem) (uint32, error) {
	major.once.Do(func() { major.value, major.err = fs.GetDynamicCharDevMajor() })
	return major.value, major.err
}

func proxyOf(fs *vfs.VirtualFilesystem) *tpuproxy {
	dev, ok := fs.GetRegisteredDevice(vfs.CharDevice, linux.MISC_MAJOR, VFIO_MINOR).(*vfioDevice)
	if !ok {
		return nil
	}
	return dev.tpuproxy
}

// AnyDevicesOpen reports whether a file of this package is open in the sandbox.
func AnyDevicesOpen(fs *vfs.VirtualFilesystem) bool {
	proxy := proxyOf(fs)
	if proxy == nil {
		return false
	}
	proxy.mu.Lock()
	defer proxy.mu.Unlock()
	return len(proxy.openFDs) != 0
}

// IsVFIOFD reports whether impl is a file of this package.
func IsVFIOFD(impl vfs.FileDescriptionImpl) bool {
	switch impl.(type) {
	case *tpuFD, *vfioFD, *pciDeviceFD:
		return true
	}
	return false
}

// OpenGroups are the numbers of the groups that the sandbox itself holds open, in
// ascending order.
func OpenGroups(fs *vfs.VirtualFilesystem) []uint32 {
	proxy := proxyOf(fs)
	if proxy == nil {
		return nil
	}
	proxy.mu.Lock()
	defer proxy.mu.Unlock()
	var groups []uint32
	for impl := range proxy.openFDs {
		if fd, ok := impl.(*tpuFD); ok {
			groups = append(groups, fd.device.group())
		}
	}
	slices.Sort(groups)
	return slices.Compact(groups)
}

// GroupOf is the group that a file holds open.
func GroupOf(impl vfs.FileDescriptionImpl) (group uint32, ok bool) {
	fd, ok := impl.(*tpuFD)
	if !ok {
		return 0, false
	}
	return fd.device.group(), true
}

// restored is the plan of the restore that made the kernel of this process, if any.
var restored atomic.Pointer[remap.Plan]

// SetRestorePlan says what becomes of the devices in the checkpoint that is about
// to be loaded. It must be called before the kernel is, and only once.
func SetRestorePlan(plan *remap.Plan) { restored.Store(plan) }

// RestorePlan is what SetRestorePlan was given, or nil.
func RestorePlan() *remap.Plan { return restored.Load() }

// GroupOfNode is the group that a node leads to, from the numbers of the device.
func GroupOfNode(fs *vfs.VirtualFilesystem, major, minor uint32) (group uint32, ok bool) {
	dev, ok := fs.GetRegisteredDevice(vfs.CharDevice, major, minor).(*tpuDevice)
	if !ok {
		return 0, false
	}
	return dev.group(), true
}

// AddGroup makes the node of one more group known, next to an existing one of the
// same major number, and gives the minor number for it.
func AddGroup(fs *vfs.VirtualFilesystem, major, group uint32) (minor uint32, err error) {
	for minor = group; ; minor++ {
		have, taken := GroupOfNode(fs, major, minor)
		if taken && have == group {
			return minor, nil
		}
		if !taken && !fs.IsDeviceRegistered(vfs.CharDevice, major, minor) {
			return minor, registerGroup(fs, major, minor, group, true)
		}
	}
}
