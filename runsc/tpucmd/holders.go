package tpucmd

import (
	"context"
	"fmt"
	"io"

	"github.com/google/subcommands"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/flag"

	groupholders "tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy/holders"
)

// holders tells who on this host holds TPUs.
type holders struct{ output }

func (*holders) Name() string     { return "holders" }
func (*holders) Synopsis() string { return "list the processes of this host that hold a TPU" }
func (*holders) Usage() string {
	return `holders [-format table|json] - list the processes of this host that hold the IOMMU
group of a TPU open. A restore waits for these to let go. Only root sees all of them.
`
}

func (h *holders) SetFlags(f *flag.FlagSet) { h.setFlags(f) }

// A held group is what holders shows.
type heldGroup struct {
	Group   uint32 `json:"group"`
	PID     int    `json:"pid"`
	Command string `json:"command"`
	Sandbox string `json:"sandbox,omitempty"`
}

func (h *holders) Execute(_ context.Context, f *flag.FlagSet, _ ...any) subcommands.ExitStatus {
	h.check()
	if f.NArg() != 0 {
		f.Usage()
		util.Fatalf("no argument is wanted, and %d were given", f.NArg())
	}
	found, err := groupholders.Find()
	if err != nil {
		util.Fatalf("looking for holders of TPUs: %v", err)
	}
	held := make([]heldGroup, len(found))
	for i, g := range found {
		held[i] = heldGroup(g)
	}
	h.show(held, func(w io.Writer) {
		fmt.Fprintln(w, "GROUP\tPID\tCOMMAND\tSANDBOX")
		for _, g := range held {
			fmt.Fprintf(w, "/dev/vfio/%d\t%d\t%s\t%s\n", g.Group, g.PID, plain(g.Command), orDash(g.Sandbox))
		}
	})
	return subcommands.ExitSuccess
}
