package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/settings"
)

// hostile is a guest that wants to make the sentry spend something.
type hostile struct {
	name string
	args []string
}

func (r *run) hostiles() []hostile {
	// More threads than that in one process are more than the host's map has room for.
	const processes = 10
	names, each := fmt.Sprint(r.names), fmt.Sprint(r.names/processes)
	return []hostile{
		{names + " names of ten pairs of pipes", []string{"runtimes", fmt.Sprintf("-processes=%d", processes), "-names=same", "-threads", each}},
		{names + " names with pipes of their own", []string{"runtimes", fmt.Sprintf("-processes=%d", processes), "-names=distinct", "-threads", each}},
		{fmt.Sprintf("%d answers of 1 MiB, byte by byte, limit %s", r.drips, r.limit), []string{"runtimes", "-drip", "-number", strconv.Itoa(r.drips)}},
	}
}

// trust lets hostile guests be checkpointed, once by each binary.
func (r *run) trust(ctx context.Context) error {
	for _, h := range r.hostiles() {
		for _, b := range []*binary{r.ours, r.upstream} {
			if err := r.suffer(ctx, b, h); err != nil {
				return fmt.Errorf("%s: %w", h.name, err)
			}
			r.say(".")
		}
	}
	return nil
}

// suffer checkpoints one hostile guest. That this fails is no error.
func (r *run) suffer(ctx context.Context, b *binary, h hostile) (err error) {
	x, err := b.newBox(r, workload{args: h.args, tpu: true, annotations: map[string]string{
		settings.Prefix + "timeout": r.limit,
	}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.remove()) }()
	if _, err := x.start(ctx); err != nil {
		return err
	}
	before, err := x.resetPeak(ctx)
	if err != nil {
		return err
	}
	took, outcome, err := r.boundedCheckpoint(ctx, x)
	if err != nil {
		return err
	}
	of := h.name + ": "
	values := []value{seconds(of+"`runsc checkpoint` until it ends", took)}
	if after, err := x.peak(ctx); err == nil {
		values = append(values, value{of + "memory that the sandbox took for it", "B", after - before})
	} else {
		outcome += "; the sandbox is gone"
	}
	r.keep("trust", b, nil, values)
	r.results.find("trust", values[0].series, "s").says(b, outcome)
	return nil
}

// boundedCheckpoint is for guests with which a checkpoint may have no end.
func (r *run) boundedCheckpoint(ctx context.Context, x *box) (took time.Duration, outcome string, err error) {
	limit := 2 * time.Minute
	if r.short {
		limit = 10 * time.Second
	}
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	took, err = x.checkpoint(bounded, "-leave-running")
	switch {
	case ctx.Err() != nil:
		return took, "", ctx.Err()
	case bounded.Err() != nil:
		return took, fmt.Sprintf("no end after %v", limit), nil
	case err != nil:
		r.say("\n%.400v\n", err)
		return took, "refused", nil
	}
	return took, "saved", nil
}

// resetPeak makes peak start anew, and returns what the sandbox has now.
func (x *box) resetPeak(ctx context.Context) (float64, error) {
	pid, err := x.pid(ctx)
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
		return 0, err
	}
	return x.memory(ctx, "VmRSS")
}
