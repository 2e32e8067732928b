package commands

import (
	"context"
	"maps"

	"github.com/google/subcommands"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/alias"
	"gvisor.dev/gvisor/runsc/cmd/nvproxy"
	"gvisor.dev/gvisor/runsc/cmd/profile"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/trace"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/flag"

	// The helper binaries, as gVisor's own runsc has them.
	_ "gvisor.dev/gvisor/runsc/gvisorbinaries/embed"

	"tpuvisor.dev/tpuvisor/runsc/tpucmd"
)

// The groups in which help lists the commands. A test compares them, and what is in
// them, with those of gVisor.
const (
	forUsers    = ""
	forHelp     = "helpers"
	forDebug    = "debug"
	forMetrics  = "metrics"
	forInternal = "internal use only"
)

var groups = []struct {
	name     string
	commands []util.SubCommand
}{
	{forUsers, []util.SubCommand{
		new(checkpoint), new(create), new(kill), new(pause), new(remove), new(restore), new(resume), new(run), new(wait),
		new(tpucmd.TPU),
		new(cmd.Do), new(cmd.Events), new(cmd.Exec), new(cmd.FSCheckpoint),
		new(cmd.List), new(cmd.PS), new(cmd.PortForward), new(cmd.Read),
		new(cmd.SandboxExec), new(cmd.Spec), new(cmd.Start), new(cmd.State), new(cmd.Tar),
		new(cmd.Update),
	}},
	{forHelp, []util.SubCommand{
		new(cmd.CPUFeatures), new(cmd.Features), new(cmd.Install), new(cmd.Mitigate),
		new(cmd.Uninstall), new(nvproxy.Nvproxy), new(trace.Trace),
	}},
	{forDebug, []util.SubCommand{
		new(cmd.Debug), new(cmd.ReadControl), new(cmd.Statefile), new(cmd.Symbolize),
		new(cmd.Usage), new(cmd.WriteControl), new(profile.Profile),
	}},
	{forMetrics, []util.SubCommand{
		new(cmd.MetricExport), new(cmd.MetricMetadata), new(cmd.MetricServer),
	}},
}

// internals are called by runsc itself, with flags that nobody asks help about.
var internals = []util.SubCommand{new(cmd.Gofer), new(sentrycmd.Boot), new(sentrycmd.Umount), new(cleanup)}

// All returns the commands with their groups, and the help topics, for cli.Run.
func All() (map[util.SubCommand]string, []subcommands.Command) {
	all := map[util.SubCommand]string{}
	for _, g := range groups {
		for _, c := range g.commands {
			all[&helpful{SubCommand: c}] = g.name
		}
	}
	for _, c := range internals {
		all[c] = forInternal
	}
	maps.Copy(all, alias.Commands())
	return all, []subcommands.Command{new(cmd.Platforms), new(cmd.Syscalls)}
}

// helpful is a command with the flag -help, which ends well: gVisor's main knows it
// for a command that it does not find only, and engines ask this way whether there
// is a checkpoint.
type helpful struct {
	util.SubCommand
	help bool
}

func (h *helpful) SetFlags(f *flag.FlagSet) {
	h.SubCommand.SetFlags(f)
	for _, name := range []string{"help", "h"} {
		if f.Lookup(name) == nil {
			f.BoolVar(&h.help, name, false, "show what the command does, and do nothing")
		}
	}
}

func (h *helpful) FetchSpec(conf *config.Config, f *flag.FlagSet) (string, *specs.Spec, error) {
	if h.help {
		return "", nil, nil
	}
	return h.SubCommand.FetchSpec(conf, f)
}

func (h *helpful) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	if h.help {
		f.Usage()
		return subcommands.ExitSuccess
	}
	return h.SubCommand.Execute(ctx, f, args...)
}
