package control

import (
	"fmt"
	"testing"

	"gvisor.dev/gvisor/pkg/sentry/kernel"

	"tpuvisor.dev/tpuvisor/internal/kerneltest"
	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// The comparison with gVisor's own is in test/bench.

// bystanders makes processes of ten threads that hold no TPU.
func bystanders(tb testing.TB, k *kerneltest.Kernel, processes int) {
	tb.Helper()
	for range processes {
		tg := k.Process(tb, "bystander", "c1")
		for range 9 {
			k.Thread(tb, tg, "worker", nil)
		}
	}
}

func TestPreSave_NoTPUNoWalk(t *testing.T) {
	k := kerneltest.Boot(t)
	bystanders(t, k, 20)
	p := &Plane{}
	allocs := testing.AllocsPerRun(100, func() {
		if err := p.PreSave(k.Kernel); err != nil {
			t.Fatal(err)
		}
	})
	// A walk would have to keep what it finds somewhere.
	if allocs != 0 {
		t.Errorf("without a TPU a pre-save took %v allocations, want none", allocs)
	}
}

func BenchmarkPreSave_NoTPU(b *testing.B) {
	for _, processes := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("tasks=%d", 10*processes), func(b *testing.B) {
			k := kerneltest.Boot(b)
			bystanders(b, k, processes)
			p := &Plane{}
			b.ReportAllocs()
			for b.Loop() {
				if err := p.PreSave(k.Kernel); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkPreSave_Crowd is one runtime among many threads and open files.
func BenchmarkPreSave_Crowd(b *testing.B) {
	for _, threads := range []int{20, 200, 2000} {
		b.Run(fmt.Sprintf("threads=%d", threads), func(b *testing.B) {
			w := newWorld(b)
			g := w.guest(b, "crowd")
			for range threads {
				w.k.Thread(b, g.tg, "worker", nil)
			}
			openMany(b, w.k, g.tg.Leader(), 5*threads)
			w.preSaves(b, g)
		})
	}
}

func openMany(b *testing.B, k *kerneltest.Kernel, t *kernel.Task, files int) {
	b.Helper()
	r, w := k.Pipe(b)
	w.DecRef(k.Ctx)
	defer r.DecRef(k.Ctx)
	for i := range files {
		r.IncRef()
		k.Install(b, t, int32(16+i), r)
	}
}

// BenchmarkPreSave_Runtimes is any number of processes with one runtime each, that
// answer at once.
func BenchmarkPreSave_Runtimes(b *testing.B) {
	for _, n := range []int{1, 8, 64, 256} {
		b.Run(fmt.Sprintf("runtimes=%d", n), func(b *testing.B) {
			w := newWorld(b)
			guests := make([]*guest, n)
			for i := range guests {
				guests[i] = w.guest(b, fmt.Sprintf("runtime%d", i))
			}
			w.preSaves(b, guests...)
		})
	}
}

// preSaves times the pre-save, and brings everybody back after each.
func (w *world) preSaves(b *testing.B, guests ...*guest) {
	b.Helper()
	w.open()
	defer w.close()
	for _, g := range guests {
		g.play(ok)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if err := w.plane.PreSave(w.k.Kernel); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := w.plane.PostResume(w.k.Kernel); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkPreSave_Drip is runtimes that answer with the largest frame, byte by byte.
// Of one answer: what is allocated is what the sentry can be made to hold, twice the
// frame at the most, and some more for the error.
func BenchmarkPreSave_Drip(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprintf("runtimes=%d", n), func(b *testing.B) {
			frame := make([]byte, 4+tpuwire.MaxMessage) // no message: it begins with a field of number 0
			frame[1] = tpuwire.MaxMessage >> 16
			b.ReportAllocs()
			for range b.N {
				b.StopTimer()
				w := newWorld(b)
				w.open()
				for i := range n {
					w.guest(b, fmt.Sprintf("runtime%d", i)).playRaw(func(_ *controlpb.ControlRequest, out *stream) {
						for i := range frame {
							if _, err := out.Write(frame[i : i+1]); err != nil {
								return
							}
						}
					})
				}
				b.StartTimer()
				err := w.plane.PreSave(w.k.Kernel)
				b.StopTimer()
				w.close()
				if err == nil {
					b.Fatal("garbage was taken for an answer")
				}
				b.StartTimer()
			}
			b.SetBytes(int64(n * len(frame)))
		})
	}
}
