package control

import (
	"errors"
	"testing"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/api"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// TestMetrics counts what a checkpoint that is undone adds to each of them.
func TestMetrics(t *testing.T) {
	values := func() map[string]uint64 {
		return map[string]uint64{
			"failures":    metricOperations.Value(kindField(api.KindCheckpoint), outcomeField(false)),
			"successes":   metricOperations.Value(kindField(api.KindCheckpoint), outcomeField(true)),
			"checkpoints": metricRequests.Value(actionField(actCheckpoint), resultField(acked.String())),
			"restores":    metricRequests.Value(actionField(actRestore), resultField(acked.String())),
			"undos":       metricUndos.Value(),
			"dropped":     metricDropped.Value(),
		}
	}
	f := newFront(t)
	a, b := f.guest(t, "a"), f.guest(t, "b")
	before := values()
	f.inBubble(t, func(t *testing.T) {
		a.play(ok)
		b.play(ok)
		f.leaveRunning(t)
		f.detach(t)
		if err := f.desk.abort(f.k.Kernel, errors.New("disk full")); err != nil {
			t.Fatal(err)
		}
	})
	after := values()
	want := map[string]uint64{"failures": 1, "successes": 1, "checkpoints": 4, "restores": 4, "undos": 1, "dropped": 0}
	for name, n := range want {
		if got := after[name] - before[name]; got != n {
			t.Errorf("%s: %d more, want %d", name, got, n)
		}
	}
	if got := metricRuntimes.Value(); got != 2 {
		t.Errorf("%d runtimes found, want 2", got)
	}
}

// TestMetricFields wants a field to have a value for whatever there may be.
func TestMetricFields(t *testing.T) {
	if got := actionField(controlpb.ControlAction(99)).Value; got != "other" {
		t.Errorf("an unknown action counts as %q", got)
	}
	for r := range numResults {
		if got := resultField(r.String()).Value; r != sent && got != r.String() {
			t.Errorf("the result %v counts as %q", r, got)
		}
	}
}
