package control

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/api"
	"tpuvisor.dev/tpuvisor/pkg/sentry/control/settings"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// lockable is a runtime that knows whether it is locked.
func lockable() func(*controlpb.ControlRequest) *controlpb.ControlResponse {
	held := controlpb.RuntimeState_STATE_RUNNING
	return func(req *controlpb.ControlRequest) *controlpb.ControlResponse {
		answer := ok(req)
		switch req.GetAction() {
		case actLock:
			held = controlpb.RuntimeState_STATE_LOCKED
		case actUnlock:
			held = controlpb.RuntimeState_STATE_RUNNING
		}
		if req.GetAction() != actCheckpoint {
			answer.CurrentState = held.Enum()
		}
		return answer
	}
}

func TestLockAndUnlock(t *testing.T) {
	f := newFront(t)
	guests := []*guest{f.guest(t, "a"), f.guest(t, "b")}
	f.inBubble(t, func(t *testing.T) {
		for _, g := range guests {
			g.play(lockable())
		}
		got := mustAsk[api.Locked](t, f, api.OpLock, api.Lock{Lease: time.Minute})
		if len(got.Runtimes) != 2 || got.Lease == nil || got.Lease.Runtimes != 2 {
			t.Errorf("locked %+v", got)
		}
		time.Sleep(50 * time.Second)
		mustAsk[api.Locked](t, f, api.OpLock, api.Lock{Lease: time.Minute}) // begins anew
		time.Sleep(50 * time.Second)
		for _, g := range guests {
			g.expect(t, actLock)
		}
		mustAsk[api.Locked](t, f, api.OpUnlock, nil)
		if _, err := ask[api.Locked](t, f, api.OpUnlock, nil); !errors.Is(err, errNotHeld) {
			t.Errorf("unlocking what is not locked: %v", err)
		}
		time.Sleep(time.Hour)
		for _, g := range guests {
			g.expect(t, actLock, actUnlock)
		}
	})
}

func TestLeaseRunsOut(t *testing.T) {
	f := newFront(t)
	g := f.guest(t, "a")
	f.inBubble(t, func(t *testing.T) {
		g.play(lockable())
		mustAsk[api.Locked](t, f, api.OpLock, api.Lock{Lease: time.Minute})
		f.k.Pause()
		time.Sleep(2 * time.Minute) // a paused runtime cannot be asked
		g.expect(t, actLock)
		f.k.Unpause()
		time.Sleep(2 * leaseRetry)
		synctest.Wait()
		g.expect(t, actLock, actUnlock)
		if s := mustAsk[api.Status](t, f, api.OpStatus, nil); s.Lease != nil {
			t.Errorf("the lease is %+v", s.Lease)
		}
	})
}

// TestLockFails wants nobody to be left locked.
func TestLockFails(t *testing.T) {
	f := newFront(t)
	a, b := f.guest(t, "a"), f.guest(t, "b")
	f.inBubble(t, func(t *testing.T) {
		a.play(lockable())
		b.play(instead(actLock, refuse(controlpb.RuntimeState_STATE_RUNNING, "busy")))
		if _, err := ask[api.Locked](t, f, api.OpLock, api.Lock{Lease: time.Minute}); err == nil {
			t.Error("no error")
		}
		a.expect(t, actLock, actUnlock)
		b.expect(t, actLock)
		for _, lease := range []time.Duration{0, -1, 25 * time.Hour} {
			if _, err := ask[api.Locked](t, f, api.OpLock, api.Lock{Lease: lease}); err == nil {
				t.Errorf("a lease of %v is taken", lease)
			}
		}
	})
}

// TestCheckpointOfALockedSandbox wants it to be locked as before, in either
// handshake, whether the checkpoint succeeds or not.
func TestCheckpointOfALockedSandbox(t *testing.T) {
	for _, handshake := range []string{"checkpoint", "lock"} {
		f := newFront(t)
		f.specs.annotate(settings.Prefix+"handshake", handshake)
		g := f.guest(t, "a")
		f.inBubble(t, func(t *testing.T) {
			g.play(lockable())
			mustAsk[api.Locked](t, f, api.OpLock, api.Lock{Lease: time.Hour})
			f.leaveRunning(t)
			f.detach(t)
			if err := f.desk.abort(f.k.Kernel, errors.New("disk full")); err != nil {
				t.Fatal(err)
			}
			if s := mustAsk[api.Status](t, f, api.OpStatus, nil); s.Lease == nil {
				t.Error("the lease is lost")
			}
			mustAsk[api.Locked](t, f, api.OpUnlock, nil)
			g.mu.Lock()
			seen := slices.DeleteFunc(g.seen, func(a controlpb.ControlAction) bool { return a == actGetState })
			g.mu.Unlock()
			if want := actions(actLock, actCheckpoint, actRestore, actCheckpoint, actRestore, actUnlock); !slices.Equal(seen, want) {
				t.Errorf("handshake %s: was asked %v, want %v", handshake, seen, want)
			}
		})
	}
}

// TestLeaseOverARestore takes a locked sandbox through a save and a load.
func TestLeaseOverARestore(t *testing.T) {
	for _, keep := range []bool{false, true} {
		f := newFront(t)
		g := f.guest(t, "a")
		f.open()
		g.play(lockable())
		if err := f.k.Start(); err != nil {
			t.Fatal(err)
		}
		mustAsk[api.Locked](t, f, api.OpLock, api.Lock{Lease: time.Hour, Keep: keep})
		f.detach(t)
		f.desk.saved(f.k.Kernel)
		f.close()
		loaded := frontOf(loadWorld(t, f.k.Save(t)))
		loaded.open()
		again := loaded.again(t, g)
		locked := lockable()
		locked(&controlpb.ControlRequest{Action: actLock.Enum()})
		again.play(locked)
		if err := loaded.desk.postRestore(loaded.k.Kernel); err != nil {
			t.Fatal(err)
		}
		if keep {
			again.expect(t, actRestore)
			if s := mustAsk[api.Status](t, loaded, api.OpStatus, nil); s.Lease == nil || s.Lease.Duration != time.Hour || !s.Lease.Keep {
				t.Errorf("the lease is %+v", s.Lease)
			}
			mustAsk[api.Locked](t, loaded, api.OpUnlock, nil)
		}
		again.expect(t, actRestore, actUnlock)
		loaded.close()
		if o := mustAsk[api.Outcome](t, loaded, api.OpWait, api.Wait{}); !o.Done || o.Error != "" {
			t.Errorf("the outcome is %+v", o)
		}
	}
}
