package operator

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/api"
	"tpuvisor.dev/tpuvisor/test/trial"
)

// TestLook asks a sandbox all there is to ask.
func TestLook(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Processes: 2})
	id := r.Container.ID
	r.runsc("tpu", "state", id).wants(t, yes, "RUNNING", `"trainer"`, "TOPOLOGY")
	states := parse[[]api.RuntimeState](t, r.runsc("tpu", "state", "-format=json", id).wants(t, yes))
	if len(states) != 2 || states[0].State != "RUNNING" || states[0].Topology == nil || states[0].Topology.ChipArchitecture != "v5e" {
		t.Errorf("the states are %+v", states)
	}
	r.runsc("tpu", "ps", id).wants(t, yes, `"trainer"`, "/dev/vfio/0", "RUNNING", "v5e")
	type listing struct {
		Processes []api.Process
		Status    api.Status
	}
	l := parse[listing](t, r.runsc("tpu", "ps", "-format=json", id).wants(t, yes))
	if len(l.Processes) != 2 || len(l.Processes[0].Threads) != 1 || !slices.Contains(l.Processes[0].Devices, "/dev/vfio/0") || l.Status.Current != nil {
		t.Errorf("the processes are %+v", l)
	}
	r.runsc("tpu", "wait", id).wants(t, yes)
	op := parse[api.Operation](t, r.runsc("tpu", "trace", "-format=json", id).wants(t, yes))
	if op.Kind != api.KindState || len(op.Steps) != 2 {
		t.Errorf("the last operation is %+v", op)
	}
	r.runsc("tpu", "ps", "-format=xml", id).wants(t, failed, "-format")
	r.runsc("tpu", "ps").wants(t, failed, "container ID")
	r.runsc("tpu", "state", "none").wants(t, failed, "loading container")
	r.runsc("tpu", "state", "-limit=1ms", id).wants(t, failed, "1s to 1m")
	r.runsc("tpu", "state", "--help").wants(t, yes, "-limit", "exit status")
}

// TestHolderWithoutARuntime wants ps to say who, and why.
func TestHolderWithoutARuntime(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{NoControl: true})
	r.runsc("tpu", "ps", r.Container.ID).wants(t, yes, `"trainer"`, "LIBTPU_CHECKPOINTING_ENABLED=true")
	r.runsc("tpu", "lock", r.Container.ID).wants(t, failed, "LIBTPU_CHECKPOINTING_ENABLED=true")
	r.runsc("tpu", "trace", r.Container.ID).wants(t, yes, "lock")
}

func TestStateOfTheSilent(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Processes: 2, Fault: "stall@GETSTATE:rank=1"})
	r.runsc("tpu", "state", "-limit=1s", r.Container.ID).wants(t, no, "RUNNING", "no answer in time")
	r.goesOn()
}

// TestLease wants locked runtimes to be unlocked by themselves.
func TestLease(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{})
	id := r.Container.ID
	r.runsc("tpu", "unlock", id).wants(t, failed, "not locked")
	r.runsc("tpu", "lock", "-lease=1s", id).wants(t, yes, "locked until", `"trainer"`)
	r.awaitRequest(0, "UNLOCK", 1)
	r.goesOn()
	r.runsc("tpu", "lock", "-lease=1ms", id).wants(t, failed, "the lease is 1ms")
	l := parse[api.Locked](t, r.runsc("tpu", "lock", "-format=json", "-lease=1h", id).wants(t, yes))
	if len(l.Runtimes) != 1 || l.Lease == nil || time.Until(l.Lease.Until) < 50*time.Minute {
		t.Errorf("locked %+v", l)
	}
	r.runsc("tpu", "ps", id).wants(t, yes, "locked: 1 runtimes", "LOCKED")
	r.runsc("tpu", "unlock", id).wants(t, yes, `"trainer"`)
	r.goesOn()
	r.wantRequests(0, "LOCK", "UNLOCK", "LOCK", "UNLOCK")
}

// TestSlice checkpoints the sandboxes of several hosts as a controller does: all are
// locked, then all saved and restored, and none goes on before the last is back.
func TestSlice(t *testing.T) {
	t.Parallel()
	hosts := []*rig{start(t, trial.Job{}), start(t, trial.Job{}), start(t, trial.Job{})}
	for _, r := range hosts {
		r.runsc("tpu", "lock", "-lease=10m", "-keep", r.Container.ID).wants(t, yes)
	}
	var before [][]int
	for _, r := range hosts {
		p, err := r.Progress()
		r.must(err)
		before = append(before, p)
	}
	var images []string
	for _, r := range hosts {
		image := r.Image()
		r.runsc("checkpoint", "-image-path="+image, r.Container.ID).wants(t, yes)
		images = append(images, image)
	}
	for i, r := range hosts {
		r.must(r.Wipe())
		r.must(r.RestoreOnly(t.Context(), images[i]))
		r.runsc("tpu", "wait", r.Container.ID).wants(t, yes)
		r.runsc("tpu", "state", r.Container.ID).wants(t, yes, "LOCKED")
		r.runsc("tpu", "ps", r.Container.ID).wants(t, yes, "locked: 1 runtimes")
	}
	for i, r := range hosts {
		now, err := r.Progress()
		r.must(err)
		if now[0] > before[i][0]+1 { // a step that was under way is finished
			t.Errorf("host %d went from step %v to %v while it was locked", i, before[i], now)
		}
	}
	for _, r := range hosts {
		r.runsc("tpu", "unlock", r.Container.ID).wants(t, yes)
	}
	for _, r := range hosts {
		r.goesOn()
		r.wantRequests(0, "LOCK", "CHECKPOINT", "RESTORE", "UNLOCK")
	}
}

// TestLockEndsWithARestore is a lock that is not to be kept.
func TestLockEndsWithARestore(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{})
	r.runsc("tpu", "lock", r.Container.ID).wants(t, yes)
	image := r.Image()
	r.runsc("checkpoint", "-image-path="+image, r.Container.ID).wants(t, yes)
	r.must(r.Wipe())
	r.must(r.Restore(t.Context(), image))
	r.goesOn()
	r.wantRequests(0, "LOCK", "CHECKPOINT", "RESTORE", "UNLOCK")
}

// TestTraces wants the timelines of a checkpoint and of a restore to say where the
// time has gone.
func TestTraces(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Processes: 2, Fault: "late=1s@CHECKPOINT:rank=1"})
	image := r.Image()
	r.runsc("checkpoint", "-image-path="+image, r.Container.ID).wants(t, yes)
	r.runsc("tpu", "trace", image).wants(t, yes, "checkpoint", "detach", "save", "CHECKPOINT", "acknowledged", `"trainer"`)
	var chrome struct {
		Events []struct {
			Name  string  `json:"name"`
			Phase string  `json:"ph"`
			Took  float64 `json:"dur"`
			Time  float64 `json:"ts"`
		} `json:"traceEvents"`
	}
	s := r.runsc("tpu", "trace", "-format=chrome", image).wants(t, yes)
	if err := json.Unmarshal([]byte(s.stdout), &chrome); err != nil {
		t.Fatal(err)
	}
	slow := 0
	for _, e := range chrome.Events {
		if e.Phase == "X" && e.Time < 1e15 {
			t.Errorf("%s begins at %v µs", e.Name, e.Time)
		}
		if e.Name == "CHECKPOINT" && e.Took >= 1e6 {
			slow++
		}
	}
	if slow < 1 { // the other one may be slow by itself
		t.Errorf("%d runtimes took a second for CHECKPOINT, want at least 1: %s", slow, s.stdout)
	}
	r.must(r.Wipe())
	r.must(r.Restore(t.Context(), image))
	op := parse[api.Operation](t, r.runsc("tpu", "trace", "-format=json", r.Container.ID).wants(t, yes))
	var names []string
	for _, p := range op.Phases {
		names = append(names, p.Name)
	}
	if op.Kind != api.KindRestore || strings.Join(names, " ") != "load attach" || len(op.Steps) != 2 {
		t.Errorf("the restore is %+v", op)
	}
}

// TestMetrics scrapes what runsc exports.
func TestMetrics(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Processes: 2, Fault: "refuse@CHECKPOINT:rank=1,nth=1"})
	r.runsc("checkpoint", "-image-path="+r.Image(), r.Container.ID).wants(t, failed)
	r.runsc("checkpoint", "-leave-running", "-image-path="+r.Image(), r.Container.ID).wants(t, yes)
	s := r.runsc("export-metrics", r.Container.ID).wants(t, yes)
	for _, want := range []struct{ name, fields, value string }{
		{"runsc_tpu_operations", `kind="checkpoint"|result="failure"`, "1"},
		{"runsc_tpu_operations", `kind="checkpoint"|result="success"`, "1"},
		{"runsc_tpu_requests", `action="CHECKPOINT"|result="acknowledged"`, "3"},
		{"runsc_tpu_requests", `action="CHECKPOINT"|result="refused"`, "1"},
		{"runsc_tpu_requests", `action="RESTORE"|result="acknowledged"`, "3"},
		{"runsc_tpu_runtimes", "", "2"},
		{"runsc_tpu_undos", "", "1"},
		{"runsc_tpu_phase_milliseconds_count", `phase="save"`, "1"},
		{"runsc_tpu_phase_milliseconds_bucket", `phase="attach"|le="+Inf"`, "1"},
	} {
		if got := sample(s.stdout, want.name, strings.Split(want.fields, "|")); got != want.value {
			t.Errorf("%s %s is %q, want %s", want.name, want.fields, got, want.value)
		}
	}
	r.runsc("metric-metadata").wants(t, yes)
	if t.Failed() {
		t.Log(s.stdout)
	}
}

// sample finds the value of a metric in Prometheus' text format.
func sample(text, name string, fields []string) string {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		all := true
		for _, f := range fields {
			all = all && strings.Contains(rest, f)
		}
		if words := strings.Fields(rest[strings.LastIndex(rest, "}")+1:]); all && len(words) > 0 {
			return words[0]
		}
	}
	return ""
}
