package commands

import (
	"context"

	"github.com/google/subcommands"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/flag"
)

// restore is gVisor's.
type restore struct{ cmd.Restore }

// FetchSpec implements util.SubCommand.
func (r *restore) FetchSpec(conf *config.Config, f *flag.FlagSet) (string, *specs.Spec, error) {
	return checked(r.Restore.FetchSpec(conf, f))
}

// Execute implements subcommands.Command.
func (r *restore) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	return r.Restore.Execute(ctx, f, args...)
}
