package tpuproxy_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/eventfd"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"tpuvisor.dev/tpuvisor/internal/kerneltest"
)

const eventsFD = 7

// TestInterruptsOverSave: an interrupt that is pending at a save is there afterwards,
// in the sandbox that goes on and in the restored one, once.
func TestInterruptsOverSave(t *testing.T) {
	for _, semaphore := range []bool{false, true} {
		k := kerneltest.Boot(t)
		leader := k.Process(t, "runtime", "c").Leader()
		file, err := eventfd.New(k.Ctx, k.VFS(), 2, semaphore, 0)
		if err != nil {
			t.Fatal(err)
		}
		k.Install(t, leader, eventsFD, file)
		host := hostEvents(t, file)
		if _, err := unix.Write(host, binary.NativeEndian.AppendUint64(nil, 3)); err != nil {
			t.Fatal(err)
		}
		if err := k.Start(); err != nil {
			t.Fatal(err)
		}
		image := k.Save(t)
		if got := pending(t, host, semaphore); got != 5 {
			t.Errorf("semaphore %v: %d pending where the sandbox goes on, want 5", semaphore, got)
		}
		restored := kerneltest.Load(t, image)
		if got := pending(t, hostEvents(t, find(t, restored)), semaphore); got != 5 {
			t.Errorf("semaphore %v: %d pending after the restore, want 5", semaphore, got)
		}
	}
}

func hostEvents(t *testing.T, file *vfs.FileDescription) int {
	t.Helper()
	fd, err := file.Impl().(*eventfd.EventFileDescription).HostFD()
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// pending takes all that is pending.
func pending(t *testing.T, fd int, semaphore bool) (n uint64) {
	t.Helper()
	for {
		buf := make([]byte, 8)
		_, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EAGAIN) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
		v := binary.NativeEndian.Uint64(buf)
		if semaphore && v != 1 {
			t.Fatalf("a semaphore gives %d at a time", v)
		}
		n += v
	}
}

func find(t *testing.T, k *kerneltest.Kernel) (file *vfs.FileDescription) {
	t.Helper()
	for _, task := range k.TaskSet().Root.Tasks() {
		task.WithMuLocked(func(task *kernel.Task) {
			if table := task.FDTable(); table != nil {
				file, _ = table.Get(eventsFD)
			}
		})
	}
	if file == nil {
		t.Fatal("the eventfd is lost")
	}
	t.Cleanup(func() { file.DecRef(k.Ctx) })
	return file
}
