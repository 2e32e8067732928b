package e2e

import (
	"strings"
	"testing"

	"tpuvisor.dev/tpuvisor/test/sandbox"
	"tpuvisor.dev/tpuvisor/test/trial"
)

// TestOtherCommands uses what an engine uses beside checkpoints, on a container
// with TPUs that has been restored.
func TestOtherCommands(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{})
	r.move(r.checkpoint())
	r.wantStatus("running")

	out, err := r.Container.Exec(t.Context(), "/trainer", "-cpu", "-steps=1", "-log=/tmp")
	r.must(err)
	if !strings.Contains(out, "step 1") {
		t.Errorf("a program run by exec said %q", out)
	}
	r.must(r.Container.Kill(t.Context(), "TERM"))
	r.must(sandbox.Poll(t.Context(), "the container to be listed as stopped", func() (bool, error) {
		list, err := r.Runsc.List(t.Context())
		return list[r.Container.ID] == "stopped", err
	}))
	r.must(r.Container.Delete(t.Context()))
	list, err := r.Runsc.List(t.Context())
	r.must(err)
	if list[r.Container.ID] != "" {
		t.Errorf("the deleted container is listed: %v", list)
	}
	r.must(r.Verify())
}
