package trial

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tpuvisor.dev/tpuvisor/test/job"
	"tpuvisor.dev/tpuvisor/test/libtpusim"
	"tpuvisor.dev/tpuvisor/test/sandbox"
)

// log reads one of a member's logs: its whole lines.
func (t *Trial) log(rank int, kind string) ([]string, error) {
	b, err := os.ReadFile(filepath.Join(t.logs(), fmt.Sprintf("rank%d.%s", rank, kind)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	lines := strings.Split(string(b), "\n")
	return lines[:len(lines)-1], err
}

// Lines lists what a member has said after each step, on all hosts.
func (t *Trial) Lines(rank int) ([]job.Line, error) {
	lines, err := t.log(rank, "steps")
	if err != nil {
		return nil, err
	}
	steps := make([]job.Line, len(lines))
	for i, line := range lines {
		var ok bool
		if steps[i], ok = job.ParseLine(line); !ok {
			return nil, fmt.Errorf("trial: rank %d said %q after a step", rank, line)
		}
	}
	return steps, nil
}

// Requests lists the requests that a member's runtime has received, on all hosts.
func (t *Trial) Requests(rank int) ([]libtpusim.Request, error) {
	lines, err := t.log(rank, "requests")
	if err != nil {
		return nil, err
	}
	requests := make([]libtpusim.Request, len(lines))
	for i, line := range lines {
		if requests[i], err = libtpusim.ParseRequest(line); err != nil {
			return nil, err
		}
	}
	return requests, nil
}

// Progress is how many steps each member has done.
func (t *Trial) Progress() ([]int, error) {
	done := make([]int, t.members())
	for rank := range done {
		lines, err := t.log(rank, "steps")
		if err != nil {
			return nil, err
		}
		done[rank] = len(lines)
	}
	return done, nil
}

// Advance waits until each of the members given, or each of all, has done n more
// steps. It fails when one has ended before that, or the sandbox.
func (t *Trial) Advance(ctx context.Context, n int, ranks ...int) error {
	goal, err := t.Progress()
	if err != nil {
		return err
	}
	for rank := range goal {
		if len(ranks) > 0 && !slices.Contains(ranks, rank) {
			goal[rank] = 0
			continue
		}
		goal[rank] += n
	}
	return t.reach(ctx, goal)
}

// Finish waits until all members have done all their steps.
func (t *Trial) Finish(ctx context.Context) error {
	return t.reach(ctx, slices.Repeat([]int{t.Steps}, t.members()))
}

// reach waits until each member has done as many steps as its goal says.
func (t *Trial) reach(ctx context.Context, goal []int) error {
	looked := time.Now()
	return sandbox.Poll(ctx, fmt.Sprintf("the members to have done %v steps", goal), func() (bool, error) {
		var stopped bool
		var err error
		if time.Since(looked) > time.Second {
			stopped, err = t.stopped(ctx) // before the steps are counted, since it may have done the last
			looked = time.Now()
		}
		done, progressErr := t.done(goal)
		if err = errors.Join(err, progressErr); err == nil && stopped && !done {
			err = fmt.Errorf("trial: the container %s has ended: %s", t.Container.ID, t.Container.Output())
		}
		return done, err
	})
}

// done reports whether all have reached their goals. It is an error if one never
// will.
func (t *Trial) done(goal []int) (bool, error) {
	now, err := t.Progress()
	if err != nil {
		return false, err
	}
	done := true
	for rank, steps := range now {
		if steps >= goal[rank] {
			continue
		}
		done = false
		if err := t.ended(rank); err != nil {
			return false, err
		}
	}
	return done, nil
}

// stopped reports whether the job's container has ended.
func (t *Trial) stopped(ctx context.Context) (bool, error) {
	s, err := t.Container.State(ctx)
	return s.Status == "stopped", err
}

// ended is an error if the member has ended before its time.
func (t *Trial) ended(rank int) error {
	words, err := t.log(rank, "end")
	if err != nil || len(words) == 0 {
		return err
	}
	return errors.New(words[0])
}

// Reference is what a member would say after the step given, without interruption.
func (t *Trial) Reference(rank, step int) job.Line {
	return job.Line{Rank: rank, Step: step, Sum: job.Reference(rank, size, step)[step]}
}

// Verify checks that every member has done the very steps of an uninterrupted job,
// each once.
func (t *Trial) Verify() error {
	for rank := range t.members() {
		steps, err := t.Lines(rank)
		if err != nil {
			return err
		}
		want := job.Reference(rank, size, len(steps))
		for i, line := range steps {
			if wanted := (job.Line{Rank: rank, Step: i + 1, Sum: want[i+1]}); line != wanted {
				return fmt.Errorf("trial: a member said\n%s, and without interruption it would have said\n%s", line, wanted)
			}
		}
	}
	return nil
}
