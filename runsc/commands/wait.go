package commands

import (
	"context"
	"errors"

	"github.com/google/subcommands"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"

	"tpuvisor.dev/tpuvisor/runsc/client"
)

// wait is gVisor's. Where it waits for a restore, why that fails is asked of the
// sandbox first: gVisor ends the sandbox at once, and may not get to say it.
type wait struct{ cmd.Wait }

// Execute implements subcommands.Command.
func (w *wait) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	if restore := f.Lookup("restore"); restore != nil && restore.Value.String() == "true" && f.NArg() == 1 {
		if err := awaitRestore(ctx, args[0].(*config.Config), f.Arg(0)); err != nil {
			util.Fatalf("waiting for restore to complete: %v", err)
		}
	}
	return w.Wait.Execute(ctx, f, args...)
}

// awaitRestore leaves everything but the failure of a restore to gVisor.
func awaitRestore(ctx context.Context, conf *config.Config, id string) error {
	c, err := container.Load(conf.RootDir, container.FullID{ContainerID: id}, container.LoadOpts{})
	if err != nil || c.Status != container.Running {
		return nil
	}
	err = client.AwaitTPUs(ctx, c, 0)
	if errors.Is(err, client.ErrGone) || errors.Is(err, client.ErrForeign) || errors.Is(err, client.ErrPaused) {
		return nil
	}
	return err
}
