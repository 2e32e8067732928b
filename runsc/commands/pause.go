package commands

import (
	"context"
	"errors"
	"time"

	"github.com/google/subcommands"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/api"
	"tpuvisor.dev/tpuvisor/runsc/client"
)

// pause pauses a sandbox, but not in the middle of an exchange with its TPU
// runtimes.
type pause struct{ target }

// Name implements subcommands.Command.
func (*pause) Name() string { return "pause" }

// Synopsis implements subcommands.Command.
func (*pause) Synopsis() string { return "suspend all processes of a container" }

// Usage implements subcommands.Command.
func (*pause) Usage() string {
	return `pause <container id> - suspend all processes of a container.

It is refused while a checkpoint, a resume or a restore asks the sandbox's TPU
runtimes: these run the sandbox for as long as it takes.
`
}

// SetFlags implements subcommands.Command.
func (*pause) SetFlags(*flag.FlagSet) {}

// Execute implements subcommands.Command.
func (p *pause) Execute(_ context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	c, err := p.load(args[0].(*config.Config), f)
	if err != nil {
		util.Fatalf("%v", err)
	}
	if _, err := throughGate(c, api.ForPause, c.Pause); err != nil {
		util.Fatalf("pause failed: %v", err)
	}
	return subcommands.ExitSuccess
}

// resume resumes a sandbox, and returns when it has its TPUs back.
type resume struct{ target }

// Name implements subcommands.Command.
func (*resume) Name() string { return "resume" }

// Synopsis implements subcommands.Command.
func (*resume) Synopsis() string { return "resume a paused container" }

// Usage implements subcommands.Command.
func (*resume) Usage() string {
	return `resume <container id> - resume a paused container.

If the sandbox was saved while it was paused, its TPU runtimes are asked to take
their TPUs back, and the command returns when they have, or fails when they cannot.
The container counts as running meanwhile.
`
}

// SetFlags implements subcommands.Command.
func (*resume) SetFlags(*flag.FlagSet) {}

// Execute implements subcommands.Command.
func (r *resume) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	c, err := r.load(args[0].(*config.Config), f)
	if err != nil {
		util.Fatalf("%v", err)
	}
	if c.Status != container.Paused {
		// gVisor says why it cannot be resumed, and does nothing.
		if err := c.Resume(); err != nil {
			util.Fatalf("resume failed: %v", err)
		}
		return subcommands.ExitSuccess
	}
	last, err := throughGate(c, api.ForResume, c.Resume)
	if err == nil && last != nil {
		err = client.AwaitTPUs(ctx, c, *last)
		if errors.Is(err, client.ErrPaused) {
			err = nil // paused more than once, and resumed once less
		}
	}
	if err != nil {
		util.Fatalf("resume failed: %v", err)
	}
	return subcommands.ExitSuccess
}

// throughGate does what pauses or resumes a sandbox while no exchange with its TPU
// runtimes can begin. It returns the sandbox's last operation before, if the
// sandbox has a gate.
func throughGate(c *container.Container, what string, do func() error) (last *uint64, err error) {
	var gated api.Gated
	err = client.Call(c, api.OpGate, api.Gate{For: what}, &gated)
	switch {
	case errors.Is(err, client.ErrForeign), errors.Is(err, client.ErrGone):
		log.Infof("%s without a gate: %v", what, err)
		return nil, do() // which fails by itself where there is no sandbox
	case err != nil:
		return nil, err
	}
	stop := make(chan struct{})
	go holdGate(c, what, gated.Token, stop)
	err = do()
	close(stop)
	if err := client.Call(c, api.OpOpen, gated, nil); err != nil {
		log.Warningf("Opening the sandbox's gate: %v", err)
	}
	return &gated.Last, err
}

// holdGate keeps the gate shut for as long as it takes.
func holdGate(c *container.Container, what string, token uint64, stop <-chan struct{}) {
	tick := time.NewTicker(api.GateTime / 4)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			if err := client.Call(c, api.OpGate, api.Gate{For: what, Token: token}, nil); err != nil {
				log.Warningf("Holding the sandbox's gate: %v", err)
				return
			}
		}
	}
}
