package tpucmd

import (
	"context"
	"errors"
	"time"

	"github.com/google/subcommands"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"

	"tpuvisor.dev/tpuvisor/runsc/client"
)

// wait waits for the TPUs.
type wait struct{ timeout time.Duration }

func (*wait) Name() string     { return "wait" }
func (*wait) Synopsis() string { return "wait until the sandbox has its TPUs back" }
func (*wait) Usage() string {
	return `wait [-timeout 10m] <container id> - wait until the container's sandbox has its TPUs,
after a restore, a resume or a checkpoint. The exit status is 0 when it has, at once
if it never gave them up, and 1 if it does not get them back, or not in time.
`
}

func (t *wait) SetFlags(f *flag.FlagSet) {
	f.DurationVar(&t.timeout, "timeout", 0, "how long to wait; 0 is for ever")
}

func (t *wait) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	c := load(f, args)
	if t.timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, t.timeout)
		defer stop()
	}
	err := await(ctx, c, args)
	switch {
	case err == nil:
		return subcommands.ExitSuccess
	case errors.Is(err, client.ErrForeign):
		util.Fatalf("waiting for the TPUs: %v", err)
	case ctx.Err() != nil:
		say("the TPUs are not back after %v", t.timeout)
	default:
		say("the TPUs are not back: %v", err)
	}
	return no(args)
}

// lookEvery is how often a container is looked at that is not running yet.
const lookEvery = 100 * time.Millisecond

// await waits for a container to be started, or resumed, and then for its TPUs.
func await(ctx context.Context, c *container.Container, args []any) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		if c.Status != container.Created && c.Status != container.Creating {
			err := client.AwaitTPUs(ctx, c, 0)
			if !errors.Is(err, client.ErrPaused) {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		var err error
		if c, err = find(args, c.ID); err != nil {
			return err
		}
	}
}
