package e2e

import (
	"os/exec"
	"path/filepath"
	"testing"

	"tpuvisor.dev/tpuvisor/test/sandbox"
	"tpuvisor.dev/tpuvisor/test/trial"
)

// timeoutAnnotation sets how long an exchange with the runtimes may take.
const timeoutAnnotation = "dev.gvisor.internal.tpu.timeout"

func TestRuntimeRefuses(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Fault: "refuse@CHECKPOINT:nth=1,state=RUNNING,text=no%20room%20in%20host%20memory"})
	r.failCheckpoint("CHECKPOINT", "trainer", "RUNNING", "no room in host memory")
	r.goesOn()
	r.wantRequests(0, "CHECKPOINT")

	r.move(r.checkpoint())
	r.goesOn()
	r.wantRequests(0, "CHECKPOINT", "CHECKPOINT", "RESTORE")
}

// TestOneOfThreeFails wants the two that did as they were asked to be undone, and
// the third, which is attached still, to be left alone.
func TestOneOfThreeFails(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Processes: 3, Fault: "refuse@CHECKPOINT:rank=1,nth=1,text=chip%20is%20hot"})
	r.failCheckpoint("chip is hot")
	r.goesOn()
	r.wantStatus("running")
	r.wantRequests(0, "CHECKPOINT", "RESTORE")
	r.wantRequests(1, "CHECKPOINT")
	r.wantRequests(2, "CHECKPOINT", "RESTORE")

	r.move(r.checkpoint())
	r.goesOn()
}

// TestRuntimeNeverAnswers wants the limit to be kept, and the runtime, which may
// have done what it was asked and may not, to be sent RESTORE once.
func TestRuntimeNeverAnswers(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{
		Processes:   2,
		Fault:       "stall@CHECKPOINT:rank=1",
		Annotations: map[string]string{timeoutAnnotation: "2s"},
	})
	r.failCheckpoint("CHECKPOINT", "trainer")
	r.goesOn() // the silent one has done nothing, and goes on like the other
	r.wantStatus("running")
	r.wantRequests(0, "CHECKPOINT", "RESTORE")
	r.wantRequests(1, "CHECKPOINT")
}

// TestRuntimeAborts wants the end of a process in the middle of the exchange to be
// noticed at once: the limit is longer than the test's patience.
func TestRuntimeAborts(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{
		Processes:   2,
		Fault:       "abort@CHECKPOINT:rank=1",
		Annotations: map[string]string{timeoutAnnotation: "30m"},
	})
	r.failCheckpoint("CHECKPOINT", "trainer")
	r.goesOn(0)
	r.wantRequests(0, "CHECKPOINT", "RESTORE")
}

// TestNoControlThread wants nothing to be sent to anyone, and to be told what to set.
func TestNoControlThread(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{NoControl: true})
	r.failCheckpoint("trainer", "LIBTPU_CHECKPOINTING_ENABLED")
	r.goesOn()
}

// TestSaveFails has something fail after the runtimes have let go of their TPUs:
// the program that is to run in the sandbox before it is saved.
func TestSaveFails(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Processes: 2})
	if _, err := r.Checkpoint(t.Context(), "-save-restore-exec-argv=/missing"); err == nil {
		t.Fatal("the checkpoint succeeded")
	}
	r.goesOn()
	r.wantStatus("running")
	r.wantAllRequests(2, "CHECKPOINT", "RESTORE")
}

// TestBuiltWithoutTheSeam builds runsc as somebody would who forgot about the seam,
// so with gVisor's own hooks, which would lose TPUs, and wants it to refuse every
// command.
func TestBuiltWithoutTheSeam(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	binary := filepath.Join(dir, "runsc")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", binary, "tpuvisor.dev/tpuvisor/runsc")
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build runsc without the seam: %v\n%s", err, out)
	}
	r, err := sandbox.New(binary, filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"list", "help", "flags"} {
		out, err := r.Do(t.Context(), command)
		if err == nil {
			t.Errorf("runsc %s did something: %s", command, out)
			continue
		}
		wantWords(t, err, "seam", "make runsc")
	}
}

// TestNothingLeftByAFailedCheckpoint wants no image that could be taken for one.
func TestNothingLeftByAFailedCheckpoint(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Fault: "refuse@CHECKPOINT:nth=1"})
	image := r.Image()
	if err := r.Container.Checkpoint(t.Context(), image); err == nil {
		t.Fatal("the checkpoint succeeded")
	}
	files, err := filepath.Glob(filepath.Join(image, "*"))
	r.must(err)
	if len(files) > 0 {
		t.Errorf("a failed checkpoint left %v", files)
	}
	r.must(r.Container.Checkpoint(t.Context(), image))
	r.move(image)
	r.goesOn()
}
