package inprocess

import (
	"errors"
	"sync"
	"testing"
	"time"

	gocontext "context"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/kernel"

	"tpuvisor.dev/tpuvisor/internal/kerneltest"
	"tpuvisor.dev/tpuvisor/pkg/sentry/savehook"
	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

var _ = add(map[string]scenario{
	"lock/found-locked":                foundIn(controlpb.ControlAction_ACTION_LOCK, controlpb.RuntimeState_STATE_LOCKED),
	"lock/found-detached":              foundIn(controlpb.ControlAction_ACTION_CHECKPOINT, controlpb.RuntimeState_STATE_DETACHED),
	"who/no-runtime":                   noRuntime,
	"who/inherits":                     inherits,
	"who/opens-meanwhile":              opensMeanwhile,
	"who/exec-session":                 execSession,
	"who/exits-between":                exitsBetween,
	"who/several-containers":           severalContainers,
	"who/come-and-go":                  comeAndGo,
	"who/leader-gone":                  leaderGone,
	"operator/paused":                  paused,
	"operator/paused-twice":            pausedTwice,
	"operator/pauses-meanwhile":        pausesMeanwhile,
	"operator/two-at-once":             twoAtOnce,
	"operator/kills-meanwhile":         killsMeanwhile,
	"operator/resumes-unpaused":        resumesUnpaused,
	"operator/again-after-failure":     againAfterFailure,
	"operator/again-before-the-answer": againBeforeTheAnswer,
	"host/save-fails":                  saveFails,
	"host/later-hook-fails":            laterHookFails,
	"host/groups-held":                 groupsHeld,
})

// foundIn has the member in a state that somebody else has put it in, and wants it to
// be left in that.
func foundIn(action controlpb.ControlAction, state controlpb.RuntimeState) scenario {
	return func(_ *testing.T, s *scene) func(*testing.T) error {
		s.rest = []*member{s.bad}
		return func(t *testing.T) error {
			if err := s.bad.ask(action); err != nil {
				t.Fatal(err)
			}
			err := s.checkpoint()
			if got := s.bad.runtime.State(); got != state {
				t.Errorf("it was found %s, and is %s", tpuwire.StateName(state), tpuwire.StateName(got))
			}
			return err
		}
	}
}

// ask asks the member itself, as another driver would.
func (m *member) ask(action controlpb.ControlAction) error {
	table := kerneltest.TableOf(m.thread)
	requests, _ := table.Get(requestFD)
	answers, _ := table.Get(responseFD)
	to := &end{k: m.w.k, ctx: m.w.ctx, file: requests, mask: m.answers.mask}
	from := &end{k: m.w.k, ctx: m.w.ctx, file: answers, mask: m.requests.mask}
	defer to.drop()
	defer from.drop()
	return errors.Join(
		tpuwire.WriteMessage(to, &controlpb.ControlRequest{Action: action.Enum()}),
		tpuwire.ReadMessage(from, &controlpb.ControlResponse{}),
	)
}

func noRuntime(t *testing.T, s *scene) func(*testing.T) error {
	holder := s.k.Process(t, "holder", "c1")
	s.k.Install(t, holder.Leader(), deviceFD, s.k.Device(t, 7))
	return func(*testing.T) error { return s.checkpoint() }
}

func inherits(t *testing.T, s *scene) func(*testing.T) error {
	s.inherit(t, "helper", deviceFD)
	return func(*testing.T) error { return s.checkpoint() }
}

func opensMeanwhile(t *testing.T, s *scene) func(*testing.T) error {
	late := s.k.Process(t, "late", "c1")
	device := s.k.Device(t, 7)
	s.bad.tpu.detach = func() { s.k.Install(t, late.Leader(), deviceFD, device) }
	return func(*testing.T) error { return s.checkpoint() }
}

// execSession has the member in a process that runsc exec has started, and that does
// not come back with the restored sandbox.
func execSession(t *testing.T, s *scene) func(*testing.T) error {
	s.bad.tg.Leader().Origin = kernel.OriginExec
	s.rest = []*member{s.bad}
	return func(t *testing.T) error {
		if err := s.plane.PreSave(s.k.Kernel); err != nil {
			t.Fatal(err)
		}
		s.move(t)
		s.before = s.count()
		err := s.plane.PostRestore(s.k.Kernel)
		if n := s.bad.verbs(t)[controlpb.ControlAction_ACTION_RESTORE]; n > 0 {
			t.Error("the process of the exec session was sent RESTORE")
		}
		return err
	}
}

func exitsBetween(_ *testing.T, s *scene) func(*testing.T) error {
	return func(t *testing.T) error {
		if err := s.plane.PreSave(s.k.Kernel); err != nil {
			t.Fatal(err)
		}
		s.bad.kill(t)
		return s.plane.PostResume(s.k.Kernel)
	}
}

// kill kills the member's process, and waits for its end.
func (m *member) kill(t *testing.T) {
	t.Helper()
	m.dead.Store(true)
	if err := m.tg.SendSignal(&linux.SignalInfo{Signo: int32(linux.SIGKILL)}); err != nil {
		t.Fatal(err)
	}
	for start := time.Now(); m.tg.Count() > 0; time.Sleep(time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatal("a killed process does not end")
		}
	}
}

func severalContainers(t *testing.T, s *scene) func(*testing.T) error {
	other := s.newMember(t, "c2", s.row.FaultAt("checkpoint", s.limit, len(s.members)))
	s.bad.faults = nil
	return func(t *testing.T) error {
		err := s.checkpoint()
		if e := other.about(err); e == nil || e.Container != "c2" {
			t.Errorf("the error does not name container c2: %v", err)
		}
		return err
	}
}

// comeAndGo has processes made and threads exit during some checkpoints. Time is not
// real for the members, and is for this.
func comeAndGo(t *testing.T, s *scene) func(*testing.T) error {
	const checkpoints = 50
	s.attempts = checkpoints
	stop, stopped := make(chan bool), make(chan bool)
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				s.k.Thread(t, s.k.Process(t, "churn", "c1"), s.bad.thread.Name(), nil)
			}
		}
	}()
	return func(*testing.T) error {
		defer func() { close(stop); <-stopped }()
		for range checkpoints {
			if err := s.checkpoint(); err != nil {
				return err
			}
		}
		return nil
	}
}

func leaderGone(_ *testing.T, s *scene) func(*testing.T) error {
	return func(t *testing.T) error {
		s.k.Exit(t, s.bad.tg.Leader())
		s.before = s.count()
		return s.checkpoint()
	}
}

// paused is a sandbox that is paused, as by an engine: the TPUs come back with the
// resume.
func paused(_ *testing.T, s *scene) func(*testing.T) error {
	return func(t *testing.T) error {
		s.k.Pause()
		if err := s.plane.PreSave(s.k.Kernel); err != nil {
			return err
		}
		if !s.k.IsPaused() {
			t.Error("it was paused, and is not any more")
		}
		for _, m := range s.members {
			if got := m.runtime.State(); got != controlpb.RuntimeState_STATE_DETACHED {
				t.Errorf("rank %d is %s", m.rank, tpuwire.StateName(got))
			}
		}
		s.k.Unpause()
		return s.plane.PostResume(s.k.Kernel)
	}
}

func pausedTwice(_ *testing.T, s *scene) func(*testing.T) error {
	return func(t *testing.T) error {
		s.k.Pause()
		s.k.Pause()
		err := s.checkpoint()
		s.k.Unpause()
		if !s.k.IsPaused() {
			t.Error("a pause got lost")
		}
		s.k.Unpause()
		return err
	}
}

// pausesMeanwhile wants the pause to take effect when all have let go.
func pausesMeanwhile(_ *testing.T, s *scene) func(*testing.T) error {
	s.bad.tpu.detach = func() { s.k.Pause() }
	return func(t *testing.T) error {
		err := s.plane.PreSave(s.k.Kernel)
		if !s.k.IsPaused() {
			t.Error("the pause got lost")
		} else {
			s.k.Unpause()
		}
		return errors.Join(err, s.plane.PostResume(s.k.Kernel))
	}
}

// registry is what gVisor calls, with the plane and perhaps more behind.
func (s *scene) registry(more ...savehook.Hooks) *savehook.Registry {
	r := &savehook.Registry{}
	r.Register(s.plane.Hooks())
	for _, h := range more {
		r.Register(h)
	}
	return r
}

// attempt is a checkpoint as gVisor makes it, with an end of the save. It returns when
// that has been dealt with.
func (s *scene) attempt(t *testing.T, r *savehook.Registry, save error) error {
	t.Helper()
	err := r.PreSave(s.k.Kernel)
	switch {
	case err == nil && save == nil:
		err = r.PostResume(s.k.Kernel)
		s.k.OnCheckpointAttempt(nil)
	case err == nil:
		err = save
		s.k.OnCheckpointAttempt(err)
	}
	if settleErr := r.Settle(gocontext.Background()); settleErr != nil {
		t.Error(settleErr)
	}
	return err
}

// twoAtOnce wants the second to be refused, and the first to succeed.
func twoAtOnce(_ *testing.T, s *scene) func(*testing.T) error {
	return func(t *testing.T) error {
		r := s.registry()
		var second error
		var once sync.Once
		s.bad.tpu.detach = func() {
			once.Do(func() { second = r.PreSave(s.k.Kernel) })
		}
		if err := s.attempt(t, r, nil); err != nil {
			t.Errorf("the first one: %v", err)
		}
		return second
	}
}

func killsMeanwhile(_ *testing.T, s *scene) func(*testing.T) error {
	s.rest = s.members
	return func(t *testing.T) error {
		go func() {
			for s.bad.verbs(t)[controlpb.ControlAction_ACTION_CHECKPOINT] == 0 {
				time.Sleep(time.Millisecond)
			}
			for _, m := range s.members {
				m.dead.Store(true)
			}
			s.k.Kill(linux.WaitStatusExit(0))
			s.stop(errOver)
		}()
		start := time.Now()
		err := s.checkpoint()
		if took := time.Since(start); took > patience/2 {
			t.Errorf("the end of the sandbox was noticed after %v", took)
		}
		return err
	}
}

func resumesUnpaused(_ *testing.T, s *scene) func(*testing.T) error {
	s.attempts = 0
	return func(*testing.T) error { return s.plane.PostResume(s.k.Kernel) }
}

func againAfterFailure(_ *testing.T, s *scene) func(*testing.T) error {
	s.attempts = 2
	return func(t *testing.T) error {
		if err := s.checkpoint(); !errors.Is(err, tpuwire.ErrRefused) {
			t.Errorf("the first one: %v", err)
		}
		return s.checkpoint()
	}
}

// againBeforeTheAnswer wants the second to be refused at once, with nobody asked.
func againBeforeTheAnswer(_ *testing.T, s *scene) func(*testing.T) error {
	return func(t *testing.T) error {
		if err := s.checkpoint(); !errors.Is(err, tpuwire.ErrNoAnswer) {
			t.Errorf("the first one: %v", err)
		}
		return s.checkpoint()
	}
}

func saveFails(_ *testing.T, s *scene) func(*testing.T) error {
	return func(t *testing.T) error { return s.attempt(t, s.registry(), errors.New("disk full")) }
}

func laterHookFails(_ *testing.T, s *scene) func(*testing.T) error {
	return func(t *testing.T) error {
		return s.attempt(t, s.registry(savehook.Hooks{
			Name:    "later",
			PreSave: func(*kernel.Kernel) error { return errors.New("not ready") },
		}), nil)
	}
}

// groupsHeld wants nothing to be sent while the groups are held, and everything to be
// given back by the next resume.
func groupsHeld(_ *testing.T, s *scene) func(*testing.T) error {
	held := errors.New("group 3 is held")
	s.plane.Devices.WaitFree = func(ctx gocontext.Context, _ *kernel.Kernel) error {
		if held == nil {
			return nil
		}
		<-ctx.Done()
		return held
	}
	return func(t *testing.T) error {
		if err := s.checkpoint(); !errors.Is(err, held) {
			t.Errorf("the first resume: %v", err)
		}
		for _, m := range s.members {
			if m.verbs(t)[controlpb.ControlAction_ACTION_RESTORE] > 0 {
				t.Errorf("rank %d was sent RESTORE into a group that is held", m.rank)
			}
		}
		held = nil
		return s.plane.PostResume(s.k.Kernel)
	}
}
