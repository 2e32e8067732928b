package tpucmd

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/google/subcommands"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/flag"
	"gvisor.dev/gvisor/runsc/specutils"

	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy/remap"
	"tpuvisor.dev/tpuvisor/runsc/image"
	"tpuvisor.dev/tpuvisor/runsc/progress"
)

// check looks at an image before a restore.
type check struct {
	output
	bundle string
}

func (*check) Name() string { return "check" }
func (*check) Synopsis() string {
	return "tell what an image holds, and whether this host can restore it"
}
func (*check) Usage() string {
	return `check [-format table|json] [-bundle dir] <image directory> - tell what was saved, and
whether this host and this runsc can restore it, as far as that can be known before.
The exit status is 0 if so, and 1 if not, with one line of why.
`
}

func (k *check) SetFlags(f *flag.FlagSet) {
	k.setFlags(f)
	f.StringVar(&k.bundle, "bundle", "", "bundle of the container to restore into: its TPUs are looked at, and not all of the host's")
}

// A verdict is what check shows.
type verdict struct {
	OK           bool          `json:"ok"`
	Why          string        `json:"why,omitempty"`
	RunscVersion string        `json:"runscVersion"`
	Containers   int           `json:"containers"`
	Saved        []string      `json:"saved"`
	Here         []string      `json:"here"`
	Report       *image.Report `json:"report,omitempty"` // what tpu.json says
}

func (k *check) Execute(_ context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	k.check()
	if f.NArg() != 1 {
		f.Usage()
		util.Fatalf("one image directory is wanted, and %d arguments were given", f.NArg())
	}
	host := image.Host{Sysfs: remap.HostSysfs{}}
	if k.bundle != "" {
		spec, err := specutils.ReadSpec(k.bundle, args[0].(*config.Config))
		if err != nil {
			util.Fatalf("reading the bundle: %v", err)
		}
		host.Spec = spec
	}
	s, err := image.Check(f.Arg(0), host)
	v := verdict{
		OK: err == nil, RunscVersion: s.RunscVersion, Containers: s.Containers,
		Saved: texts(s.Saved), Here: texts(s.Here), Report: s.Report,
	}
	if err != nil {
		v.Why = err.Error()
	}
	k.show(v, v.table)
	if err != nil {
		say("cannot be restored here: %v", err)
		return no(args)
	}
	return subcommands.ExitSuccess
}

func texts(inv remap.Inventory) []string {
	all := make([]string, len(inv))
	for i, d := range inv {
		all[i] = d.String()
	}
	return all
}

func (v *verdict) table(w io.Writer) {
	fmt.Fprintf(w, "runsc:\t%s\n", orDash(v.RunscVersion))
	fmt.Fprintf(w, "containers:\t%d\n", v.Containers)
	if r := v.Report; r != nil {
		fmt.Fprintf(w, "saved:\t%s, in %v\n", r.Created.Local().Format(time.DateTime), progress.Round(seconds(r.Timings.Total)))
	}
	for _, line := range v.Saved {
		fmt.Fprintf(w, "TPU:\t%s\n", line)
	}
	for _, line := range v.Here {
		fmt.Fprintf(w, "here:\t%s\n", line)
	}
	if v.Report == nil {
		return
	}
	for _, r := range v.Report.Runtimes {
		fmt.Fprintf(w, "process:\tpid %d (%s) in container %q, %s\n", r.PID, quote(r.Command), r.Container, topology(r.Topology))
	}
	for _, file := range v.Report.Files {
		fmt.Fprintf(w, "file:\t%s, %d bytes\n", file.Name, file.Size)
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
