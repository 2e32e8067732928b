package e2e

import (
	"testing"

	"tpuvisor.dev/tpuvisor/test/trial"
)

// pause pauses the sandbox and returns the job's progress, which is at an end. A
// step that was said just before is in the log: the log is a file of the host.
func (r *rig) pause() []int {
	r.t.Helper()
	r.must(r.Container.Pause(r.t.Context()))
	r.wantStatus("paused")
	before, err := r.Progress()
	r.must(err)
	return before
}

// TestPauseResume wants a pause, with nothing ever checkpointed, to be none of the
// runtime's business.
func TestPauseResume(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{})
	before := r.pause()
	r.wantStatus("paused")
	r.stillStands(before)
	r.must(r.Container.Resume(t.Context()))
	r.goesOn()
	r.wantRequests(0)
}

func TestPauseCheckpointRestore(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Processes: 2})
	r.pause()
	r.move(r.checkpoint())
	r.goesOn()
	r.wantAllRequests(2, "CHECKPOINT", "RESTORE")
}

// TestPauseCheckpointLeaveRunningResume is what an engine does that pauses first:
// the sandbox stays paused after the checkpoint, and the TPU comes back with the
// resume, if not before.
func TestPauseCheckpointLeaveRunningResume(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Processes: 2})
	r.pause()
	r.checkpoint("-leave-running")
	r.wantStatus("paused")
	r.must(r.Container.Resume(t.Context()))
	r.goesOn()
	r.wantAllRequests(2, "CHECKPOINT", "RESTORE")

}
