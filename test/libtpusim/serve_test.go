package libtpusim

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"tpuvisor.dev/tpuvisor/pkg/guest"
	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// chips is a TPU whose memory is a string.
type chips struct {
	memory, saved string
	open          bool
}

func (c *chips) Detach() error {
	c.saved, c.memory, c.open = c.memory, "wiped", false
	return nil
}

func (c *chips) Attach() error {
	c.memory, c.open = c.saved, true
	return nil
}

func (c *chips) Topology() *controlpb.TpuTopology {
	return &controlpb.TpuTopology{ChipArchitecture: proto.String("v5e"), NumChips: proto.Int32(1)}
}

// driver is the other end of a runtime's pipes.
type driver struct {
	*Runtime
	tpu      *chips
	requests io.WriteCloser
	answers  *tpuwire.Reader
	raw      io.Reader
	ended    chan error
}

// start runs a runtime for the test's synctest bubble.
func start(t *testing.T, faults string, change ...func(*Config)) *driver {
	t.Helper()
	parsed, err := ParseFaults(faults)
	if err != nil {
		t.Fatal(err)
	}
	d := &driver{tpu: &chips{memory: "weights", open: true}, ended: make(chan error, 1)}
	c := Config{TPU: d.tpu, Faults: parsed}
	for _, f := range change {
		f(&c)
	}
	d.Runtime = New(c)
	readRequests, writeRequests := io.Pipe()
	readAnswers, writeAnswers := io.Pipe()
	d.requests, d.raw, d.answers = writeRequests, readAnswers, tpuwire.NewReader(readAnswers)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { d.ended <- d.Serve(ctx, readRequests, writeAnswers) }()
	t.Cleanup(func() {
		cancel()
		readRequests.Close()
		readAnswers.Close()
	})
	return d
}

func (d *driver) ask(t *testing.T, a controlpb.ControlAction) {
	t.Helper()
	if err := tpuwire.WriteMessage(d.requests, &controlpb.ControlRequest{Action: a.Enum(), TimeoutSecs: proto.Int32(180)}); err != nil {
		t.Fatal(err)
	}
}

func (d *driver) read() (*controlpb.ControlResponse, error) {
	answer := &controlpb.ControlResponse{}
	return answer, d.answers.ReadMessage(answer)
}

// expect asks, and wants success and a state.
func (d *driver) expect(t *testing.T, a controlpb.ControlAction, state controlpb.RuntimeState) {
	t.Helper()
	d.ask(t, a)
	d.expectAnswer(t, state)
}

func (d *driver) expectAnswer(t *testing.T, state controlpb.RuntimeState) {
	t.Helper()
	answer, err := d.read()
	if err != nil || !answer.GetSuccess() || answer.GetCurrentState() != state {
		t.Fatalf("answer is %v, %v; want success in state %v", answer, err, state)
	}
}

func TestCheckpointAndRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := start(t, "")
		d.expect(t, controlpb.ControlAction_ACTION_GETSTATE, running)
		for range 2 {
			d.expect(t, checkpoint, detached)
			if d.tpu.open || d.tpu.memory != "wiped" {
				t.Fatalf("after CHECKPOINT the TPU is %+v", d.tpu)
			}
			d.expect(t, restore, running)
			if !d.tpu.open || d.tpu.memory != "weights" {
				t.Fatalf("after RESTORE the TPU is %+v", d.tpu)
			}
		}
		d.requests.Close()
		if err := <-d.ended; err != nil {
			t.Errorf("Serve returned %v at the end of the requests", err)
		}
	})
}

func TestLockIsKeptOverACheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := start(t, "", func(c *Config) { c.Hold = HoldNone })
		d.expect(t, lock, locked)
		d.expect(t, checkpoint, detached)
		d.expect(t, restore, locked)
		done := make(chan error, 1)
		go func() { done <- d.Do(t.Context(), func() error { return nil }) }()
		synctest.Wait()
		if len(done) != 0 {
			t.Fatal("an operation was let through while the runtime was LOCKED")
		}
		d.expect(t, unlock, running)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestHoldSelfHoldsOperations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := start(t, "")
		busy := make(chan struct{})
		done := make(chan error, 2)
		go func() { done <- d.Do(t.Context(), func() error { <-busy; return nil }) }()
		synctest.Wait()
		d.ask(t, checkpoint)
		synctest.Wait()
		if d.State() != running {
			t.Fatal("CHECKPOINT did not wait for the operation in flight")
		}
		close(busy)
		d.expectAnswer(t, detached)
		go func() { done <- d.Do(t.Context(), func() error { return nil }) }()
		d.expect(t, restore, running)
		if err := errors.Join(<-done, <-done); err != nil {
			t.Error(err)
		}
	})
}

func TestHoldNoneEndsTheWorkload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := start(t, "", func(c *Config) { c.Hold = HoldNone })
		busy := make(chan struct{})
		done := make(chan error, 1)
		go func() { done <- d.Do(t.Context(), func() error { <-busy; return nil }) }()
		synctest.Wait()
		d.ask(t, checkpoint)
		close(busy)
		d.expectAnswer(t, detached)
		if err := <-done; !errors.Is(err, guest.ErrCancelled) {
			t.Errorf("the operation in flight ended with %v, want ErrCancelled", err)
		}
		if err := d.Do(t.Context(), func() error { return nil }); !errors.Is(err, guest.ErrDetached) {
			t.Errorf("an operation while detached ended with %v, want ErrDetached", err)
		}
	})
}

func TestSecondRestoreWedges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := start(t, "")
		d.expect(t, checkpoint, detached)
		d.expect(t, restore, running)
		d.ask(t, restore)
		d.ask(t, controlpb.ControlAction_ACTION_GETSTATE)
		synctest.Wait()
		if !d.IsWedged() {
			t.Fatal("a second RESTORE did not wedge the runtime")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := d.Do(ctx, func() error { return nil }); !errors.Is(err, ErrWedged) {
			t.Errorf("an operation on a wedged runtime ended with %v", err)
		}
	})
}

func TestRestoreRefusesAnotherTopology(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := start(t, "")
		d.expect(t, checkpoint, detached)
		req := &controlpb.ControlRequest{
			Action:           restore.Enum(),
			ExpectedTopology: &controlpb.TpuTopology{ChipArchitecture: proto.String("v6e")},
		}
		if err := tpuwire.WriteMessage(d.requests, req); err != nil {
			t.Fatal(err)
		}
		answer, err := d.read()
		if err != nil || answer.GetSuccess() || answer.GetCurrentState() != detached || !strings.Contains(answer.GetErrorMessage(), "architecture") {
			t.Errorf("answer is %v, %v; want a refusal that names the architecture", answer, err)
		}
	})
}

func TestRestoreIsARendezvous(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := NewMesh()
		var members []*driver
		for rank := range 3 {
			members = append(members, start(t, "", func(c *Config) { c.Rank, c.Mesh = rank, mesh }))
			members[rank].expect(t, checkpoint, detached)
		}
		members[0].ask(t, restore)
		members[1].ask(t, restore)
		synctest.Wait()
		if s := members[0].State(); s != controlpb.RuntimeState_STATE_RESTORING {
			t.Fatalf("member 0 is %v before all have met", s)
		}
		mesh.Gone(2)
		members[0].expectAnswer(t, running)
		members[1].expectAnswer(t, running)
	})
}

func TestRequestsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines []string
		d := start(t, "", func(c *Config) {
			c.Rank = 3
			c.Log = func(q Request) { lines = append(lines, q.String()) }
		})
		d.expect(t, checkpoint, detached)
		if len(lines) != 1 {
			t.Fatalf("the log is %q, want one line", lines)
		}
		q, err := ParseRequest(lines[0])
		if err != nil || q.Rank != 3 || q.Action != checkpoint || q.State != running || q.Timeout != 3*time.Minute || !q.Time.Equal(time.Now()) {
			t.Errorf("ParseRequest(%q) = %+v, %v", lines[0], q, err)
		}
	})
}
