package control

import (
	"errors"
	"testing"
	"time"

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

func TestPhaseDistribution(t *testing.T) {
	phase := phaseFields.of(api.PhaseLoad)
	value := func(i int) uint64 { return metricPhaseBucket.Value(phase, buckets[i].field) }
	var before []uint64
	for i := range buckets {
		before = append(before, value(i))
	}
	sum, count := metricPhaseSum.Value(phase), metricPhaseCount.Value(phase)
	countPhase(api.PhaseLoad, 100*time.Millisecond)
	countPhase(api.PhaseLoad, 2*time.Hour)
	for i, b := range buckets {
		want := uint64(1)
		switch {
		case b.limit < 100*time.Millisecond:
			want = 0
		case b.limit > 2*time.Hour:
			want = 2
		}
		if got := value(i) - before[i]; got != want {
			t.Errorf("le %s: %d more, want %d", b.field.Value, got, want)
		}
	}
	if got := metricPhaseSum.Value(phase) - sum; got != 7200100 {
		t.Errorf("the sum grew by %d ms", got)
	}
	if got := metricPhaseCount.Value(phase) - count; got != 2 {
		t.Errorf("the count grew by %d", got)
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
