//go:build faults

package sandboxed

import (
	"errors"
	"testing"

	"tpuvisor.dev/tpuvisor/test/faults"
	"tpuvisor.dev/tpuvisor/test/trial"
)

// TestSandboxed_Pods has several containers in one sandbox.
func TestSandboxed_Pods(t *testing.T) {
	t.Parallel()
	several := trial.Job{Processes: 2, Groups: []int{0, 1, 2}}.Pod()
	group(t, func([]step) trial.Job { return several }, []step{
		operator("who/several-containers", faults.Checkpoint, severalContainers),
	})
	without := trial.Job{CPU: true}.Pod()
	group(t, func([]step) trial.Job { return without }, []step{
		operator("who/joins-without", faults.Checkpoint, joinsWithout),
	})
}

// severalContainers wants the error to name the container whose runtime says no.
func severalContainers(r *rig) error {
	row := faults.Find("who/several-containers")
	other, err := r.Join(r.ctx, "second", trial.Job{Groups: []int{2}, Pace: pace, Fault: row.FaultAt(faults.Checkpoint, limit, 0)})
	if err != nil {
		return err
	}
	image, err := r.save()
	err = wantError(faults.Refused, "second", image, err)
	err = errors.Join(err, r.goesOn(), other.Advance(r.ctx, 2), other.Verify())
	return errors.Join(err, other.Container.Delete(r.ctx))
}

func joinsWithout(r *rig) error {
	_, err := r.Join(r.ctx, "second", trial.Job{})
	return errors.Join(wantWords(err, "was started without", "dev.gvisor.internal.tpuproxy"), r.goesOn())
}
