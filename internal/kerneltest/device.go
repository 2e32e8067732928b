package kerneltest

import (
	gocontext "context"
	"testing"

	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/state"
)

// Device is an open file that stands in for an accelerator. It satisfies
// tpuproxy.Device, and is saved with the kernel.
type Device struct {
	vfsfd vfs.FileDescription
	vfs.FileDescriptionDefaultImpl
	vfs.DentryMetadataFileDescriptionImpl
	vfs.NoLockFD

	group uint32
}

// TPUDevice implements tpuproxy.Device.
func (*Device) TPUDevice() {}

// Release implements vfs.FileDescriptionImpl.
func (*Device) Release(context.Context) {}

// StateTypeName implements state.Type.
func (*Device) StateTypeName() string { return "internal/kerneltest.Device" }

// StateFields implements state.Type.
func (*Device) StateFields() []string {
	return []string{"vfsfd", "FileDescriptionDefaultImpl", "DentryMetadataFileDescriptionImpl", "NoLockFD", "group"}
}

// StateSave implements state.Type.
func (d *Device) StateSave(s state.Sink) {
	s.Save(0, &d.vfsfd)
	s.Save(1, &d.FileDescriptionDefaultImpl)
	s.Save(2, &d.DentryMetadataFileDescriptionImpl)
	s.Save(3, &d.NoLockFD)
	s.Save(4, &d.group)
}

// StateLoad implements state.Type.
func (d *Device) StateLoad(_ gocontext.Context, s state.Source) {
	s.Load(0, &d.vfsfd)
	s.Load(1, &d.FileDescriptionDefaultImpl)
	s.Load(2, &d.DentryMetadataFileDescriptionImpl)
	s.Load(3, &d.NoLockFD)
	s.Load(4, &d.group)
}

func init() { state.Register((*Device)(nil)) }

// Device opens a stand-in device; the caller owns the reference.
func (k *Kernel) Device(tb testing.TB, group uint32) *vfs.FileDescription {
	tb.Helper()
	vd := k.VFS().NewAnonVirtualDentry("tpu")
	defer vd.DecRef(k.Ctx)
	d := &Device{group: group}
	if err := d.vfsfd.Init(d, 0, k.creds(), vd.Mount(), vd.Dentry(), &vfs.FileDescriptionOptions{}); err != nil {
		tb.Fatal(err)
	}
	return &d.vfsfd
}
