package operator

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"tpuvisor.dev/tpuvisor/test/trial"
)

const annotation = "dev.gvisor.internal.tpu."

// TestProbes asks as engines do whether there is a checkpoint.
func TestProbes(t *testing.T) {
	t.Parallel()
	r := prepareRig(t, trial.Job{})
	for _, probe := range []string{"--help", "-help", "-h"} {
		r.runsc("checkpoint", probe).wants(t, yes, "-image-path", "-leave-running", "-file-locks", "-tpu-progress", "-work-path")
	}
	r.runsc("restore", "--help").wants(t, yes, "-image-path", "-bundle", "-detach")
	r.runsc("help", "checkpoint").wants(t, yes, "-image-path")
	r.runsc("help").wants(t, yes, "checkpoint", "tpu ", "metric-server", "debug", "Additional help topics", "platforms")
	r.runsc("help", "tpu").wants(t, yes, "ps", "trace", "help settings")
	r.runsc("tpu", "help", "settings").wants(t, yes, annotation+"handshake", "enforce", "default: 3m")
	r.runsc("checkpoint").wants(t, failed)
}

// TestFailureLeavesNothing wants what was there before, and nothing else.
func TestFailureLeavesNothing(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Fault: "refuse@CHECKPOINT:nth=1,text=hbm%20is%20hot;refuse@CHECKPOINT:nth=2"})
	id := r.Container.ID
	deep := filepath.Join(r.dir, "deep", "er")
	s := r.runsc("--log="+filepath.Join(r.dir, "engine.log"), "checkpoint", "-image-path="+deep, id)
	s.wants(t, failed, "checkpoint failed:", "CHECKPOINT of pid", `"hbm is hot"`).oneLine(t)
	log, err := os.ReadFile(filepath.Join(r.dir, "engine.log"))
	r.must(err)
	if !strings.Contains(string(log), `hbm is hot`) {
		t.Errorf("the engine's log has %s", log)
	}
	if _, err := os.Stat(filepath.Dir(deep)); !os.IsNotExist(err) {
		t.Error("folders that were made for the image are left")
	}

	other := filepath.Join(r.dir, "other")
	r.must(os.Mkdir(other, 0o755))
	r.must(os.WriteFile(filepath.Join(other, "mine"), nil, 0o644))
	r.runsc("checkpoint", "-image-path="+other, id).wants(t, failed)
	if got := files(t, other); !slices.Equal(got, []string{"mine"}) {
		t.Errorf("the folder has %q", got)
	}

	r.must(os.WriteFile(filepath.Join(other, "pages.img"), []byte("old"), 0o644))
	r.runsc("checkpoint", "-image-path="+other, id).wants(t, failed, "holds an image already (pages.img)").oneLine(t)
	if got := files(t, other); !slices.Equal(got, []string{"mine", "pages.img"}) {
		t.Errorf("the folder has %q", got)
	}
	r.runsc("checkpoint", "-image-path="+filepath.Join(other, "mine", "x"), id).wants(t, failed, "image directory").oneLine(t)
	r.runsc("checkpoint", id).wants(t, failed, "-image-path")
	r.runsc("checkpoint", "-image-path="+deep, "-compression=zip", id).wants(t, failed, "-compression")
	r.wantRequests(0, "CHECKPOINT", "CHECKPOINT") // the others were refused before
	r.goesOn()
	r.runsc("checkpoint", "-file-locks", "-work-path=x", "-image-path="+deep, id).wants(t, yes)
}

// TestLaterFailureIsUndone fails after the runtimes have let go.
func TestLaterFailureIsUndone(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Processes: 2})
	image := r.Image()
	r.runsc("checkpoint", "-image-path="+image, "-save-restore-exec-argv=/missing", r.Container.ID).
		wants(t, failed, "save/restore binary", "undone: RUNNING again: pid").oneLine(t)
	if got := files(t, image); got != nil {
		t.Errorf("the image has %q", got)
	}
	r.wantRequests(0, "CHECKPOINT", "RESTORE")
	r.wantRequests(1, "CHECKPOINT", "RESTORE")
	r.goesOn()
	trace := r.runsc("tpu", "trace", r.Container.ID).wants(t, yes, "detach", "undo", "RESTORE", "undone: RUNNING again")
	if strings.Index(trace.stdout, "CHECKPOINT") > strings.Index(trace.stdout, "RESTORE") {
		t.Errorf("the timeline is out of order:\n%s", trace.stdout)
	}
}

// TestInterrupt ends a checkpoint early, and keeps the work.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		r := start(t, trial.Job{Fault: "late=2s@CHECKPOINT"})
		image := r.Image()
		c := r.begin("checkpoint", "-image-path="+image, r.Container.ID)
		r.awaitRequest(0, "CHECKPOINT", 1)
		c.signal(s)
		c.end().wants(t, failed, "canceled", "undone: RUNNING again")
		if got := files(t, image); got != nil {
			t.Errorf("the image has %q", got)
		}
		r.wantStatus("running")
		r.goesOn()
		r.wantRequests(0, "CHECKPOINT", "RESTORE")
	}
}

// TestTwoAtOnce wants the second to be refused, and the first not to notice.
func TestTwoAtOnce(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Fault: "late=3s@CHECKPOINT"})
	image, other := r.Image(), r.Image()
	first := r.begin("checkpoint", "-leave-running", "-image-path="+image, r.Container.ID)
	r.awaitRequest(0, "CHECKPOINT", 1)
	r.runsc("checkpoint", "-image-path="+image, r.Container.ID).wants(t, failed, "another checkpoint is being written")
	r.runsc("checkpoint", "-image-path="+other, r.Container.ID).wants(t, failed, "another checkpoint of this sandbox is under way")
	if got := files(t, other); got != nil {
		t.Errorf("the second one's image has %q", got)
	}
	first.end().wants(t, yes)
	if got := files(t, image); !slices.Contains(got, "tpu.json") {
		t.Errorf("the first one's image has %q", got)
	}
	r.goesOn()
}

// TestKilledMeanwhile wants the command to end with the sandbox, and to say so.
func TestKilledMeanwhile(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Fault: "stall@CHECKPOINT"})
	image := r.Image()
	c := r.begin("checkpoint", "-image-path="+image, r.Container.ID)
	r.awaitRequest(0, "CHECKPOINT", 1)
	r.must(r.Container.Kill(t.Context(), "KILL"))
	s := c.end().wants(t, failed, "exit")
	if strings.Contains(s.stderr, "EOF") && !strings.Contains(s.stderr, "the sandbox has ended") {
		t.Errorf("it says %s", s.stderr)
	}
	if got := files(t, image); got != nil {
		t.Errorf("the image has %q", got)
	}
}
