package tpucmd

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/google/subcommands"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/api"
	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
)

// The formats of what a command says on stdout.
const (
	formatTable  = "table"
	formatJSON   = "json"
	formatChrome = "chrome"
)

// output is how a command shows its result.
type output struct{ format string }

func (o *output) setFlags(f *flag.FlagSet) {
	f.StringVar(&o.format, "format", formatTable, "output format: table or json")
}

// show writes a result as JSON, or has table write it. It ends the program where
// that cannot be done.
func (o *output) show(result any, table func(w io.Writer)) {
	switch o.format {
	case formatJSON:
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		if err := e.Encode(result); err != nil {
			util.Fatalf("writing the result: %v", err)
		}
	case formatTable:
		w := tabwriter.NewWriter(os.Stdout, 4, 1, 3, ' ', 0)
		table(w)
		if err := w.Flush(); err != nil {
			util.Fatalf("writing the result: %v", err)
		}
	default:
		util.Fatalf("flag -format is %q, and must be table or json", o.format)
	}
}

// check refuses a format before anything is done.
func (o *output) check() {
	if o.format != formatTable && o.format != formatJSON {
		util.Fatalf("flag -format is %q, and must be table or json", o.format)
	}
}

// load loads the container that is the command's only argument, or ends the program.
func load(f *flag.FlagSet, args []any) *container.Container {
	if f.NArg() != 1 {
		f.Usage()
		util.Fatalf("one container ID is wanted, and %d arguments were given", f.NArg())
	}
	c, err := find(args, f.Arg(0))
	if err != nil {
		util.Fatalf("loading container: %v", err)
	}
	return c
}

func find(args []any, id string) (*container.Container, error) {
	conf := args[0].(*config.Config)
	return container.Load(conf.RootDir, container.FullID{ContainerID: id}, container.LoadOpts{})
}

// exitNo is the status of a command that was done, and whose answer is no. Where a
// command cannot be done, runsc's status is 128.
const exitNo = 1

// no ends a command whose answer is no.
func no(args []any) subcommands.ExitStatus {
	*args[1].(*unix.WaitStatus) = unix.WaitStatus(exitNo << 8)
	return subcommands.ExitSuccess
}

// say writes a line for a person to stderr.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

const maxCommand = 32

func quote(command string) string { return tpuwire.Quote(command, maxCommand) }

// orDash makes what is not known visible in a table.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func topology(t *api.Topology) string {
	if t == nil {
		return "-"
	}
	text := fmt.Sprintf("%s x%d", plain(t.ChipArchitecture), t.NumChips)
	if t.MeshShape != "" {
		text += " " + plain(t.MeshShape)
	}
	return text
}

// plain is text of a guest that is shown without quotes where these add nothing.
func plain(s string) string {
	quoted := tpuwire.Quote(s, maxCommand)
	if s != "" && quoted == `"`+s+`"` {
		return s
	}
	return quoted
}

func clock(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("15:04:05.000")
}
