//go:build faults

package sandboxed

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"tpuvisor.dev/tpuvisor/test/faults"
	"tpuvisor.dev/tpuvisor/test/sandbox"
	"tpuvisor.dev/tpuvisor/test/trial"
)

// TestSandboxed_Restoring restores a job of which one member cannot be given back its
// TPU: the sandbox ends, and the error comes to whoever waits.
func TestSandboxed_Restoring(t *testing.T) {
	t.Parallel()
	for _, row := range rows(func(r faults.Row) bool {
		return r.Kind() == "restoring" || r.ID == "answers/garbage" || r.ID == "silence/closes-answers"
	}) {
		n := 2
		if row.Kind() == "restoring" {
			n = 8
		}
		group(t, func([]step) trial.Job {
			return trial.Job{Processes: n, Fault: row.FaultAt(faults.Restore, limit, bad), Annotations: map[string]string{
				checkpointTimeoutAnnotation: generous.String(), timeoutAnnotation: limit.String(),
			}}
		}, []step{{row: row, phase: faults.Restore, ended: true, do: func(r *rig) error { return failRestore(r, row) }}})
	}
}

func failRestore(r *rig, row faults.Row) error {
	ctx, cancel := context.WithTimeout(r.ctx, 2*patience)
	defer cancel()
	image, err := r.Checkpoint(ctx)
	if err != nil {
		return err
	}
	if err := wantWords(r.RestoreAttached(ctx, image), words[row.Attach.Error], "trainer"); err != nil {
		return err
	}
	old := r.Container
	err = r.RestoreOnly(ctx, image)
	if err == nil {
		_, err = r.Runsc.Do(ctx, "wait", "-restore", r.Container.ID)
	}
	if err := wantWords(err, words[row.Attach.Error], "trainer"); err != nil {
		return err
	}
	if r.Container == nil {
		r.Container = old
		return nil
	}
	// Nothing of it must be left but what runsc delete takes away.
	err = sandbox.Poll(ctx, "the sandbox to end", func() (bool, error) {
		state, err := r.Container.State(ctx)
		return state.Status == "stopped", err
	})
	if err != nil {
		return err
	}
	if err := r.Container.Delete(ctx); err != nil {
		return err
	}
	list, err := r.Runsc.List(ctx)
	if list[r.Container.ID] != "" {
		err = errors.Join(err, fmt.Errorf("the deleted container is listed: %v", list))
	}
	return err
}
