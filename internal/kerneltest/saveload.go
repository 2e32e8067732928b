package kerneltest

import (
	"bytes"
	"io"
	"testing"

	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/sentry/checkpoint"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	sentrytime "gvisor.dev/gvisor/pkg/sentry/time"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// Save saves the kernel into memory and leaves it running. The kernel must have
// been started.
func (k *Kernel) Save(tb testing.TB) []byte {
	tb.Helper()
	var image bytes.Buffer
	k.Pause()
	defer k.Unpause()
	k.ReceiveTaskStates()
	if err := k.SaveTo(k.Ctx, noClose{&image}, nil, nil, false, true); err != nil {
		tb.Fatalf("saving the kernel: %.1500v", err)
	}
	return image.Bytes()
}

// Load makes a new kernel from an image that Save made, and starts it.
func Load(tb testing.TB, image []byte) *Kernel {
	tb.Helper()
	if err := once(); err != nil {
		tb.Fatal(err)
	}
	k := &kernel.Kernel{Platform: newPlatform()}
	mf, err := newMemoryFile()
	if err != nil {
		tb.Fatal(err)
	}
	k.SetMemoryFile(mf)
	ctx := context.WithValues(k.SupervisorContext(), map[any]any{
		vfs.CtxRestoreFilesystemFDMap: map[checkpoint.ResourceID]int{},
		pgalloc.CtxMemoryFileMap:      map[checkpoint.ResourceID]*pgalloc.MemoryFile{},
	})
	err = k.LoadFrom(ctx, io.NopCloser(bytes.NewReader(image)), nil, nil, nil,
		sentrytime.NewCalibratedClocks(false), &vfs.CompleteRestoreOptions{}, nil)
	if err != nil {
		tb.Fatalf("loading the kernel: %.1500v", err)
	}
	if err := k.Start(); err != nil {
		tb.Fatalf("starting the loaded kernel: %v", err)
	}
	loaded := &Kernel{Kernel: k, Ctx: k.SupervisorContext()}
	tb.Cleanup(loaded.shutdown)
	return loaded
}

type noClose struct{ io.Writer }

func (noClose) Close() error { return nil }
