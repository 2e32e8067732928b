package control

import (
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
	metricPhases = metric.MustCreateNewTimerMetric("/tpu/phases",
		metric.NewExponentialBucketer(24, uint64(time.Millisecond), float64(time.Millisecond), 1.9),
		"Time that the phases of operations on the sandbox's TPUs have taken.",
		metric.NewField("phase", phaseFields.all...))
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

func kindField(kind string) *metric.FieldValue   { return kindFields.of(kind) }
func phaseField(phase string) *metric.FieldValue { return phaseFields.of(phase) }
func resultField(r string) *metric.FieldValue    { return resultFields.of(r) }

func actionField(a controlpb.ControlAction) *metric.FieldValue {
	return actionFields.of(tpuwire.ActionName(a))
}

func outcomeField(success bool) *metric.FieldValue {
	if success {
		return outcomeFields.of("success")
	}
	return outcomeFields.of("failure")
}
