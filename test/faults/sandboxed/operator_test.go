//go:build faults

package sandboxed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"tpuvisor.dev/tpuvisor/test/faults"
	"tpuvisor.dev/tpuvisor/test/sandbox"
	"tpuvisor.dev/tpuvisor/test/trial"
)

// TestSandboxed_Operator does what operators do, most of it while a runtime takes its
// time.
func TestSandboxed_Operator(t *testing.T) {
	t.Parallel()
	slow := trial.Job{Processes: 2, Fault: "late=1s@CHECKPOINT:rank=1"}
	group(t, func([]step) trial.Job { return slow }, []step{
		operator("operator/paused", faults.Checkpoint, pausedBefore),
		operator("operator/pauses-meanwhile", faults.Checkpoint, pausesMeanwhile),
		operator("operator/two-at-once", faults.Checkpoint, twoAtOnce),
		twice("operator/interrupts", interrupts),
		twice("operator/kills-the-command", killsTheCommand),
		operator("operator/resumes-unpaused", faults.Resume, resumesUnpaused),
	})
	for id, do := range map[string]func(*rig) error{"operator/kills-paused": killsPaused, "operator/kills-ended": killsEnded} {
		s := operator(id, faults.Checkpoint, do)
		s.ended = true
		group(t, func([]step) trial.Job { return trial.Job{Processes: 2} }, []step{s})
	}
	group(t, func([]step) trial.Job {
		return trial.Job{Processes: 2, Fault: faults.Find("operator/again-after-failure").FaultAt(faults.Checkpoint, limit, bad)}
	}, []step{twice("operator/again-after-failure", againAfterFailure)})
	for id, end := range map[string]func(*rig, context.Context) error{
		"operator/kills-meanwhile":   func(r *rig, ctx context.Context) error { return r.Container.Kill(ctx, "KILL") },
		"operator/deletes-meanwhile": func(r *rig, ctx context.Context) error { return r.Container.Delete(ctx) },
	} {
		s := operator(id, faults.Checkpoint, func(r *rig) error { return endsMeanwhile(r, end) })
		s.ended = true
		group(t, func([]step) trial.Job {
			return trial.Job{Processes: 2, Fault: "stall@CHECKPOINT:rank=1"}
		}, []step{s})
	}
}

func operator(id string, phase faults.Phase, do func(*rig) error) step {
	return step{row: faults.Find(id), phase: phase, do: do}
}

// twice is a row in which two checkpoints are made.
func twice(id string, do func(*rig) error) step {
	s := operator(id, faults.Checkpoint, do)
	s.saves = 2
	return s
}

func pausedBefore(r *rig) error {
	if err := r.Container.Pause(r.ctx); err != nil {
		return err
	}
	if _, err := r.save(); err != nil {
		return err
	}
	if err := r.answers("paused"); err != nil {
		return err
	}
	return errors.Join(r.Container.Resume(r.ctx), r.goesOn())
}

// while begins a checkpoint, and does something when the slow runtime has been asked.
// It returns the checkpoint's error.
func (r *rig) while(do func(cmd *exec.Cmd) error) (image string, err error) {
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	before, err := r.asked()
	if err != nil {
		return "", err
	}
	image = r.Image()
	args := slices.Concat(r.Runsc.Flags, []string{"checkpoint", "-leave-running", "-image-path=" + image, r.Container.ID})
	cmd := exec.CommandContext(ctx, runscBinary, args...)
	cmd.WaitDelay = time.Second
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		return image, err
	}
	err = sandbox.Poll(ctx, "the slow runtime to be asked", func() (bool, error) {
		asked, err := r.asked()
		return err == nil && len(asked[bad]) > len(before[bad]), err
	})
	err = errors.Join(err, do(cmd))
	if waitErr := cmd.Wait(); waitErr != nil {
		return image, errors.Join(err, fmt.Errorf("%w: %s", waitErr, said.String()))
	}
	return image, err
}

// pausesMeanwhile wants a pause to be refused, or to take effect at the end.
func pausesMeanwhile(r *rig) error {
	var pause error
	_, err := r.while(func(*exec.Cmd) error {
		pause = r.Container.Pause(r.ctx)
		return nil
	})
	if pause == nil {
		err = errors.Join(err, r.Container.Resume(r.ctx))
	}
	return errors.Join(err, r.goesOn())
}

func twoAtOnce(r *rig) error {
	_, err := r.while(func(*exec.Cmd) error {
		image, err := r.save()
		return wantError(faults.Busy, "", image, err)
	})
	return errors.Join(err, r.goesOn())
}

func interrupts(r *rig) error {
	image, err := r.while(func(cmd *exec.Cmd) error { return cmd.Process.Signal(syscall.SIGINT) })
	if err := wantError(faults.Some, "canceled", image, err); err != nil {
		return err
	}
	if err := r.goesOn(); err != nil {
		return err
	}
	_, err = r.save()
	return errors.Join(err, r.goesOn())
}

// killsTheCommand wants it to be as after an interrupt, some time later.
func killsTheCommand(r *rig) error {
	image, err := r.while(func(cmd *exec.Cmd) error { return cmd.Process.Kill() })
	if err == nil {
		return errors.New("a killed command succeeded")
	}
	err = sandbox.Poll(r.ctx, "the killed command's image to be removed", func() (bool, error) {
		_, err := os.Stat(image)
		return errors.Is(err, fs.ErrNotExist), nil
	})
	if err := errors.Join(err, r.goesOn()); err != nil {
		return err
	}
	_, err = r.save()
	return errors.Join(err, r.goesOn())
}

func resumesUnpaused(r *rig) error {
	before, err := r.asked()
	if err != nil {
		return err
	}
	_ = r.Container.Resume(r.ctx) // gVisor refuses it, and need not
	after, err := r.asked()
	if fmt.Sprint(before) != fmt.Sprint(after) {
		err = errors.Join(err, fmt.Errorf("they were asked %v, and had been asked %v", after, before))
	}
	return errors.Join(err, r.goesOn())
}

func killsPaused(r *rig) error {
	if err := r.Container.Pause(r.ctx); err != nil {
		return err
	}
	if err := r.Container.Kill(r.ctx, "KILL"); err != nil {
		return err
	}
	return r.ends()
}

// killsEnded wants the words by which engines know that there is nothing to kill.
func killsEnded(r *rig) error {
	if err := errors.Join(r.Container.Kill(r.ctx, "KILL"), r.ends()); err != nil {
		return err
	}
	return wantWords(r.Container.Kill(r.ctx, "KILL"), "container not running")
}

// ends waits for the sandbox to end, and wants that to be known.
func (r *rig) ends() error {
	err := sandbox.Poll(r.ctx, "the sandbox to end", func() (bool, error) {
		state, err := r.Container.State(r.ctx)
		return state.Status == "stopped", err
	})
	return errors.Join(err, r.answers("stopped"))
}

func againAfterFailure(r *rig) error {
	image, err := r.save()
	if err := wantError(faults.Refused, "CHECKPOINT", image, err); err != nil {
		return err
	}
	_, err = r.save()
	return errors.Join(err, r.goesOn())
}

// endsMeanwhile wants the checkpoint to end at once with the sandbox.
func endsMeanwhile(r *rig, end func(*rig, context.Context) error) error {
	begun := time.Now()
	image, err := r.while(func(*exec.Cmd) error { return end(r, r.ctx) })
	if took := time.Since(begun); took > generous/2 {
		return fmt.Errorf("the checkpoint ended after %v", took)
	}
	return wantError(faults.Some, "", image, err)
}
