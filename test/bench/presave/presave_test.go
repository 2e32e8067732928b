package presave

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"gvisor.dev/gvisor/pkg/log"
	gvisorcontrol "gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/state"

	"tpuvisor.dev/tpuvisor/internal/kerneltest"
	"tpuvisor.dev/tpuvisor/pkg/sentry/control"
	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy"
	"tpuvisor.dev/tpuvisor/pkg/sentry/savehook"
)

// The sizes; the usual ones are small.
var (
	processes    = flag.Int("processes", 3, "scan: how many processes there are")
	threads      = flag.Int("threads", 4, "scan: threads of each process")
	files        = flag.Int("files", 10, "scan: open files of each process")
	crowdThreads = flag.Int("crowd-threads", 20, "crowd: threads of the process with the TPU")
	crowdFiles   = flag.Int("crowd-files", 50, "crowd: its open files")
)

// Without the seam nobody calls what is registered here.
func TestMain(m *testing.M) {
	savehook.Register(control.NewDesk(&control.Plane{Devices: control.Devices{MayBeOpen: tpuproxy.MayBeOpen}}).Hooks())
	os.Exit(m.Run())
}

func BenchmarkPreSave(b *testing.B) {
	b.Run("scan", func(b *testing.B) {
		k := boot(b)
		makeTPU(b, k)
		for range *processes {
			tg := k.Process(b, "process", "c1")
			fill(b, k, tg, *threads, *files)
		}
		measure(b, k)
	})
	b.Run("crowd", func(b *testing.B) {
		k := boot(b)
		r := newRuntime(b, k, makeTPU(b, k))
		fill(b, k, r.process, *crowdThreads, *crowdFiles)
		measure(b, k)
	})
}

// boot boots a kernel that logs to a file, as that of a sandbox does.
func boot(b *testing.B) *kerneltest.Kernel {
	b.Helper()
	k := kerneltest.Boot(b)
	f, err := os.Create(filepath.Join(b.TempDir(), "log"))
	if err != nil {
		b.Fatal(err)
	}
	log.SetTarget(&log.GoogleEmitter{Writer: &log.Writer{Next: f}})
	log.SetLevel(log.Info)
	b.Cleanup(func() {
		log.SetTarget(&log.GoogleEmitter{Writer: &log.Writer{Next: os.Stderr}})
		f.Close()
	})
	return k
}

// fill gives a process so many threads and open files.
func fill(b *testing.B, k *kerneltest.Kernel, tg *kernel.ThreadGroup, threads, files int) {
	b.Helper()
	for range threads - 1 {
		k.Thread(b, tg, "worker", nil)
	}
	r, w := k.Pipe(b)
	w.DecRef(k.Ctx)
	for i := range files {
		r.IncRef()
		k.Install(b, tg.Leader(), int32(firstFree+i), r)
	}
	r.DecRef(k.Ctx)
}

// measure times the pre-save, and brings everything back after each.
func measure(b *testing.B, k *kerneltest.Kernel) {
	b.Helper()
	s := &gvisorcontrol.State{Kernel: k.Kernel}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		b.StopTimer()
		// What comes right after the TPUs is to fail: a hook is set already.
		k.SaveRestoreExecConfig = &kernel.SaveRestoreExecConfig{}
		hook := &gvisorcontrol.SaveRestoreExecOpts{Argv: "one more"}
		b.StartTimer()
		err := s.SaveWithOpts(&state.SaveOpts{}, hook)
		b.StopTimer()
		k.SaveRestoreExecConfig = nil
		if err == nil || err.Error() != "failed to configure save/restore binary: save/restore binary is already set" {
			b.Fatalf("the pre-save failed: %v", err)
		}
		k.OnCheckpointAttempt(nil) // it counts as saved
		// As of somebody else, so that it waits for the end of the attempt.
		resumed := make(chan error)
		go func() { resumed <- gvisorcontrol.PostResume(k.Kernel, nil) }()
		if err := <-resumed; err != nil {
			b.Fatalf("the resume failed: %v", err)
		}
	}
}
