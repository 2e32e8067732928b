package control

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gvisor.dev/gvisor/pkg/sentry/kernel"

	"tpuvisor.dev/tpuvisor/internal/kerneltest"
	"tpuvisor.dev/tpuvisor/pkg/sentry/control/api"
	"tpuvisor.dev/tpuvisor/pkg/sentry/savehook"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// A front is a world's desk, called as the seam and the commands call it.
type front struct {
	*world
	desk  *Desk
	calls map[string]savehook.Handler
}

func newFront(t *testing.T) *front {
	t.Helper()
	return frontOf(newWorld(t))
}

func frontOf(w *world) *front {
	f := &front{world: w, desk: NewDesk(w.plane), calls: map[string]savehook.Handler{}}
	f.desk.Calls(func(op string, h savehook.Handler) { f.calls[op] = h })
	return f
}

// ask makes a call as it comes from a command.
func ask[Result any](t *testing.T, f *front, op string, args any) (Result, error) {
	t.Helper()
	var result Result
	data, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := f.calls[op](f.k.Kernel, data)
	if err != nil {
		return result, err
	}
	if data, err = json.Marshal(answer); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &result); err != nil {
		t.Fatal(err)
	}
	return result, nil
}

func mustAsk[Result any](t *testing.T, f *front, op string, args any) Result {
	t.Helper()
	result, err := ask[Result](t, f, op, args)
	if err != nil {
		t.Fatalf("%s: %v", op, err)
	}
	return result
}

// detach is a pre-save that succeeds.
func (f *front) detach(t *testing.T) {
	t.Helper()
	if err := f.desk.preSave(f.k.Kernel); err != nil {
		t.Fatal(err)
	}
}

// leaveRunning is a checkpoint after which the sandbox runs on.
func (f *front) leaveRunning(t *testing.T) {
	t.Helper()
	f.detach(t)
	if err := f.desk.postResume(f.k.Kernel); err != nil {
		t.Fatal(err)
	}
	f.desk.saved(f.k.Kernel)
}

// last is the last operation.
func (f *front) last(t *testing.T) api.Operation {
	t.Helper()
	all := mustAsk[api.Trace](t, f, api.OpTrace, nil).Operations
	if len(all) == 0 {
		t.Fatal("no operation")
	}
	return all[0]
}

func phases(op api.Operation) string {
	names := make([]string, len(op.Phases))
	for i, p := range op.Phases {
		names[i] = p.Name
	}
	return strings.Join(names, " ")
}

// slowly answers after a time.
func slowly(d time.Duration) func(*controlpb.ControlRequest) *controlpb.ControlResponse {
	return func(req *controlpb.ControlRequest) *controlpb.ControlResponse {
		time.Sleep(d)
		return ok(req)
	}
}

func TestTraceOfACheckpoint(t *testing.T) {
	f := newFront(t)
	guests := []*guest{f.guest(t, "a"), f.guest(t, "b")}
	f.inBubble(t, func(t *testing.T) {
		for _, g := range guests {
			g.play(slowly(time.Second))
		}
		f.leaveRunning(t)
		op := f.last(t)
		if op.Kind != api.KindCheckpoint || op.Error != "" || op.Runtimes != 2 || op.End.IsZero() {
			t.Errorf("the operation is %+v", op)
		}
		if got := phases(op); got != "detach save attach" {
			t.Errorf("its phases are %s", got)
		}
		if len(op.Steps) != 4 {
			t.Fatalf("%d steps, want 4", len(op.Steps))
		}
		for i, s := range op.Steps {
			want := "CHECKPOINT"
			if i >= 2 {
				want = "RESTORE"
			}
			if s.Action != want || s.Result != "acknowledged" || s.End.Sub(s.Start) != time.Second || s.Limit != 3*time.Minute {
				t.Errorf("step %d is %+v", i, s)
			}
		}
		if top := op.Steps[0].Topology; top == nil || top.MeshShape != "2x2x1" || op.Steps[0].State != "DETACHED" {
			t.Errorf("the first step is %+v", op.Steps[0])
		}
	})
}

// TestWatch follows a checkpoint. The sandbox does not end before it is known that the
// answers have arrived.
func TestWatch(t *testing.T) {
	f := newFront(t)
	g := f.guest(t, "a")
	f.inBubble(t, func(t *testing.T) {
		g.play(slowly(time.Minute))
		after := mustAsk[api.Events](t, f, api.OpWatch, api.Watch{Begin: true}).Sequence
		go func() {
			if err := f.desk.preSave(f.k.Kernel); err != nil {
				t.Error(err)
			}
		}()
		var words []string
		for !slices.Contains(words, "save") {
			got := mustAsk[api.Events](t, f, api.OpWatch, api.Watch{After: after})
			after = got.Sequence
			for _, e := range got.Events {
				switch {
				case e.Step != nil:
					words = append(words, e.Step.Action+" "+e.Step.Result)
				case !e.Ended:
					words = append(words, e.Phase)
				}
			}
		}
		want := []string{"", "detach", "CHECKPOINT sent", "CHECKPOINT acknowledged", "save"}
		if !slices.Equal(words, want) {
			t.Errorf("got the events %q, want %q", words, want)
		}
		saved := make(chan bool)
		go func() { f.desk.saved(f.k.Kernel); close(saved) }()
		synctest.Wait()
		select {
		case <-saved:
			t.Error("the sandbox may end before its watcher has said that it knows")
		default:
		}
		mustAsk[api.Events](t, f, api.OpWatch, api.Watch{After: after})
		synctest.Wait()
		select {
		case <-saved:
		default:
			t.Error("the end of the sandbox still waits for its watcher")
		}
	})
}

// TestNothingToTell: of a resume that gives no TPU back nobody hears, since whoever
// heard of its beginning would wait for its end.
func TestNothingToTell(t *testing.T) {
	f := newFront(t)
	f.guest(t, "a")
	before := mustAsk[api.Events](t, f, api.OpWatch, api.Watch{Begin: true}).Sequence
	if err := f.desk.postResume(f.k.Kernel); err != nil {
		t.Fatal(err)
	}
	if after := mustAsk[api.Events](t, f, api.OpWatch, api.Watch{Begin: true}).Sequence; after != before {
		t.Errorf("%d events", after-before)
	}
}

// TestAnsweredOfNone: a checkpoint that fails before anybody is asked keeps nobody
// waiting, whose connection would be left.
func TestAnsweredOfNone(t *testing.T) {
	f := newFront(t)
	f.k.Install(t, f.k.Process(t, "holder", "c1").Leader(), 3, f.k.Device(t, 0))
	f.inBubble(t, func(t *testing.T) {
		answered := make(chan struct{})
		go func() {
			for mustAsk[api.Operation](t, f, api.OpAnswered, nil).ID == 0 {
			}
			close(answered)
		}()
		synctest.Wait()
		if err := f.desk.preSave(f.k.Kernel); err == nil {
			t.Error("a holder without a runtime was saved")
		}
		<-answered
	})
}

// TestAnswered waits for the answers to the next checkpoint, and gets them all.
func TestAnswered(t *testing.T) {
	f := newFront(t)
	g := f.guest(t, "a")
	f.inBubble(t, func(t *testing.T) {
		g.play(slowly(time.Minute))
		got := make(chan api.Operation, 1)
		go func() {
			var op api.Operation
			for op.ID == 0 {
				op = mustAsk[api.Operation](t, f, api.OpAnswered, nil)
			}
			got <- op
		}()
		synctest.Wait()
		f.detach(t)
		f.desk.saved(f.k.Kernel)
		if op := <-got; len(op.Steps) != 1 || op.Steps[0].Result != "acknowledged" {
			t.Errorf("the steps are %+v", op.Steps)
		}
	})
}

func TestUndoIsTold(t *testing.T) {
	f := newFront(t)
	a, b := f.guest(t, "a"), f.guest(t, "b")
	f.inBubble(t, func(t *testing.T) {
		a.play(ok)
		b.play(slowly(time.Minute))
		f.detach(t)
		cause := errors.New("disk full")
		settled := make(chan api.Settled, 1)
		go func() {
			s := api.Settled{}
			for !s.Done {
				s = mustAsk[api.Settled](t, f, api.OpSettle, nil)
			}
			settled <- s
		}()
		synctest.Wait()
		if err := f.desk.abort(f.k.Kernel, cause); err != nil {
			t.Fatal(err)
		}
		s := <-settled
		if s.Undone != "undone: RUNNING again: pid 1, 3" {
			t.Errorf("the undo is told as %q", s.Undone)
		}
		op := f.last(t)
		if got := phases(op); got != "detach save undo" || op.Error != "disk full" {
			t.Errorf("phases %s, error %q", got, op.Error)
		}
		f.leaveRunning(t) // and again
		if s := mustAsk[api.Settled](t, f, api.OpSettle, nil); s.Undone != "" {
			t.Errorf("a checkpoint that succeeded is told as %q", s.Undone)
		}
	})
}

func TestFailedUndoIsTold(t *testing.T) {
	f := newFront(t)
	g := f.guest(t, "a")
	f.inBubble(t, func(t *testing.T) {
		g.play(instead(actRestore, refuse(controlpb.RuntimeState_STATE_FAULTED, "no way back")))
		f.detach(t)
		if err := f.desk.abort(f.k.Kernel, errors.New("disk full")); err == nil {
			t.Error("no error")
		}
		s := mustAsk[api.Settled](t, f, api.OpSettle, nil)
		if !strings.HasPrefix(s.Undone, "not undone: ") || !strings.Contains(s.Undone, `"no way back"`) {
			t.Errorf("the undo is told as %q", s.Undone)
		}
		if o := mustAsk[api.Outcome](t, f, api.OpWait, api.Wait{}); !o.Done || o.Error == "" {
			t.Errorf("to wait for the TPUs gives %+v", o)
		}
	})
}

func TestCancel(t *testing.T) {
	f := newFront(t)
	g := f.guest(t, "a")
	f.inBubble(t, func(t *testing.T) {
		g.play(slowly(time.Minute))
		if c := mustAsk[api.Canceled](t, f, api.OpCancel, nil); c.Canceled || c.Phase != "" {
			t.Errorf("with nothing under way: %+v", c)
		}
		failed := make(chan error, 1)
		go func() { failed <- f.desk.preSave(f.k.Kernel) }()
		time.Sleep(time.Second)
		later := api.Cancel{Since: time.Now().Add(time.Second)}
		if c := mustAsk[api.Canceled](t, f, api.OpCancel, later); c.Canceled || c.Phase != "" {
			t.Errorf("a command has canceled another's checkpoint: %+v", c)
		}
		if c := mustAsk[api.Canceled](t, f, api.OpCancel, nil); !c.Canceled {
			t.Errorf("while the runtimes are asked: %+v", c)
		}
		if err := <-failed; !errors.Is(err, ErrCanceled) {
			t.Errorf("got %v", err)
		}
		g.expect(t, actCheckpoint, actRestore)

		f.detach(t) // the next one is not canceled
		if c := mustAsk[api.Canceled](t, f, api.OpCancel, nil); c.Canceled || c.Phase != api.PhaseSave {
			t.Errorf("while it is saved: %+v", c)
		}
		f.desk.saved(f.k.Kernel)
	})
}

func TestGate(t *testing.T) {
	f := newFront(t)
	g := f.guest(t, "a")
	f.inBubble(t, func(t *testing.T) {
		g.play(slowly(time.Minute))
		done := make(chan error, 1)
		go func() { done <- f.desk.preSave(f.k.Kernel) }()
		time.Sleep(time.Second)
		for _, what := range []string{api.ForPause, api.ForResume} {
			if _, err := ask[api.Gated](t, f, api.OpGate, api.Gate{For: what}); !errors.Is(err, ErrBusy) {
				t.Errorf("%s in an exchange: got %v", what, err)
			}
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if _, err := ask[api.Gated](t, f, api.OpGate, api.Gate{For: api.ForPause}); !errors.Is(err, ErrBusy) {
			t.Errorf("a pause while it is saved: got %v", err)
		}
		if err := f.desk.abort(f.k.Kernel, errors.New("disk full")); err != nil {
			t.Fatal(err)
		}

		gated := mustAsk[api.Gated](t, f, api.OpGate, api.Gate{For: api.ForPause})
		if _, err := ask[api.Gated](t, f, api.OpGate, api.Gate{For: api.ForPause}); err == nil {
			t.Error("two pauses at once")
		}
		start := time.Now()
		go func() { done <- f.desk.preSave(f.k.Kernel) }()
		time.Sleep(api.GateTime - time.Second)
		mustAsk[api.Gated](t, f, api.OpGate, api.Gate{For: api.ForPause, Token: gated.Token})
		time.Sleep(api.GateTime - time.Second)
		g.expect(t, actCheckpoint, actRestore)
		mustAsk[struct{}](t, f, api.OpOpen, gated)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if got := time.Since(start); got < 2*api.GateTime-2*time.Second {
			t.Errorf("the checkpoint went through the gate after %v", got)
		}
		f.desk.saved(f.k.Kernel)
	})
}

// TestGateOfADeadCommand wants a gate to open by itself.
func TestGateOfADeadCommand(t *testing.T) {
	f := newFront(t)
	g := f.guest(t, "a")
	f.inBubble(t, func(t *testing.T) {
		g.play(ok)
		gated := mustAsk[api.Gated](t, f, api.OpGate, api.Gate{For: api.ForPause})
		start := time.Now()
		f.leaveRunning(t)
		if got := time.Since(start); got < api.GateTime || got > 2*api.GateTime {
			t.Errorf("the gate was shut for %v", got)
		}
		mustAsk[struct{}](t, f, api.OpOpen, gated) // too late, and no harm
	})
}

// TestResumeInTheBackground is a resume as runsc's command makes it, of a sandbox
// that was saved while it was paused.
func TestResumeInTheBackground(t *testing.T) {
	for _, fails := range []bool{false, true} {
		f := newFront(t)
		g := f.guest(t, "a")
		f.inBubble(t, func(t *testing.T) {
			script := slowly(time.Minute)
			if fails {
				script = instead(actRestore, refuse(controlpb.RuntimeState_STATE_FAULTED, "group is busy"))
			}
			g.play(script)
			f.k.Pause()
			f.detach(t)
			f.desk.saved(f.k.Kernel)
			if o := mustAsk[api.Outcome](t, f, api.OpWait, api.Wait{}); o.Done || !o.Paused {
				t.Errorf("paused: %+v", o)
			}
			gated := mustAsk[api.Gated](t, f, api.OpGate, api.Gate{For: api.ForResume})
			f.k.Unpause()
			start := time.Now()
			if err := f.desk.postResume(f.k.Kernel); err != nil {
				t.Fatal(err)
			}
			if time.Since(start) != 0 {
				t.Error("the resume waited for the runtimes")
			}
			mustAsk[struct{}](t, f, api.OpOpen, gated)
			o := api.Outcome{}
			for !o.Done {
				o = mustAsk[api.Outcome](t, f, api.OpWait, api.Wait{After: gated.Last})
			}
			if fails != strings.Contains(o.Error, "group is busy") {
				t.Errorf("fails: %v, and the outcome is %+v", fails, o)
			}
			g.expect(t, actCheckpoint, actRestore)
		})
	}
}

// TestSecondTryToResume is a resume that has let the sandbox run, and failed then.
func TestSecondTryToResume(t *testing.T) {
	f := newFront(t)
	f.inBubble(t, func(t *testing.T) {
		gated := mustAsk[api.Gated](t, f, api.OpGate, api.Gate{For: api.ForResume})
		if !f.k.IsPaused() {
			t.Error("the sandbox would be resumed twice")
		}
		mustAsk[struct{}](t, f, api.OpOpen, gated)
		if f.k.IsPaused() {
			t.Error("the sandbox is left paused")
		}
	})
}

// TestPlainResume has nothing to give back, and leaves no trace.
func TestPlainResume(t *testing.T) {
	f := newFront(t)
	g := f.guest(t, "a")
	f.inBubble(t, func(t *testing.T) {
		g.play(ok)
		if err := f.desk.postResume(f.k.Kernel); err != nil {
			t.Fatal(err)
		}
		if got := mustAsk[api.Trace](t, f, api.OpTrace, nil); len(got.Operations) != 0 {
			t.Errorf("the report has %+v", got)
		}
		if o := mustAsk[api.Outcome](t, f, api.OpWait, api.Wait{}); !o.Done || o.Error != "" {
			t.Errorf("the outcome is %+v", o)
		}
		g.expect(t)
	})
}

func TestStates(t *testing.T) {
	f := newFront(t)
	a, silent := f.guest(t, "a"), f.guest(t, "silent")
	f.inBubble(t, func(t *testing.T) {
		a.play(ok)
		silent.play(instead(actGetState, nil))
		got := mustAsk[[]api.RuntimeState](t, f, api.OpState, api.StateArgs{Limit: 2 * time.Second})
		if len(got) != 2 || got[0].State != "RUNNING" || got[0].Error != "" || got[1].Error == "" || got[1].Elapsed < 2*time.Second {
			t.Errorf("got %+v", got)
		}
		f.k.Pause()
		if _, err := ask[[]api.RuntimeState](t, f, api.OpState, nil); !errors.Is(err, errPaused) {
			t.Errorf("paused: %v", err)
		}
		f.k.Unpause()
		if _, err := ask[[]api.RuntimeState](t, f, api.OpState, api.StateArgs{Limit: 1}); err == nil {
			t.Error("a limit of 1 ns is taken")
		}
	})
}

func TestPS(t *testing.T) {
	f := newFront(t)
	g := f.guest(t, "a\x1b[1m")
	loose := f.k.Process(t, "loose", "c1")
	f.k.Install(t, loose.Leader(), deviceFD, f.k.Device(t, 1))
	f.inBubble(t, func(t *testing.T) {
		g.play(ok)
		mustAsk[[]api.RuntimeState](t, f, api.OpState, nil) // loose has no runtime
	})
	// One that has let go is shown, too.
	table := kerneltest.TableOf(g.tg.Leader())
	file := table.Remove(f.k.Ctx, deviceFD)
	if got := mustAsk[[]api.Process](t, f, api.OpPS, nil); len(got) != 2 || len(got[1].Threads) != 1 || len(got[1].Devices) != 0 {
		t.Errorf("with one that has let go: %+v", got)
	}
	if _, err := table.NewFDAt(f.k.Ctx, deviceFD, file, kernel.FDFlags{}); err != nil {
		t.Fatal(err)
	}
	file.DecRef(f.k.Ctx)
	got := mustAsk[[]api.Process](t, f, api.OpPS, nil)
	if len(got) != 2 {
		t.Fatalf("got %+v", got)
	}
	if p := got[0]; len(p.Threads) != 1 || p.Threads[0].State != "RUNNING" || p.Threads[0].RequestFD != requestFD || p.Threads[0].RequestPipe == 0 || len(p.Devices) != 1 || p.Problem != "" {
		t.Errorf("the first is %+v", p)
	}
	if p := got[1]; p.Command != "loose" || len(p.Threads) != 0 || !strings.Contains(p.Problem, "LIBTPU_CHECKPOINTING_ENABLED") {
		t.Errorf("the second is %+v", p)
	}
}

// TestReportIsBounded makes more of everything than is kept.
func TestReportIsBounded(t *testing.T) {
	d := NewDesk(&Plane{})
	var op *operation
	for range 2 * maxOperations {
		d.mu.Lock()
		op = d.start(api.KindCheckpoint, api.PhaseDetach)
		d.mu.Unlock()
		for i := range int32(maxSteps + 10) {
			d.observe(Event{PID: i, TID: i, Command: strings.Repeat("x", 15), Action: actCheckpoint, Result: sent.String()})
			d.observe(Event{PID: i, TID: i, Action: actCheckpoint, Result: acked.String(), State: controlpb.RuntimeState_STATE_DETACHED})
		}
		d.mu.Lock()
		d.finish(op)
		d.mu.Unlock()
	}
	if len(d.past) != maxOperations || len(op.Steps) != maxSteps || op.StepsLost == 0 || len(d.log.events) > maxEvents || len(d.known) > maxKnown {
		t.Errorf("%d operations, %d steps, %d events, %d states", len(d.past), len(op.Steps), len(d.log.events), len(d.known))
	}
	events := d.log.after(d.log.sequence - 3)
	if len(events) != 3 || events[2].Sequence != d.log.sequence {
		t.Errorf("the last events are %+v", events)
	}
}
