package tpucmd

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/google/subcommands"
	"gvisor.dev/gvisor/runsc/flag"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/settings"
)

// help explains a subcommand, or what can be set.
type help struct{ cdr *subcommands.Commander }

func (*help) Name() string           { return "help" }
func (*help) Synopsis() string       { return "explain a subcommand, or the settings" }
func (*help) SetFlags(*flag.FlagSet) {}
func (*help) Usage() string {
	return "help [<subcommand>|settings] - explain a subcommand, or what can be set for a container.\n"
}

const settingsTopic = "settings"

func (h *help) Execute(_ context.Context, f *flag.FlagSet, _ ...any) subcommands.ExitStatus {
	switch {
	case f.NArg() == 0:
		h.cdr.Explain(h.cdr.Output)
		fmt.Fprintf(h.cdr.Output, "Use \"%s help settings\" for what can be set for a container.\n", h.cdr.Name())
		return subcommands.ExitSuccess
	case f.NArg() == 1 && f.Arg(0) == settingsTopic:
		writeSettings(os.Stdout)
		return subcommands.ExitSuccess
	case f.NArg() == 1:
		found := false
		h.cdr.VisitCommands(func(_ *subcommands.CommandGroup, c subcommands.Command) {
			if c.Name() == f.Arg(0) {
				h.cdr.ExplainCommand(h.cdr.Output, c)
				found = true
			}
		})
		if found {
			return subcommands.ExitSuccess
		}
	}
	f.Usage()
	return subcommands.ExitUsageError
}

// writeSettings explains the settings, from the table that parses them.
func writeSettings(w io.Writer) {
	fmt.Fprintf(w, "Settings are annotations of a container's OCI spec, and rule its processes.\n")
	for _, s := range settings.Table {
		fmt.Fprintf(w, "\n%s%s\n  %s\n  allowed: %s\n  default: %s\n", settings.Prefix, s.Name, s.Help, s.Allowed, s.Default)
	}
}
