package tpucmd

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/google/subcommands"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/flag"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/api"
	"tpuvisor.dev/tpuvisor/runsc/client"
	"tpuvisor.dev/tpuvisor/runsc/progress"
)

// ps lists who holds a TPU, and what goes on.
type ps struct{ output }

func (*ps) Name() string     { return "ps" }
func (*ps) Synopsis() string { return "list the processes that hold a TPU, and what is under way" }
func (*ps) Usage() string {
	return `ps [-format table|json] <container id> - list the processes of the container's
sandbox that hold a TPU, with their control threads and what these have last said.
Nobody is asked anything, so that this works at any time.
`
}
func (p *ps) SetFlags(f *flag.FlagSet) { p.setFlags(f) }

// A listing is what ps shows.
type listing struct {
	Processes []api.Process `json:"processes"`
	Status    api.Status    `json:"status"`
}

func (p *ps) Execute(_ context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	p.check()
	c := load(f, args)
	var l listing
	if err := client.Call(c, api.OpPS, nil, &l.Processes); err != nil {
		util.Fatalf("listing the processes that hold a TPU: %v", err)
	}
	if err := client.Call(c, api.OpStatus, nil, &l.Status); err != nil {
		util.Fatalf("asking what is under way: %v", err)
	}
	p.show(l, l.table)
	return subcommands.ExitSuccess
}

func (l *listing) table(w io.Writer) {
	fmt.Fprintln(w, "CONTAINER\tPID\tCOMMAND\tDEVICES\tTHREAD\tPIPES\tSTATE\tTOPOLOGY")
	for _, p := range l.Processes {
		who := fmt.Sprintf("%s\t%d\t%s\t%s", orDash(p.Container), p.PID, quote(p.Command), devices(p.Devices))
		if len(p.Threads) == 0 {
			fmt.Fprintf(w, "%s\t-\t-\t-\t-\n", who)
		}
		for _, t := range p.Threads {
			fmt.Fprintf(w, "%s\t%d\t%d,%d\t%s\t%s\n", who, t.TID, t.RequestFD, t.ResponseFD, orDash(t.State), topology(t.Topology))
		}
	}
	for _, p := range l.Processes {
		switch {
		case p.Problem != "":
			fmt.Fprintf(w, "%s\n", p.Problem)
		case p.Inherited:
			fmt.Fprintf(w, "pid %d: has its open TPUs from another process, whose runtime stands for it\n", p.PID)
		}
	}
	l.under(w)
}

// under tells what is under way.
func (l *listing) under(w io.Writer) {
	if op := l.Status.Current; op != nil {
		fmt.Fprintf(w, "under way: %s, phase %s, for %v\n", op.Kind, op.Phases[len(op.Phases)-1].Name,
			progress.Round(l.Status.Now.Sub(op.Start)))
		for _, s := range op.Steps {
			fmt.Fprintf(w, "pid %d: %s for %v of %v\n", s.PID, s.Action, progress.Round(l.Status.Now.Sub(s.Start)), s.Limit)
		}
	}
	if lease := l.Status.Lease; lease != nil {
		fmt.Fprintf(w, "locked: %d runtimes, until %s\n", lease.Runtimes, clock(lease.Until))
	}
}

// maxDevices is how many paths fit into a line.
const maxDevices = 4

func devices(paths []string) string {
	shown := make([]string, 0, maxDevices+1)
	for i, path := range paths {
		if i == maxDevices {
			shown = append(shown, fmt.Sprintf("and %d more", len(paths)-maxDevices))
			break
		}
		shown = append(shown, plain(path))
	}
	return orDash(strings.Join(shown, ","))
}
