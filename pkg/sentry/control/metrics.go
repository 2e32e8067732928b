package control

import (
	"fmt"
	"math"
	"time"

	"gvisor.dev/gvisor/pkg/metric"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/api"
	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// What runsc's own commands export of the sandbox's TPUs. Their names are
// interface: docs/operations.md lists them.
var (
	metricOperations = metric.MustCreateNewUint64Metric("/tpu/operations", metric.Uint64Metadata{
		Cumulative:  true,
		Description: "Number of checkpoints, resumes, restores and other operations on the sandbox's TPUs that have ended.",
		Fields:      []metric.Field{metric.NewField("kind", kindFields.all...), metric.NewField("result", outcomeFields.all...)},
	})
	metricRequests = metric.MustCreateNewUint64Metric("/tpu/requests", metric.Uint64Metadata{
		Cumulative:  true,
		Description: "Number of requests to TPU runtimes that have ended.",
		Fields:      []metric.Field{metric.NewField("action", actionFields.all...), metric.NewField("result", resultFields.all...)},
	})
	metricPhaseBucket = metric.MustCreateNewUint64Metric("/tpu/phase_milliseconds_bucket", metric.Uint64Metadata{
		Cumulative:  true,
		Description: "Number of phases of operations on the sandbox's TPUs that took no more than le milliseconds.",
		Fields:      []metric.Field{metric.NewField("phase", phaseFields.all...), metric.NewField("le", bucketFields()...)},
	})
	metricPhaseSum = metric.MustCreateNewUint64Metric("/tpu/phase_milliseconds_sum", metric.Uint64Metadata{
		Cumulative:  true,
		Description: "Time in milliseconds that phases of operations on the sandbox's TPUs have taken.",
		Fields:      []metric.Field{metric.NewField("phase", phaseFields.all...)},
	})
	metricPhaseCount = metric.MustCreateNewUint64Metric("/tpu/phase_milliseconds_count", metric.Uint64Metadata{
		Cumulative:  true,
		Description: "Number of phases of operations on the sandbox's TPUs that have ended.",
		Fields:      []metric.Field{metric.NewField("phase", phaseFields.all...)},
	})
	metricRuntimes = metric.MustCreateNewUint64Metric("/tpu/runtimes", metric.Uint64Metadata{
		Description: "Number of TPU runtimes found when they were last looked for.",
	})
	metricUnmanaged = metric.MustCreateNewUint64Metric("/tpu/unmanaged", metric.Uint64Metadata{
		Description: "Number of processes found that hold a TPU and have no runtime that can be asked to let go of it.",
	})
	metricUndos = metric.MustCreateNewUint64Metric("/tpu/undos", metric.Uint64Metadata{
		Cumulative:  true,
		Description: "Number of failed checkpoints for which runtimes were asked to take their TPUs back.",
	})
	metricDropped = metric.MustCreateNewUint64Metric("/tpu/dropped_answers", metric.Uint64Metadata{
		Cumulative:  true,
		Description: "Number of answers of TPU runtimes that came too late and were dropped.",
	})
)

// fieldValues are the values that a field of a metric may have; the last one stands
// for all that are not listed.
type fieldValues struct {
	by  map[string]*metric.FieldValue
	all []*metric.FieldValue
}

func newFieldValues(values ...string) fieldValues {
	f := fieldValues{by: map[string]*metric.FieldValue{}}
	for _, v := range append(values, "other") {
		value := &metric.FieldValue{Value: v}
		f.by[v] = value
		f.all = append(f.all, value)
	}
	return f
}

func (f fieldValues) of(value string) *metric.FieldValue {
	if v := f.by[value]; v != nil {
		return v
	}
	return f.all[len(f.all)-1]
}

var (
	kindFields = newFieldValues(api.KindCheckpoint, api.KindResume, api.KindRestore,
		api.KindState, api.KindLock, api.KindUnlock)
	outcomeFields = newFieldValues("success", "failure")
	phaseFields   = newFieldValues(api.PhaseDetach, api.PhaseSave, api.PhaseLoad,
		api.PhaseAttach, api.PhaseUndo, api.PhaseAsk)
	actionFields = newFieldValues("LOCK", "CHECKPOINT", "RESTORE", "UNLOCK", "GETSTATE")
	resultFields = newFieldValues(acked.String(), refused.String(), unknown.String(), gone.String())
)

// buckets are the upper bounds of the distribution of a phase's time. gVisor's own
// distributions cannot be exported: the last bucket's bound is infinite, for which
// JSON has no word, and then nothing is exported at all. So this one is made of
// counters that have the names and labels of a Prometheus histogram.
var buckets = func() (all []bucket) {
	for _, limit := range []time.Duration{
		10 * time.Millisecond, 100 * time.Millisecond, time.Second, 3 * time.Second, 10 * time.Second, 30 * time.Second,
		time.Minute, 2 * time.Minute, 3 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour,
	} {
		all = append(all, bucket{limit, &metric.FieldValue{Value: fmt.Sprint(limit.Milliseconds())}})
	}
	return append(all, bucket{math.MaxInt64, &metric.FieldValue{Value: "+Inf"}})
}()

type bucket struct {
	limit time.Duration
	field *metric.FieldValue
}

func bucketFields() []*metric.FieldValue {
	fields := make([]*metric.FieldValue, len(buckets))
	for i, b := range buckets {
		fields[i] = b.field
	}
	return fields
}

// countPhase adds a phase that has ended to the distribution.
func countPhase(name string, took time.Duration) {
	phase := phaseFields.of(name)
	for _, b := range buckets {
		if took <= b.limit {
			metricPhaseBucket.Increment(phase, b.field)
		}
	}
	metricPhaseSum.IncrementBy(uint64(max(0, took).Milliseconds()), phase)
	metricPhaseCount.Increment(phase)
}

func kindField(kind string) *metric.FieldValue { return kindFields.of(kind) }
func resultField(r string) *metric.FieldValue  { return resultFields.of(r) }

func actionField(a controlpb.ControlAction) *metric.FieldValue {
	return actionFields.of(tpuwire.ActionName(a))
}

func outcomeField(success bool) *metric.FieldValue {
	if success {
		return outcomeFields.of("success")
	}
	return outcomeFields.of("failure")
}
