package guest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// board is a Device without hardware.
type board struct {
	topology           *controlpb.TpuTopology
	detached, attached int
	expected           *controlpb.TpuTopology // in the last Attach
	detach, attach     func(context.Context) error
}

func newBoard() *board {
	return &board{topology: &controlpb.TpuTopology{
		ChipArchitecture: proto.String("v5e"),
		NumChips:         proto.Int32(4),
		MeshShape:        proto.String("2x2x1"),
	}}
}

func (b *board) Topology() *controlpb.TpuTopology { return b.topology }

func (b *board) Detach(ctx context.Context) error {
	b.detached++
	if b.detach != nil {
		return b.detach(ctx)
	}
	return nil
}

func (b *board) Attach(ctx context.Context, expected *controlpb.TpuTopology) error {
	b.attached++
	b.expected = expected
	if b.attach != nil {
		return b.attach(ctx)
	}
	return nil
}

func ask(a controlpb.ControlAction) *controlpb.ControlRequest {
	return &controlpb.ControlRequest{Action: a.Enum(), TimeoutSecs: proto.Int32(180)}
}

// mustDo asks for actions that must succeed.
func mustDo(t *testing.T, m *Machine, actions ...controlpb.ControlAction) {
	t.Helper()
	for _, a := range actions {
		if got := m.Answer(t.Context(), ask(a)); !got.GetSuccess() {
			t.Fatalf("%v: %v", a, got)
		}
	}
}

func wantAnswer(t *testing.T, got *controlpb.ControlResponse, success bool, state controlpb.RuntimeState) {
	t.Helper()
	if got.Success == nil || got.GetSuccess() != success || got.GetCurrentState() != state {
		t.Errorf("answer %v, want success %t and state %v", got, success, state)
	}
	if success != (got.ErrorMessage == nil) {
		t.Errorf("answer %v: words do not fit success", got)
	}
}

// into brings a new machine into a state.
func into(t *testing.T, state controlpb.RuntimeState) (*Machine, *board) {
	t.Helper()
	b := newBoard()
	m := NewMachine(Config{Device: b})
	switch state {
	case locked:
		mustDo(t, m, lock)
	case detached:
		mustDo(t, m, checkpoint)
	case faulted:
		m.Answer(t.Context(), ask(restore))
	}
	if m.State() != state {
		t.Fatalf("state %v, want %v", m.State(), state)
	}
	return m, b
}

func TestTransitions_AreComplete(t *testing.T) {
	want := 4 * 5
	seen := map[[2]int32]bool{}
	for _, row := range Transitions() {
		seen[[2]int32{int32(row.From), int32(row.Action)}] = true
	}
	if len(seen) != want || len(Transitions()) != want {
		t.Errorf("%d rows for %d pairs of state and action, want %d", len(Transitions()), len(seen), want)
	}
}

func TestAnswer_EveryTransition(t *testing.T) {
	for _, row := range Transitions() {
		m, _ := into(t, row.From)
		got := m.Answer(t.Context(), ask(row.Action))
		switch row.Success {
		case Refused:
			wantAnswer(t, got, false, row.Failure)
		case AsBefore:
			wantAnswer(t, got, true, running)
		default:
			wantAnswer(t, got, true, row.Success)
		}
		if t.Failed() {
			t.Fatalf("in row %+v", row)
		}
	}
}

func TestAnswer_FailuresOfTheDevice(t *testing.T) {
	broken := errors.New("HBM is on fire")
	for _, tc := range []struct {
		name   string
		from   controlpb.RuntimeState
		action controlpb.ControlAction
		err    error
		want   controlpb.RuntimeState
	}{
		{"detach", running, checkpoint, broken, running},
		{"detach when locked", locked, checkpoint, broken, locked},
		{"detach, and the device is lost", running, checkpoint, errors.Join(broken, ErrFaulted), faulted},
		{"attach", detached, restore, broken, faulted},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, b := into(t, tc.from)
			b.detach = func(context.Context) error { return tc.err }
			b.attach = b.detach
			wantAnswer(t, m.Answer(t.Context(), ask(tc.action)), false, tc.want)
		})
	}
}

func TestAnswer_FailedCheckpointMayBeAskedAgain(t *testing.T) {
	m, b := into(t, running)
	b.detach = func(context.Context) error { return errors.New("not now") }
	wantAnswer(t, m.Answer(t.Context(), ask(checkpoint)), false, running)
	b.detach = nil
	mustDo(t, m, checkpoint, restore)
}

func TestAnswer_LockSurvivesCheckpoint(t *testing.T) {
	m, _ := into(t, locked)
	wantAnswer(t, m.Answer(t.Context(), ask(checkpoint)), true, detached)
	wantAnswer(t, m.Answer(t.Context(), ask(restore)), true, locked)
	wantAnswer(t, m.Answer(t.Context(), ask(unlock)), true, running)
}

func TestAnswer_SecondRestoreFaults(t *testing.T) {
	m, b := into(t, detached)
	mustDo(t, m, restore)
	wantAnswer(t, m.Answer(t.Context(), ask(restore)), false, faulted)
	if b.attached != 1 {
		t.Errorf("the device was attached %d times", b.attached)
	}
	if err := m.Do(t.Context(), nothing); !errors.Is(err, ErrFaulted) {
		t.Errorf("operation: %v, want ErrFaulted", err)
	}
}

func TestAnswer_SecondCheckpointIsRefused(t *testing.T) {
	m, b := into(t, detached)
	wantAnswer(t, m.Answer(t.Context(), ask(checkpoint)), false, detached)
	if b.detached != 1 {
		t.Errorf("the device was detached %d times", b.detached)
	}
	mustDo(t, m, restore)
}

func TestAnswer_UnknownActions(t *testing.T) {
	for _, state := range []controlpb.RuntimeState{running, locked, detached, faulted} {
		m, _ := into(t, state)
		wantAnswer(t, m.Answer(t.Context(), &controlpb.ControlRequest{}), false, state)
		wantAnswer(t, m.Answer(t.Context(), ask(77)), false, state)
	}
}

func TestAnswer_Topology(t *testing.T) {
	m, b := into(t, running)
	got := m.Answer(t.Context(), ask(checkpoint))
	if !proto.Equal(got.GetActiveTopology(), b.topology) || got.GetCheckpointStats() == nil {
		t.Errorf("answer to CHECKPOINT %v, want topology and stats", got)
	}
	request := ask(restore)
	request.ExpectedTopology = &controlpb.TpuTopology{NumChips: proto.Int32(8)}
	wantAnswer(t, m.Answer(t.Context(), request), false, detached)
	if b.attached != 0 {
		t.Error("hardware that differs was opened")
	}
	request.ExpectedTopology = b.topology
	got = m.Answer(t.Context(), request)
	wantAnswer(t, got, true, running)
	if !proto.Equal(b.expected, b.topology) || got.GetRestoreStats() == nil {
		t.Errorf("answer to RESTORE %v, Attach got %v", got, b.expected)
	}
}

func TestCheckTopology_NamesTheField(t *testing.T) {
	have := newBoard().topology
	for want, text := range map[*controlpb.TpuTopology]string{
		nil:                            "",
		{}:                             "",
		{NumChips: proto.Int32(4)}:     "",
		{NumChips: proto.Int32(8)}:     "topology differs in num_chips: expected 8, found 4",
		{MeshShape: proto.String("x")}: `topology differs in mesh_shape: expected "x", found "2x2x1"`,
		{ChipArchitecture: proto.String("v6e"), NumChips: proto.Int32(1)}: `topology differs in chip_architecture: expected "v6e", found "v5e"`,
		{PjrtVersion: proto.String("1")}:                                  `topology differs in pjrt_version: expected "1", found ""`,
	} {
		got := ""
		if err := CheckTopology(want, have); err != nil {
			got = err.Error()
		}
		if got != text {
			t.Errorf("%v: %q, want %q", want, got, text)
		}
	}
}

func TestAnswer_StateWhileRestoring(t *testing.T) {
	m, b := into(t, detached)
	var during controlpb.RuntimeState
	b.attach = func(context.Context) error {
		during = m.State()
		return nil
	}
	mustDo(t, m, restore)
	if during != restoring {
		t.Errorf("state %v while the device is attached, want RESTORING", during)
	}
}

func TestAnswer_KeepsTheLimit(t *testing.T) {
	for seconds, want := range map[int32]time.Duration{7: 7 * time.Second, 0: DefaultLimit, -1: DefaultLimit} {
		synctest.Test(t, func(t *testing.T) {
			m, b := into(t, running)
			b.detach = func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			}
			request := ask(checkpoint)
			request.TimeoutSecs = proto.Int32(seconds)
			start := time.Now()
			wantAnswer(t, m.Answer(t.Context(), request), false, running)
			if took := time.Since(start); took != want {
				t.Errorf("limit %d s: took %v, want %v", seconds, took, want)
			}
		})
	}
}

func TestWords_FitIntoAnAnswer(t *testing.T) {
	m, b := into(t, running)
	long := make([]byte, 1<<21)
	for i := range long {
		long[i] = "ä\xff"[i%3]
	}
	b.detach = func(context.Context) error { return errors.New(string(long)) }
	frame, err := tpuwire.AppendFrame(nil, m.Answer(t.Context(), ask(checkpoint)))
	if err != nil || len(frame) > 4096 {
		t.Errorf("an answer of %d bytes, error %v", len(frame), err)
	}
}
