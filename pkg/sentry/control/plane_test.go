package control

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"tpuvisor.dev/tpuvisor/internal/kerneltest"
	"tpuvisor.dev/tpuvisor/pkg/sentry/control/settings"
	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// inBubble runs f with virtual time, between open and close of the world.
func (w *world) inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w.open()
		defer w.close()
		f(t)
	})
}

func TestCheckpointAndResume(t *testing.T) {
	w := newWorld(t)
	guests := []*guest{w.guest(t, "a"), w.guest(t, "b"), w.guest(t, "c")}
	w.inBubble(t, func(t *testing.T) {
		for _, g := range guests {
			g.play(ok)
		}
		for range 2 { // two cycles
			if err := w.plane.PreSave(w.k.Kernel); err != nil {
				t.Fatal(err)
			}
			if !recordPending(w.k.Kernel) {
				t.Fatal("no record")
			}
			if err := w.plane.PostResume(w.k.Kernel); err != nil {
				t.Fatal(err)
			}
			if recordPending(w.k.Kernel) {
				t.Fatal("the record was not taken out")
			}
		}
		// A plain resume.
		if err := w.plane.PostResume(w.k.Kernel); err != nil {
			t.Fatal(err)
		}
		for _, g := range guests {
			g.expect(t, actCheckpoint, actRestore, actCheckpoint, actRestore)
			if got := g.last.GetExpectedTopology().GetMeshShape(); got != "2x2x1" {
				t.Errorf("RESTORE expects mesh shape %q", got)
			}
			if got := g.last.GetTimeoutSecs(); got != 180 {
				t.Errorf("RESTORE tells a limit of %d s", got)
			}
		}
	})
}

func TestNoTPU(t *testing.T) {
	w := newWorld(t)
	w.plane.Devices.MayBeOpen = nil
	g := w.guest(t, "a")
	w.open()
	g.play(ok)
	if err := w.plane.PreSave(w.k.Kernel); err != nil {
		t.Fatal(err)
	}
	w.close()
	g.expect(t)
}

func TestNoAnswer(t *testing.T) {
	for _, tc := range []struct {
		annotation  string
		limit, wait time.Duration
	}{
		{"", 3 * time.Minute, 190 * time.Second},
		{"10s", 10 * time.Second, 11 * time.Second},
		{"1h", time.Hour, time.Hour + 10*time.Second},
	} {
		t.Run(tc.annotation, func(t *testing.T) {
			w := newWorld(t)
			if tc.annotation != "" {
				w.specs.annotate(settings.Prefix+"timeout", tc.annotation)
			}
			silent, other := w.guest(t, "silent"), w.guest(t, "other")
			w.inBubble(t, func(t *testing.T) {
				silent.play(instead(actCheckpoint, nil))
				other.play(ok)
				start := time.Now()
				failure := wantKind(t, w.plane.PreSave(w.k.Kernel), tpuwire.ErrNoAnswer)
				if got := time.Since(start); got != tc.wait {
					t.Errorf("gave up after %v, want %v", got, tc.wait)
				}
				if failure.Command != "silent" || failure.Action != actCheckpoint || failure.Elapsed != tc.wait {
					t.Errorf("the error says %+v", failure)
				}
				if got := time.Duration(silent.last.GetTimeoutSecs()) * time.Second; got != tc.limit {
					t.Errorf("the runtime was told %v, want %v", got, tc.limit)
				}
				other.expect(t, actCheckpoint, actRestore)
				silent.expect(t, actCheckpoint, actRestore)
			})
		})
	}
}

func TestRefused(t *testing.T) {
	w := newWorld(t)
	a, b, c := w.guest(t, "a"), w.guest(t, "b"), w.guest(t, "c")
	w.inBubble(t, func(t *testing.T) {
		a.play(ok)
		b.play(instead(actCheckpoint, refuse(controlpb.RuntimeState_STATE_RUNNING, "not \x1b[31mnow")))
		c.play(ok)
		err := w.plane.PreSave(w.k.Kernel)
		failure := wantKind(t, err, tpuwire.ErrRefused)
		var refusal *tpuwire.RefusedError
		if !errors.As(err, &refusal) || refusal.Words != "not \x1b[31mnow" {
			t.Errorf("the error has no words of the runtime: %v", err)
		}
		if failure.Container != "c1" || failure.Command != "b" || failure.State != controlpb.RuntimeState_STATE_RUNNING {
			t.Errorf("the error says %+v", failure)
		}
		if recordPending(w.k.Kernel) {
			t.Error("a failed checkpoint left a record")
		}
		a.expect(t, actCheckpoint, actRestore)
		b.expect(t, actCheckpoint)
		c.expect(t, actCheckpoint, actRestore)
	})
}

func TestPaused(t *testing.T) {
	w := newWorld(t)
	g := w.guest(t, "a")
	k := w.k.Kernel
	w.inBubble(t, func(t *testing.T) {
		g.play(ok)
		k.Pause()
		if err := w.plane.PreSave(k); err != nil {
			t.Fatal(err)
		}
		if !k.IsPaused() {
			t.Error("the kernel was paused and is not any more")
		}
		// Again, without a resume: they are detached already.
		if err := w.plane.PreSave(k); err != nil {
			t.Fatal(err)
		}
		k.Unpause()
		if err := w.plane.PostResume(k); err != nil {
			t.Fatal(err)
		}
		g.expect(t, actCheckpoint, actRestore)

		k.Pause()
		k.Pause()
		wantKind(t, w.plane.PreSave(k), ErrPausedTwice)
		k.Unpause()
		if !k.IsPaused() {
			t.Error("a pause got lost")
		}
		k.Unpause()
		g.expect(t, actCheckpoint, actRestore)
	})
}

func TestAbort(t *testing.T) {
	w := newWorld(t)
	a, b := w.guest(t, "a"), w.guest(t, "b")
	w.inBubble(t, func(t *testing.T) {
		a.play(ok)
		b.play(ok)
		k := w.k.Kernel
		if err := w.plane.PreSave(k); err != nil {
			t.Fatal(err)
		}
		if err := w.plane.Abort(k, errors.New("disk full")); err != nil {
			t.Fatal(err)
		}
		if err := w.plane.Abort(k, errors.New("again")); err != nil {
			t.Fatal(err)
		}
		if err := w.plane.PostResume(k); err != nil {
			t.Fatal(err)
		}
		a.expect(t, actCheckpoint, actRestore)
		b.expect(t, actCheckpoint, actRestore)
	})
}

func TestLockHandshake(t *testing.T) {
	w := newWorld(t)
	w.specs.annotate(settings.Prefix+"handshake", "lock")
	a, b := w.guest(t, "a"), w.guest(t, "b")
	w.inBubble(t, func(t *testing.T) {
		a.play(ok)
		b.play(ok)
		if err := w.plane.PreSave(w.k.Kernel); err != nil {
			t.Fatal(err)
		}
		if err := w.plane.PostResume(w.k.Kernel); err != nil {
			t.Fatal(err)
		}
		a.expect(t, actGetState, actLock, actCheckpoint, actRestore, actUnlock)
		b.expect(t, actGetState, actLock, actCheckpoint, actRestore, actUnlock)
	})
}

func TestLockRefusedUnlocksTheOthers(t *testing.T) {
	w := newWorld(t)
	w.specs.annotate(settings.Prefix+"handshake", "lock")
	a, b := w.guest(t, "a"), w.guest(t, "b")
	w.inBubble(t, func(t *testing.T) {
		a.play(ok)
		b.play(instead(actLock, refuse(controlpb.RuntimeState_STATE_RUNNING, "busy")))
		wantKind(t, w.plane.PreSave(w.k.Kernel), tpuwire.ErrRefused)
		a.expect(t, actGetState, actLock, actUnlock)
		b.expect(t, actGetState, actLock)
	})
}

func TestTopologyDiffers(t *testing.T) {
	w := newWorld(t)
	g := w.guest(t, "a")
	other := ok(&controlpb.ControlRequest{Action: actRestore.Enum()})
	other.ActiveTopology.MeshShape = proto.String("4x1x1")
	w.inBubble(t, func(t *testing.T) {
		g.play(instead(actRestore, other))
		if err := w.plane.PreSave(w.k.Kernel); err != nil {
			t.Fatal(err)
		}
		wantKind(t, w.plane.PostResume(w.k.Kernel), ErrTopology)
		w.specs.annotate(settings.Prefix+"topology", "warn")
		if err := w.plane.PreSave(w.k.Kernel); err != nil {
			t.Fatal(err)
		}
		if err := w.plane.PostResume(w.k.Kernel); err != nil {
			t.Fatal(err)
		}
	})
}

// TestSaveAndLoad takes the record through a real save and load of the kernel.
func TestSaveAndLoad(t *testing.T) {
	for _, legacy := range []bool{false, true} {
		w := newWorld(t)
		a, b := w.guest(t, "a"), w.guest(t, "b")
		w.open()
		a.play(ok)
		b.play(ok)
		if err := w.k.Start(); err != nil {
			t.Fatal(err)
		}
		if err := w.plane.PreSave(w.k.Kernel); err != nil {
			t.Fatal(err)
		}
		if legacy {
			w.k.PopCheckpointState(recordKey)
		}
		w.close()
		image := w.k.Save(t)
		loaded := loadWorld(t, image)
		loaded.open()
		ra, rb := loaded.again(t, a), loaded.again(t, b)
		ra.play(ok)
		rb.play(ok)
		if err := loaded.plane.PostRestore(loaded.k.Kernel); err != nil {
			t.Fatal(err)
		}
		loaded.close()
		ra.expect(t, actRestore)
		rb.expect(t, actRestore)
		if got := ra.last.GetExpectedTopology().GetChipArchitecture(); (got == "v5e") == legacy {
			t.Errorf("legacy %v: RESTORE expects architecture %q", legacy, got)
		}
	}
}

func loadWorld(t *testing.T, image []byte) *world {
	t.Helper()
	w := &world{k: kerneltest.Load(t, image), plane: &Plane{Devices: Devices{MayBeOpen: alwaysOpen}}, specs: newSpecs()}
	w.k.SetSaver(w.specs)
	return w
}

// again finds a guest of another world by its process ID in a loaded one.
func (w *world) again(t *testing.T, old *guest) *guest {
	t.Helper()
	pid := old.w.k.RootPIDNamespace().IDOfThreadGroup(old.tg)
	g := &guest{w: w, tg: w.k.RootPIDNamespace().ThreadGroupWithID(pid)}
	if g.tg == nil {
		t.Fatalf("pid %d is not in the loaded kernel", pid)
	}
	table := kerneltest.TableOf(g.tg.Leader())
	g.requests, _ = table.Get(ownRequestFD)
	g.answers, _ = table.Get(ownResponseFD)
	g.device = w.k.Device(t, 0)
	t.Cleanup(func() {
		for _, file := range []*vfs.FileDescription{g.requests, g.answers, g.device} {
			file.DecRef(w.k.Ctx)
		}
	})
	return g
}
