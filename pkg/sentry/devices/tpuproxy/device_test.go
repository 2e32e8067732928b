package tpuproxy_test

import (
	"testing"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/devices/tpuproxy/accel"

	"tpuvisor.dev/tpuvisor/internal/kerneltest"
	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy"
)

func TestIsTPU(t *testing.T) {
	k := kerneltest.Boot(t)
	device := k.Device(t, 0)
	defer device.DecRef(k.Ctx)
	r, w := k.Pipe(t)
	defer r.DecRef(k.Ctx)
	defer w.DecRef(k.Ctx)
	file := k.Open(t, "f", linux.O_CREAT|linux.O_RDWR)
	defer file.DecRef(k.Ctx)
	if !tpuproxy.IsTPU(device) {
		t.Error("a device is no TPU")
	}
	if tpuproxy.IsTPU(r) || tpuproxy.IsTPU(w) || tpuproxy.IsTPU(file) {
		t.Error("a pipe or a file is a TPU")
	}
}

func TestMayBeOpen(t *testing.T) {
	k := kerneltest.Boot(t)
	if tpuproxy.MayBeOpen(k.VFS()) {
		t.Error("a sandbox without a TPU device may have one open")
	}
	if err := accel.RegisterTPUDevice(k.VFS(), 3, false); err != nil {
		t.Fatal(err)
	}
	if !tpuproxy.MayBeOpen(k.VFS()) {
		t.Error("a sandbox with /dev/accel3 can have none open")
	}
}
