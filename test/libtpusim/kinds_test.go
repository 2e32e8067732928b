package libtpusim

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// TestFaultyAnswers asks for a CHECKPOINT, and looks at what the driver gets to
// read and at what the runtime has really done.
func TestFaultyAnswers(t *testing.T) {
	type want struct {
		fault string
		kind  error // of reading the answer
		check func(*controlpb.ControlResponse) bool
		state controlpb.RuntimeState // of the runtime afterwards
	}
	says := func(success bool, state controlpb.RuntimeState) func(*controlpb.ControlResponse) bool {
		return func(a *controlpb.ControlResponse) bool {
			return a.GetSuccess() == success && a.GetCurrentState() == state
		}
	}
	for _, w := range []want{
		{fault: "refuse@CHECKPOINT", check: says(false, running), state: running},
		{fault: "refuse@CHECKPOINT:state=FAULTED", check: says(false, controlpb.RuntimeState_STATE_FAULTED), state: running},
		{fault: "refuse@CHECKPOINT:nth=2", check: says(true, detached), state: detached},
		{fault: "refuse@CHECKPOINT:rank=1", check: says(true, detached), state: detached},
		{fault: "refuse@RESTORE", check: says(true, detached), state: detached},
		{fault: "longtext@CHECKPOINT", check: func(a *controlpb.ControlResponse) bool {
			return proto.Size(a) == tpuwire.MaxMessage
		}, state: running},
		{fault: "escapes@CHECKPOINT", check: says(false, running), state: running},
		{fault: "wrongstate=RUNNING@CHECKPOINT", check: says(true, running), state: detached},
		{fault: "wrongstate=RUNNING@CHECKPOINT:act=false", check: says(true, running), state: running},
		{fault: "wrongstate=99@CHECKPOINT", check: says(true, 99), state: detached},
		{fault: "topology=v9@CHECKPOINT", check: func(a *controlpb.ControlResponse) bool {
			return a.GetActiveTopology().GetChipArchitecture() == "v9"
		}, state: detached},
		{fault: "oversize@CHECKPOINT", kind: tpuwire.ErrTooLarge, state: detached},
		{fault: "huge@CHECKPOINT", kind: tpuwire.ErrTooLarge, state: detached},
		{fault: "garbage@CHECKPOINT", kind: tpuwire.ErrNotMessage, state: detached},
		{fault: "utf8@CHECKPOINT", kind: tpuwire.ErrNotMessage, state: detached},
		{fault: "empty@CHECKPOINT", check: func(a *controlpb.ControlResponse) bool { return a.Success == nil }, state: detached},
		{fault: "nofields@CHECKPOINT", check: func(a *controlpb.ControlResponse) bool {
			return a.GetSuccess() && a.CurrentState == nil && a.ActiveTopology == nil
		}, state: detached},
		{fault: "nosuccess@CHECKPOINT", check: func(a *controlpb.ControlResponse) bool {
			return a.Success == nil && a.GetCurrentState() == detached
		}, state: detached},
		{fault: "unknownfields@CHECKPOINT", check: func(a *controlpb.ControlResponse) bool {
			return a.GetSuccess() && len(a.ProtoReflect().GetUnknown()) > 0
		}, state: detached},
		{fault: "dribble@CHECKPOINT", check: says(true, detached), state: detached},
		{fault: "stale@CHECKPOINT", check: says(true, running), state: detached},
		{fault: "late=1h@CHECKPOINT", check: says(true, detached), state: detached},
		{fault: "closewrite@CHECKPOINT", kind: tpuwire.ErrClosed, state: running},
	} {
		t.Run(w.fault, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := start(t, w.fault)
				d.ask(t, checkpoint)
				answer, err := d.read()
				if !errors.Is(err, w.kind) {
					t.Fatalf("reading the answer gave %v, want %v", err, w.kind)
				}
				if w.check != nil && !w.check(answer) {
					t.Errorf("the answer is %.200v", answer)
				}
				if s := d.State(); s != w.state {
					t.Errorf("the runtime is %v, want %v", s, w.state)
				}
			})
		})
	}
}

func TestTwoAnswers(t *testing.T) {
	for _, fault := range []string{"twice@CHECKPOINT", "stale@RESTORE"} {
		synctest.Test(t, func(t *testing.T) {
			d := start(t, fault)
			d.expect(t, checkpoint, detached)
			if fault == "stale@RESTORE" {
				d.ask(t, restore)
			}
			d.expectAnswer(t, detached)
		})
	}
}

func TestEarlyAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := start(t, "early@RESTORE")
		d.expect(t, checkpoint, detached)
		d.expectAnswer(t, running) // nobody has asked for it
		d.expect(t, restore, running)
	})
}

func TestSilence(t *testing.T) {
	for _, fault := range []string{"stall@CHECKPOINT", "stall@CHECKPOINT:act=true", "half@CHECKPOINT"} {
		synctest.Test(t, func(t *testing.T) {
			d := start(t, fault)
			d.ask(t, checkpoint)
			got := make(chan error, 1)
			go func() { _, err := d.read(); got <- err }()
			time.Sleep(24 * time.Hour) // virtual
			synctest.Wait()
			if len(got) != 0 || len(d.ended) != 0 {
				t.Errorf("%s: there was an answer, or Serve ended", fault)
			}
		})
	}
}

func TestEnds(t *testing.T) {
	for fault, want := range map[string]error{
		"abort@CHECKPOINT":               ErrAborted,
		"exitthread@CHECKPOINT":          ErrThreadExit,
		"exitthread@CHECKPOINT:at=acted": ErrThreadExit,
	} {
		synctest.Test(t, func(t *testing.T) {
			var reason string
			d := start(t, fault, func(c *Config) { c.Abort = func(s string) { reason = s } })
			d.ask(t, checkpoint)
			if err := <-d.ended; !errors.Is(err, want) {
				t.Errorf("%s: Serve ended with %v, want %v", fault, err, want)
			}
			if aborted := reason != ""; aborted != errors.Is(want, ErrAborted) {
				t.Errorf("%s: the reason for an abort is %q", fault, reason)
			}
		})
	}
}

func TestEndAfterTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := start(t, "exitthread@CHECKPOINT:at=after")
		d.expect(t, checkpoint, detached)
		if err := <-d.ended; !errors.Is(err, ErrThreadExit) {
			t.Errorf("Serve ended with %v", err)
		}
	})
}

func TestClosedRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := start(t, "closeread@CHECKPOINT")
		synctest.Wait()
		if _, err := d.requests.Write([]byte{0}); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("writing a request gave %v, want a closed pipe", err)
		}
	})
}

func TestStopReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		filled := false
		d := start(t, "stopreading@CHECKPOINT", func(c *Config) {
			c.FillRequests = func() error { filled = true; return nil }
		})
		synctest.Wait()
		if !filled || len(d.ended) != 0 {
			t.Errorf("pipe filled: %v, Serve ended: %v", filled, len(d.ended) != 0)
		}
	})
}
