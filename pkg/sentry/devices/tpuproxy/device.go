// Package tpuproxy knows the sandbox's TPUs: which open files are TPUs, which
// IOMMU groups they belong to, whether a group is free, and what they become
// after a restore.
//
// It may import gVisor's vfs and device packages, and nothing else of this module
// but its own sub-packages.
package tpuproxy

import (
	"reflect"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/devices/tpuproxy/vfio"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// Device is implemented by files other than gVisor's own that count as an open
// TPU.
type Device interface {
	vfs.FileDescriptionImpl
	TPUDevice()
}

const gvisorTPU = "gvisor.dev/gvisor/pkg/sentry/devices/tpuproxy/"

// typeNames are gVisor's types for the open files of a TPU: a VFIO group, a VFIO
// device, and /dev/accel* of a TPU v4. They are not exported, and gVisor's own
// test for the first two also takes in /dev/vfio/vfio, which by itself is no TPU.
var typeNames = [...]struct{ pkg, name string }{
	{gvisorTPU + "vfio", "tpuFD"},
	{gvisorTPU + "vfio", "pciDeviceFD"},
	{gvisorTPU + "accel", "accelFD"},
}

// IsTPU reports whether an open file is a TPU. It takes no lock.
func IsTPU(file *vfs.FileDescription) bool {
	impl := file.Impl()
	if _, ok := impl.(Device); ok {
		return true
	}
	t := reflect.TypeOf(impl)
	if t == nil || t.Kind() != reflect.Pointer {
		return false
	}
	t = t.Elem()
	for _, known := range typeNames {
		if t.Name() == known.name && t.PkgPath() == known.pkg {
			return true
		}
	}
	return false
}

// maxAccel is more than the /dev/accel* of any host: a TPU v4 host has four.
const maxAccel = 64

// MayBeOpen reports whether a TPU may be open anywhere in the sandbox. It takes
// no walk of the tasks: gVisor counts the open VFIO files. It does not count
// those of /dev/accel*, so a sandbox that has any of these always may.
func MayBeOpen(fs *vfs.VirtualFilesystem) bool {
	if vfio.AnyDevicesOpen(fs) {
		return true
	}
	for minor := range uint32(maxAccel) {
		if fs.IsDeviceRegistered(vfs.CharDevice, linux.ACCEL_MAJOR, minor) {
			return true
		}
	}
	return false
}
