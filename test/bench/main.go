// Command bench measures bin/runsc against gVisor's own, bin/runsc-upstream, which
// is built from the same module without the seam. It runs both in turn, pair by pair,
// on a TPU host without hardware, and says for each thing that it measures the ratio
// of the two: its median, and how far the pairs spread. It never fails because of a
// time.
//
// `make bench` builds what it needs, and writes docs/performance.md and its plots;
// `make bench-short` runs every row with small sizes, so that it keeps working.
// Parts of a run can be repeated:
//
//	build/bench/bench -rows scan,quiesce -pairs 21
//
// Results are kept in results.json, where those of other rows stay; results-ours.txt
// and results-upstream.txt beside it are for benchstat. It takes root, and leaves no
// process behind, even if it is killed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"tpuvisor.dev/tpuvisor/test/enclosure"
	"tpuvisor.dev/tpuvisor/test/tpuhost"
)

// patience ends what hangs, and nothing else.
const patience = 10 * time.Minute

func main() {
	if slices.Contains(os.Args, "-on-host") { // and so inside already
		os.Exit(bench())
	}
	os.Exit(enclosure.Run(bench))
}

func bench() int {
	o := parse()
	if o.render {
		return status(render(o))
	}
	host, err := tpuhost.New("v5e", 0)
	if err != nil {
		return status(err)
	}
	if o.onHost {
		return status(measure(o, host))
	}
	// All commands see one host, and none of them has to be brought there first,
	// which would be measured too.
	return status(host.Exec(append([]string{"/proc/self/exe", "-on-host"}, os.Args[1:]...), os.Environ()))
}

func status(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

type options struct {
	dir      string
	ours     string
	upstream string
	rows     string
	pairs    int
	short    bool
	docs     string
	note     string
	render   bool
	onHost   bool
}

func parse() *options {
	o := &options{}
	flag.StringVar(&o.dir, "dir", "build/bench", "folder of the guest, the test binaries and the results")
	flag.StringVar(&o.ours, "ours", "bin/runsc", "the runsc to measure")
	flag.StringVar(&o.upstream, "upstream", "bin/runsc-upstream", "the runsc to compare it with")
	flag.StringVar(&o.rows, "rows", "", "which rows to measure, with commas between; all, if it is empty")
	flag.IntVar(&o.pairs, "pairs", 11, "how many pairs to measure")
	flag.BoolVar(&o.short, "short", false, "one pair and small sizes: only see whether it works")
	flag.StringVar(&o.docs, "docs", "", "folder of performance.md, in which to write the tables anew, and the plots")
	flag.StringVar(&o.note, "note", "", "what there is to say about the machine during this run")
	flag.BoolVar(&o.render, "render", false, "measure nothing, and write the documents from the results that there are")
	flag.BoolVar(&o.onHost, "on-host", false, "for the program's own use")
	flag.Parse()
	return o
}

// run is one run of the driver.
type run struct {
	*options
	sizes
	host           tpuhost.Host
	guest          string
	scratch        string
	ours, upstream *binary
	results        *results
}

func measure(o *options, host tpuhost.Host) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r := &run{options: o, sizes: full, host: host}
	if o.short {
		r.sizes, r.pairs = small, 1
	}
	if r.guest, err = filepath.Abs(filepath.Join(o.dir, "guest")); err != nil {
		return err
	}
	// Sockets have to have short names.
	if r.scratch, err = os.MkdirTemp("", "bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.scratch)) }()
	if r.ours, err = r.binary("ours", o.ours); err != nil {
		return err
	}
	if r.upstream, err = r.binary("upstream", o.upstream); err != nil {
		return err
	}
	if r.results, err = load(o); err != nil {
		return err
	}
	// What was measured before something failed is worth keeping.
	err = r.all(ctx)
	return errors.Join(err, finish(o, r.results))
}

func (r *run) binary(name, path string) (*binary, error) {
	path, err := filepath.Abs(path)
	if err == nil {
		_, err = os.Stat(path)
	}
	return &binary{name: name, path: path, dir: filepath.Join(r.scratch, name)}, err
}

func (r *run) all(ctx context.Context) error {
	var wanted []string
	if r.rows != "" {
		wanted = strings.Split(r.rows, ",")
	}
	for _, name := range wanted {
		if !slices.ContainsFunc(rows, func(w row) bool { return w.name == name }) {
			return fmt.Errorf("there is no row %q", name)
		}
	}
	for _, w := range rows {
		if len(wanted) > 0 && !slices.Contains(wanted, w.name) {
			continue
		}
		if w.measure == nil {
			continue // it was measured with another row
		}
		begun := time.Now()
		r.say("%-8s ", w.name)
		r.results.forget(w.name)
		if err := w.measure(r, ctx); err != nil {
			r.say("\n")
			return fmt.Errorf("row %s: %w", w.name, err)
		}
		r.say(" %.0f s\n", time.Since(begun).Seconds())
	}
	return nil
}

func (r *run) say(format string, args ...any) { fmt.Fprintf(os.Stderr, format, args...) }
