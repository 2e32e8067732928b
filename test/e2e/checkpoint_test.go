package e2e

import (
	"testing"

	"tpuvisor.dev/tpuvisor/test/trial"
)

func TestRestoreOnAnotherHost(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{})
	r.move(r.checkpoint())
	r.goesOn()
	r.wantRequests(0, "CHECKPOINT", "RESTORE")
}

func TestTwoCycles(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{})
	for range 2 {
		r.move(r.checkpoint())
		r.goesOn()
	}
	r.wantRequests(0, "CHECKPOINT", "RESTORE", "CHECKPOINT", "RESTORE")
}

func TestLeaveRunning(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Processes: 2})
	r.checkpoint("-leave-running")
	r.goesOn()
	r.wantStatus("running")
	r.wantAllRequests(2, "CHECKPOINT", "RESTORE")
}

// TestSecondCheckpointAfterLeaveRunning restores an image that a sandbox wrote that
// had been checkpointed before.
func TestSecondCheckpointAfterLeaveRunning(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{})
	r.checkpoint("-leave-running")
	r.goesOn()
	r.move(r.checkpoint())
	r.goesOn()
	r.wantRequests(0, "CHECKPOINT", "RESTORE", "CHECKPOINT", "RESTORE")
}

func TestFourProcesses(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Processes: 4})
	r.move(r.checkpoint())
	r.goesOn()
	r.wantAllRequests(4, "CHECKPOINT", "RESTORE")
}

func TestTwoRuntimesInOneProcess(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Runtimes: 2})
	r.move(r.checkpoint())
	r.goesOn()
	r.wantAllRequests(2, "CHECKPOINT", "RESTORE")
}

// TestControlThreadWithFilesOfItsOwn has its pipes and its devices in a table of
// open files that only the control thread has, and the pipes at high numbers.
func TestControlThreadWithFilesOfItsOwn(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Args: []string{"-unshare-files", "-lowest-fd", "1100"}})
	r.move(r.checkpoint())
	r.goesOn()
	r.wantRequests(0, "CHECKPOINT", "RESTORE")
}

func TestNoTPU(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{CPU: true, Processes: 2})
	r.move(r.checkpoint())
	r.goesOn()
	r.checkpoint("-leave-running")
	r.goesOn()
	r.wantAllRequests(2)
}
