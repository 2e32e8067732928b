package tpucmd

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/google/subcommands"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/flag"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/api"
	"tpuvisor.dev/tpuvisor/runsc/client"
	"tpuvisor.dev/tpuvisor/runsc/progress"
)

// state asks the runtimes.
type state struct {
	output
	limit time.Duration
}

func (*state) Name() string     { return "state" }
func (*state) Synopsis() string { return "ask each TPU runtime for its state" }
func (*state) Usage() string {
	return `state [-format table|json] [-limit 5s] <container id> - ask each TPU runtime of the
container's sandbox for its state. The exit status is 0 if all have answered, and 1
if one has not. It is refused while a checkpoint, resume or restore is under way;
"runsc tpu ps" works then.
`
}

func (s *state) SetFlags(f *flag.FlagSet) {
	s.setFlags(f)
	f.DurationVar(&s.limit, "limit", 5*time.Second, "how long a runtime may take to answer, from 1s to 1m")
}

func (s *state) Execute(_ context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	s.check()
	c := load(f, args)
	states := []api.RuntimeState{}
	if err := client.Call(c, api.OpState, api.StateArgs{Limit: s.limit}, &states); err != nil {
		util.Fatalf("asking the TPU runtimes: %v", err)
	}
	s.show(states, func(w io.Writer) { statesTable(w, states) })
	for _, r := range states {
		if r.Error != "" {
			return no(args)
		}
	}
	return subcommands.ExitSuccess
}

func statesTable(w io.Writer, states []api.RuntimeState) {
	fmt.Fprintln(w, "CONTAINER\tPID\tCOMMAND\tTHREAD\tSTATE\tTOPOLOGY\tTIME")
	for _, r := range states {
		fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%s\t%s\t%v\n", orDash(r.Container), r.PID, quote(r.Command), r.TID,
			orDash(r.State), topology(r.Topology), progress.Round(r.Elapsed))
	}
	for _, r := range states {
		if r.Error != "" {
			fmt.Fprintln(w, r.Error)
		}
	}
}
