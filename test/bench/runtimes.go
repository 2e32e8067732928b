package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// quiesce measures the rows quiesce and return: both are about the same sandboxes.
func (r *run) quiesce(ctx context.Context) error {
	r.results.forget("return")
	for _, n := range r.runtimes {
		there, back := map[string]float64{"": 1}, map[string]float64{"": 1}
		err := r.inPairs(ctx, "quiesce", r.pairs, there, func(ctx context.Context, b *binary) ([]value, error) {
			values, after, err := r.thereAndBack(ctx, b, n)
			if err == nil {
				r.keep("return", b, back, after)
			}
			return values, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// thereAndBack checkpoints and restores a sandbox with n runtimes.
func (r *run) thereAndBack(ctx context.Context, b *binary, n int) (there, back []value, err error) {
	x, err := b.newBox(r, workload{args: []string{"runtimes", "-number", strconv.Itoa(n)}, tpu: true})
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, x.remove()) }()
	if _, err := x.start(ctx); err != nil {
		return nil, nil, err
	}
	saving, err := x.checkpoint(ctx)
	if err != nil {
		return nil, nil, err
	}
	if _, err := x.do(ctx, "delete", "-force", x.id); err != nil {
		return nil, nil, err
	}
	begun := time.Now().UnixNano()
	if _, err := x.restore(ctx); err != nil {
		return nil, nil, err
	}
	turns, err := x.turns(ctx)
	if err != nil {
		return nil, nil, err
	}
	of := fmt.Sprintf("%d runtimes: ", n)
	if n == 1 {
		of = "1 runtime: "
	}
	there = []value{
		seconds(of+firstToLast, time.Duration(turns["CHECKPOINT"].Took)),
		seconds(of+"`runsc checkpoint`", saving),
	}
	back = []value{
		seconds(of+"`runsc restore` to the first RESTORE read", time.Duration(turns["RESTORE"].First-begun)),
		seconds(of+"`runsc restore` to the last RESTORE answered", time.Duration(turns["RESTORE"].Last-begun)),
	}
	return there, back, nil
}

const firstToLast = "first request to last answer"

// crowd is one runtime among many threads and open files.
func (r *run) crowd(ctx context.Context) error {
	if err := r.preSave(ctx, "crowd", 0.5); err != nil {
		return err
	}
	args := []string{"runtimes", "-threads", strconv.Itoa(r.crowdThreads), "-files", strconv.Itoa(r.crowdFiles)}
	return r.inPairs(ctx, "crowd", r.pairs, map[string]float64{"`runsc checkpoint`": 1}, func(ctx context.Context, b *binary) (values []value, err error) {
		x, err := b.newBox(r, workload{args: args, tpu: true})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, x.remove()) }()
		if _, err := x.start(ctx); err != nil {
			return nil, err
		}
		before, err := x.logLines()
		if err != nil {
			return nil, err
		}
		saving, err := x.checkpoint(ctx)
		if err != nil {
			return nil, err
		}
		after, err := x.logLines()
		return []value{
			seconds("`runsc checkpoint`", saving),
			{"lines in the sandbox's log meanwhile", "", float64(after - before)},
		}, err
	})
}

// logLines counts the lines of the sandbox's log.
func (x *box) logLines() (int, error) {
	files, err := filepath.Glob(filepath.Join(x.logs(), "*.boot.txt"))
	if err != nil {
		return 0, err
	}
	lines := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return 0, err
		}
		lines += strings.Count(string(text), "\n")
	}
	return lines, nil
}

// scan is a sandbox that could have a TPU open, and has none.
func (r *run) scan(ctx context.Context) error {
	if err := r.preSave(ctx, "scan", 1); err != nil {
		return err
	}
	args := []string{
		"idle", "-processes", strconv.Itoa(r.processes), "-threads", strconv.Itoa(r.threads), "-files", strconv.Itoa(r.files),
	}
	return r.inPairs(ctx, "scan", r.pairs, map[string]float64{"": 1}, func(ctx context.Context, b *binary) (values []value, err error) {
		x, err := b.newBox(r, workload{args: args, tpu: true})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, x.remove()) }()
		if _, err := x.start(ctx); err != nil {
			return nil, err
		}
		saving, err := x.checkpoint(ctx)
		return []value{seconds("`runsc checkpoint`", saving)}, err
	})
}

// paused checkpoints a sandbox that is paused, and the same that is not.
func (r *run) paused(ctx context.Context) error {
	s := r.results.find("paused", "`runsc checkpoint`, paused against unpaused", "s")
	s.Aim, s.Note = 1.2, "the second column is ours, unpaused"
	for i := range r.pairs {
		for j := range 2 {
			paused := (i+j)%2 == 0
			took, err := r.checkpointPaused(ctx, r.ours, paused)
			switch {
			case err != nil:
				return err
			case paused:
				s.Ours = append(s.Ours, took.Seconds())
			default:
				s.Upstream = append(s.Upstream, took.Seconds())
			}
		}
		r.say(".")
	}
	return r.upstreamPaused(ctx)
}

// upstreamPaused shows once what upstream does: it waits for the frozen runtime.
func (r *run) upstreamPaused(ctx context.Context) error {
	limit := 5 * time.Minute // more than its own limit, and less than twice
	if r.short {
		limit = 2 * time.Second
	}
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	took, err := r.checkpointPaused(bounded, r.upstream, true)
	s := r.results.find("paused", "`runsc checkpoint`, paused, with upstream", "s")
	s.Upstream = []float64{took.Seconds()}
	switch {
	case bounded.Err() != nil:
		s.says(r.upstream, fmt.Sprintf("no end after %v", limit))
	case err != nil:
		s.says(r.upstream, "failed")
		r.say("\n%v\n", err)
	}
	return ctx.Err()
}

func (r *run) checkpointPaused(ctx context.Context, b *binary, paused bool) (took time.Duration, err error) {
	x, err := b.newBox(r, workload{args: []string{"runtimes"}, tpu: true})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, x.remove()) }()
	if _, err := x.start(ctx); err != nil {
		return 0, err
	}
	if paused {
		if _, err := x.do(ctx, "pause", x.id); err != nil {
			return 0, err
		}
	}
	return x.checkpoint(ctx)
}
