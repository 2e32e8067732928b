// Package accel lets a sandbox use TPU v4 chips of its host, which are /dev/accel*.
//
// This file stands in for gVisor's of this name for one difference: the device of a
// chip can be saved. gVisor's cannot, for its mutex, so that no sandbox with such a
// chip can be checkpointed.
package accel

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	gvcontext "gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/devutil"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fdnotifier"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/state"
)

// mutex is a mutex that is saved as one that nobody holds.
type mutex struct{ sync.Mutex }

// StateTypeName implements state.Type.
func (*mutex) StateTypeName() string { return "pkg/sentry/devices/tpuproxy/accel.mutex" }

// StateFields implements state.Type.
func (*mutex) StateFields() []string { return nil }

// StateSave implements state.SaverLoader.
func (*mutex) StateSave(state.Sink) {}

// StateLoad implements state.SaverLoader.
func (*mutex) StateLoad(context.Context, state.Source) {}

func init() { state.Register((*mutex)(nil)) }

// accelDevice is the device behind /dev/accel*. mu guards all but the first two of
// the other fields.
type accelDevice struct {
	mu           mutex
	minor        uint32
	lite         bool
	openWriteFDs uint32
	devAddrSet   DevAddrSet
	owner        *kernel.ThreadGroup
}

// Open implements vfs.Device.Open.
func (dev *accelDevice) Open(ctx gvcontext.Context, mnt *vfs.Mount, d *vfs.Dentry, opts vfs.OpenOptions) (*vfs.FileDescription, error) {
	dev.mu.Lock()
	defer dev.mu.Unlock()
	owner := dev.owner
	if owner == nil {
		t := kernel.TaskFromContext(ctx)
		if t == nil {
			return nil, linuxerr.ESRCH
		}
		owner = t.ThreadGroup()
	}
	client := devutil.GoferClientFromContext(ctx)
	if client == nil {
		ctx.Warningf("no gofer to open /dev/accel%d with", dev.minor)
		return nil, linuxerr.ENOENT
	}
	hostFD, err := client.OpenAt(ctx, fmt.Sprintf("accel%d", dev.minor), opts.Flags)
	if err != nil {
		return nil, err
	}
	fd := &accelFD{hostFD: int32(hostFD), device: dev}
	fd.memmapFile.SetFD(hostFD)
	// The notifier comes first: once the description exists, only its release may
	// close the host's.
	if err := fdnotifier.AddFD(fd.hostFD, &fd.queue); err != nil {
		unix.Close(hostFD)
		return nil, err
	}
	err = fd.vfsfd.Init(fd, opts.Flags, auth.CredentialsFromContext(ctx), mnt, d, &vfs.FileDescriptionOptions{
		UseDentryMetadata: true,
		SpecialFile:       true,
	})
	if err != nil {
		fdnotifier.RemoveFD(fd.hostFD)
		unix.Close(hostFD)
		return nil, err
	}
	if vfs.MayWriteFileWithOpenFlags(opts.Flags) {
		dev.openWriteFDs++
	}
	dev.owner = owner
	return &fd.vfsfd, nil
}

// RegisterTPUDevice makes /dev/accel* of that minor number known. lite is for chips
// of the kind v4i.
func RegisterTPUDevice(fs *vfs.VirtualFilesystem, minor uint32, lite bool) error {
	if fs.IsDeviceRegistered(vfs.CharDevice, linux.ACCEL_MAJOR, minor) {
		return nil
	}
	dev := &accelDevice{minor: minor, lite: lite}
	return fs.RegisterDevice(vfs.CharDevice, linux.ACCEL_MAJOR, minor, dev, &vfs.RegisterDeviceOptions{GroupName: "accel"})
}
