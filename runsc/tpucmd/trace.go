package tpucmd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/google/subcommands"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/flag"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/api"
	"tpuvisor.dev/tpuvisor/runsc/client"
	"tpuvisor.dev/tpuvisor/runsc/image"
	"tpuvisor.dev/tpuvisor/runsc/progress"
)

// trace shows a timeline.
type trace struct{ output }

func (*trace) Name() string { return "trace" }
func (*trace) Synopsis() string {
	return "show the timeline of the last operation, or of an image's checkpoint"
}
func (*trace) Usage() string {
	return `trace [-format table|json|chrome] <container id>|<image directory> - show how the time of
the last checkpoint, resume, restore or other operation on the sandbox's TPUs was
spent; of an image, of the checkpoint that made it. What chrome writes can be opened
with Perfetto.
`
}

func (t *trace) SetFlags(f *flag.FlagSet) {
	f.StringVar(&t.format, "format", formatTable, "output format: table, json or chrome")
}

func (t *trace) Execute(_ context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	if t.format != formatChrome {
		t.check()
	}
	op := lastOperation(f, args)
	if op == nil {
		say("there was no operation on TPUs")
		return no(args)
	}
	if t.format != formatChrome {
		t.show(op, func(w io.Writer) { traceTable(w, op) })
		return subcommands.ExitSuccess
	}
	if err := json.NewEncoder(os.Stdout).Encode(chromeTrace(op)); err != nil {
		util.Fatalf("writing the trace: %v", err)
	}
	return subcommands.ExitSuccess
}

func lastOperation(f *flag.FlagSet, args []any) *api.Operation {
	if f.NArg() == 1 {
		if info, err := os.Stat(f.Arg(0)); err == nil && info.IsDir() {
			report, err := image.Read(f.Arg(0))
			if err != nil {
				util.Fatalf("reading the image: %v", err)
			}
			if report == nil {
				util.Fatalf("%s has no %s, which would tell", f.Arg(0), image.ReportName)
			}
			return report.Operation
		}
	}
	var t api.Trace
	if err := client.Call(load(f, args), api.OpTrace, nil, &t); err != nil {
		util.Fatalf("asking for the timeline: %v", err)
	}
	if len(t.Operations) == 0 {
		return nil
	}
	return &t.Operations[0]
}

func traceTable(w io.Writer, op *api.Operation) {
	fmt.Fprintf(w, "%s\t%s\t%d runtimes\n", op.Kind, op.Start.Local().Format(time.DateTime), op.Runtimes)
	fmt.Fprintln(w, "AT\tTIME\tWHAT\tWHO\tRESULT")
	for _, p := range op.Phases {
		fmt.Fprintf(w, "%v\t%s\t%s\t\t\n", progress.Round(p.Start.Sub(op.Start)), took(p.Start, p.End), p.Name)
		for _, s := range op.Steps {
			if s.Start.Before(p.Start) || !p.End.IsZero() && s.Start.After(p.End) {
				continue
			}
			fmt.Fprintf(w, "%v\t%s\t  %s\tpid %d (%s)\t%s %s\n", progress.Round(s.Start.Sub(op.Start)), took(s.Start, s.End),
				s.Action, s.PID, quote(s.Command), s.Result, s.State)
		}
	}
	if op.StepsLost > 0 {
		fmt.Fprintf(w, "and %d steps more\n", op.StepsLost)
	}
	for _, text := range []string{op.Error, op.Undone} {
		if text != "" {
			fmt.Fprintln(w, text)
		}
	}
}

func took(start, end time.Time) string {
	if end.IsZero() {
		return "..."
	}
	return progress.Round(end.Sub(start)).String()
}

// A chromeEvent is one of the trace event format; times are in microseconds.
type chromeEvent struct {
	Name  string         `json:"name"`
	Phase string         `json:"ph"`
	Time  float64        `json:"ts"`
	Took  float64        `json:"dur,omitempty"`
	PID   int            `json:"pid"`
	TID   int32          `json:"tid"`
	Args  map[string]any `json:"args,omitempty"`
}

type chromeFile struct {
	Events []chromeEvent `json:"traceEvents"`
	Unit   string        `json:"displayTimeUnit"`
}

// What is a process in the trace.
const (
	chromeSandbox  = 1
	chromeRuntimes = 2
)

func chromeTrace(op *api.Operation) chromeFile {
	now := time.Now()
	name := func(kind string, pid int, tid int32, name string) chromeEvent {
		return chromeEvent{Name: kind, Phase: "M", PID: pid, TID: tid, Args: map[string]any{"name": name}}
	}
	span := func(what string, pid int, tid int32, start, end time.Time, args map[string]any) chromeEvent {
		if end.IsZero() {
			end = now
		}
		return chromeEvent{
			Name: what, Phase: "X", PID: pid, TID: tid, Args: args,
			Time: float64(start.UnixNano()) / 1e3, Took: float64(end.Sub(start)) / 1e3,
		}
	}
	events := []chromeEvent{
		name("process_name", chromeSandbox, 0, "sandbox"),
		name("process_name", chromeRuntimes, 0, "TPU runtimes"),
		span(op.Kind, chromeSandbox, 1, op.Start, op.End, map[string]any{"error": op.Error}),
	}
	for _, p := range op.Phases {
		events = append(events, span(p.Name, chromeSandbox, 1, p.Start, p.End, nil))
	}
	named := map[int32]bool{}
	for _, s := range op.Steps {
		if !named[s.TID] {
			named[s.TID] = true
			events = append(events, name("thread_name", chromeRuntimes, s.TID, fmt.Sprintf("pid %d (%s) in %q", s.PID, quote(s.Command), s.Container)))
		}
		events = append(events, span(s.Action, chromeRuntimes, s.TID, s.Start, s.End,
			map[string]any{"result": s.Result, "state": s.State, "error": s.Error}))
	}
	return chromeFile{Events: events, Unit: "ms"}
}
