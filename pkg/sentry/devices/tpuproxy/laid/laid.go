// Package laid has the functions that the seam's files for gVisor's vfio package
// offer to ours. They are filled in by that package's init, so that ours also
// compile without the seam: a runsc built so has to say what is wrong with it.
//
// It may import gVisor's vfs, and remap.
package laid

import (
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy/remap"
)

// VFIO is what gVisor's vfio package offers with the seam laid, and empty without.
var VFIO struct {
	// OpenGroups are the numbers of the groups that the sandbox itself holds open,
	// in ascending order.
	OpenGroups func(fs *vfs.VirtualFilesystem) []uint32

	// RestorePlan says which TPU takes the place of which; it is nil in a sandbox
	// that was not restored, or that had no TPU.
	RestorePlan func() *remap.Plan

	// GroupOfNode is the group that a node leads to, from the numbers of the device.
	GroupOfNode func(fs *vfs.VirtualFilesystem, major, minor uint32) (group uint32, ok bool)

	// AddGroup makes the node of one more group known, next to an existing one of
	// the same major number, and gives the minor number for it.
	AddGroup func(fs *vfs.VirtualFilesystem, major, group uint32) (minor uint32, err error)
}
