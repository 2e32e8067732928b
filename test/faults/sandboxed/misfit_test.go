//go:build faults

package sandboxed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/test/faults"
	"tpuvisor.dev/tpuvisor/test/libtpusim"
	"tpuvisor.dev/tpuvisor/test/sandbox"
	"tpuvisor.dev/tpuvisor/test/trial"
)

// TestSandboxed_Misfits runs the rows of guests that are no trainers, beside one that
// is.
func TestSandboxed_Misfits(t *testing.T) {
	t.Parallel()
	var steps []step
	for _, row := range rows(func(r faults.Row) bool { return r.Detach == nobodyAsked(r) }) {
		steps = append(steps, step{row: row, phase: faults.Checkpoint, do: func(r *rig) error { return misfit(r, row) }})
	}
	for _, id := range []string{"names/thousands-of-threads", "who/inherits", "who/come-and-go", "who/leader-gone"} {
		row := faults.Find(id)
		steps = append(steps, step{row: row, phase: faults.Checkpoint, do: func(r *rig) error { return oddRuntime(r, row) }})
	}
	steps = append(steps, step{row: faults.Find("who/exec-session"), phase: faults.Restore, do: execSession, ended: true})
	group(t, func([]step) trial.Job { return trial.Job{Processes: members - 1} }, steps)
	for id, j := range map[string]trial.Job{
		"names/above-1023":         {Processes: 2, Args: []string{"-lowest-fd", "1100"}},
		"names/own-table":          {Processes: 2, Args: []string{"-unshare-files"}},
		"names/two-in-one-process": {Runtimes: 2},
	} {
		group(t, func([]step) trial.Job { return j }, []step{{row: faults.Find(id), phase: faults.Checkpoint, do: func(r *rig) error {
			_, err := r.save()
			return errors.Join(err, r.goesOn())
		}}})
	}
}

func nobodyAsked(r faults.Row) *faults.Outcome {
	if r.Detach != nil && r.Detach.Error == faults.NoRuntime {
		return r.Detach
	}
	return &faults.Outcome{}
}

// beside does something while a misfit is there, and returns what that said at its end.
func (r *rig) beside(kind string, do func() error) (said string, err error) {
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	tool, err := r.tool()
	if err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() {
		_, err := r.Container.Exec(ctx, tool, "-as", kind, "-dir", "/log")
		ended <- err
	}()
	err = sandbox.Poll(ctx, "the misfit to be ready", func() (bool, error) {
		select {
		case err := <-ended:
			return false, fmt.Errorf("the misfit has ended: %w", err)
		default:
		}
		_, err := os.Stat(r.logged(kind, "ready"))
		return err == nil, nil
	})
	if err != nil {
		return "", err
	}
	err = do()
	err = errors.Join(err, os.WriteFile(r.logged(kind, "stop"), nil, 0o644), <-ended)
	text, readErr := os.ReadFile(r.logged(kind, "done"))
	return string(text), errors.Join(err, readErr)
}

func (r *rig) logged(kind, what string) string {
	return filepath.Join(r.dir, "log", kind+"."+what)
}

// misfit wants the checkpoint to be refused with nobody asked, and nothing to be
// written to what the misfit has.
func misfit(r *rig, row faults.Row) error {
	_, kind, _ := strings.Cut(row.ID, "/")
	before, err := r.asked()
	if err != nil {
		return err
	}
	said, err := r.beside(kind, func() error {
		image, err := r.save()
		if err := wantError(row.Detach.Error, "misfit", image, err); err != nil {
			return err
		}
		return r.goesOn()
	})
	if err == nil && said != "" {
		err = fmt.Errorf("something was done to it: %s", said)
	}
	after, askedErr := r.asked()
	if fmt.Sprint(before) != fmt.Sprint(after) {
		err = errors.Join(err, fmt.Errorf("before, they had been asked %v, and after %v", before, after))
	}
	return errors.Join(err, askedErr)
}

// oddRuntime wants a checkpoint to succeed beside a runtime that is odd.
func oddRuntime(r *rig, row faults.Row) error {
	_, kind, _ := strings.Cut(row.ID, "/")
	said, err := r.beside(kind, func() error {
		_, err := r.save()
		return errors.Join(err, r.goesOn())
	})
	if err == nil && said != "state RUNNING" {
		err = fmt.Errorf("it said at the end: %q", said)
	}
	return errors.Join(err, r.wantLogged(kind, "CHECKPOINT", "RESTORE"))
}

// wantLogged wants the misfit to have been asked just this.
func (r *rig) wantLogged(kind string, want ...string) error {
	content, err := os.ReadFile(r.logged(kind, "requests"))
	if err != nil {
		return err
	}
	var got []string
	for line := range strings.Lines(string(content)) {
		q, err := libtpusim.ParseRequest(strings.TrimSpace(line))
		if err != nil {
			return err
		}
		got = append(got, tpuwire.ActionName(q.Action))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		return fmt.Errorf("the misfit was asked %v, and should have been asked %v", got, want)
	}
	return nil
}

// execSession restores an image in which there is a runtime that runsc exec had
// started.
func execSession(r *rig) error {
	var image string
	_, err := r.beside("runtime", func() (err error) {
		ctx, cancel := context.WithTimeout(r.ctx, patience)
		defer cancel()
		image, err = r.save()
		if err != nil {
			return err
		}
		return errors.Join(r.goesOn(), ctx.Err())
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	if err := r.Container.Delete(ctx); err != nil {
		return err
	}
	return r.Restore(ctx, image)
}
