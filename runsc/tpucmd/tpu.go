// Package tpucmd is `runsc tpu`: what an operator asks of a sandbox's TPUs, and tells
// them to do.
package tpucmd

import (
	"bytes"
	"context"
	"fmt"

	"github.com/google/subcommands"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/flag"
)

// TPU is the command with its subcommands.
type TPU struct{}

// Name implements subcommands.Command.
func (*TPU) Name() string { return "tpu" }

// Synopsis implements subcommands.Command.
func (*TPU) Synopsis() string { return "look at, and lock, the TPU runtimes of a sandbox" }

// Usage implements subcommands.Command.
func (*TPU) Usage() string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "tpu <subcommand> <flags> <args>\n\n")
	cdr := commander(flag.NewFlagSet("tpu", flag.ContinueOnError))
	cdr.VisitGroups(func(g *subcommands.CommandGroup) { cdr.ExplainGroup(&b, g) })
	fmt.Fprintf(&b, "Use \"runsc tpu help <subcommand>\" for more, and \"runsc tpu help settings\" for what\ncan be set for a container.\n")
	return b.String()
}

// SetFlags implements subcommands.Command.
func (*TPU) SetFlags(*flag.FlagSet) {}

// FetchSpec implements util.SubCommand: which container it is about is known to the
// subcommand only.
func (*TPU) FetchSpec(*config.Config, *flag.FlagSet) (string, *specs.Spec, error) {
	return "", nil, nil
}

// Execute implements subcommands.Command.
func (t *TPU) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	return commander(f).Execute(ctx, args...)
}

func commander(f *flag.FlagSet) *subcommands.Commander {
	cdr := subcommands.NewCommander(f, "runsc tpu")
	cdr.Register(&help{cdr: cdr}, "")
	for _, c := range []subcommands.Command{
		new(ps), new(state), new(lock), new(unlock), new(check), new(holders), new(wait), new(trace),
	} {
		cdr.Register(&helpful{Command: c, cdr: cdr}, "")
	}
	return cdr
}

// helpful is a subcommand with the flag -help.
type helpful struct {
	subcommands.Command
	cdr  *subcommands.Commander
	help bool
}

func (h *helpful) SetFlags(f *flag.FlagSet) {
	h.Command.SetFlags(f)
	f.BoolVar(&h.help, "help", false, "show what the command does, and do nothing")
	f.BoolVar(&h.help, "h", false, "the same")
}

func (h *helpful) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	if h.help {
		h.cdr.ExplainCommand(h.cdr.Output, h)
		return subcommands.ExitSuccess
	}
	return h.Command.Execute(ctx, f, args...)
}
