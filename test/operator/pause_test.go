package operator

import (
	"testing"
	"time"

	"tpuvisor.dev/tpuvisor/test/trial"
)

// TestPauseMeanwhile wants pauses and resumes to be refused at once while the
// runtimes are asked, whether the sandbox was paused before or not, and other
// commands to be quick.
func TestPauseMeanwhile(t *testing.T) {
	t.Parallel()
	for _, paused := range []bool{false, true} {
		r := start(t, trial.Job{Fault: "late=10s@CHECKPOINT"})
		if paused {
			r.must(r.Container.Pause(t.Context()))
		}
		c := r.begin("checkpoint", "-leave-running", "-image-path="+r.Image(), r.Container.ID)
		r.awaitRequest(0, "CHECKPOINT", 1)
		begun := time.Now()
		command := map[bool]string{false: "pause", true: "resume"}[paused]
		r.runsc(command, r.Container.ID).wants(t, failed, command+" failed:", "under way: a checkpoint (phase detach)").oneLine(t)
		r.runsc("list").wants(t, yes, r.Container.ID)
		r.runsc("tpu", "ps", r.Container.ID).wants(t, yes, "trainer", "CHECKPOINT for", "under way: checkpoint, phase detach")
		r.runsc("tpu", "state", r.Container.ID).wants(t, failed, "under way: a checkpoint")
		if took := time.Since(begun); took > 30*time.Second {
			t.Errorf("that took %v", took)
		}
		c.end().wants(t, yes)
		if paused {
			r.runsc("resume", r.Container.ID).wants(t, yes)
		}
		r.goesOn()
		r.wantRequests(0, "CHECKPOINT", "RESTORE")
	}
}

// TestSlowResume wants a resume to wait for the TPUs, and nobody else to wait for it.
func TestSlowResume(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Fault: "late=15s@RESTORE"})
	r.must(r.Container.Pause(t.Context()))
	r.runsc("checkpoint", "-leave-running", "-image-path="+r.Image(), r.Container.ID).wants(t, yes)
	r.wantStatus("paused")
	waiting := r.begin("tpu", "wait", r.Container.ID)
	c := r.begin("resume", r.Container.ID)
	r.awaitRequest(0, "RESTORE", 1)
	r.wantStatus("running")
	r.runsc("pause", r.Container.ID).wants(t, failed, "under way: a resume")
	r.runsc("tpu", "wait", "-timeout=1s", r.Container.ID).wants(t, no, "not back after 1s")
	c.end().wants(t, yes)
	waiting.end().wants(t, yes)
	r.goesOn()
	r.runsc("tpu", "trace", r.Container.ID).wants(t, yes, "resume", "attach", "RESTORE")
	r.runsc("resume", r.Container.ID).wants(t, failed, "resume failed:", "running")
}

// TestFailedResume wants the failure to reach the command that caused it.
func TestFailedResume(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Fault: "refuse@RESTORE:state=FAULTED,text=group%20is%20held"})
	r.must(r.Container.Pause(t.Context()))
	r.runsc("checkpoint", "-leave-running", "-image-path="+r.Image(), r.Container.ID).wants(t, yes)
	r.runsc("resume", r.Container.ID).wants(t, failed, "resume failed:", "RESTORE of pid", `"group is held"`, "FAULTED").oneLine(t)
	r.wantStatus("running")
	r.runsc("tpu", "wait", r.Container.ID).wants(t, no, `"group is held"`)
	r.runsc("pause", r.Container.ID).wants(t, yes)
	r.runsc("resume", r.Container.ID).wants(t, yes)
}
