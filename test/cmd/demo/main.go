// Command demo shows what runsc does for a workload that uses TPUs: a training job
// is checkpointed on one host and restored on another, both simulated, and must go
// on at the step where it stopped. It takes root, and ends with status 1 if the job
// is not the one that it would have been without interruption.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"tpuvisor.dev/tpuvisor/test/enclosure"
	"tpuvisor.dev/tpuvisor/test/trial"
)

func main() {
	os.Exit(enclosure.Run(demo))
}

func demo() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx)
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "demo: interrupted")
	case err != nil:
		fmt.Fprintln(os.Stderr, "demo:", err)
	default:
		return 0
	}
	return 1
}

// options are the command line's.
type options struct {
	runsc   string
	members int
	steps   int
	pace    time.Duration
}

func parse() (options, error) {
	var o options
	flag.StringVar(&o.runsc, "runsc", defaultRunsc(), "the runsc to show")
	flag.IntVar(&o.members, "members", 2, "processes of the job, each with a TPU of its own")
	flag.IntVar(&o.steps, "steps", 80, "steps that each process does")
	flag.DurationVar(&o.pace, "pace", 50*time.Millisecond, "pause between two steps")
	flag.Parse()
	if o.members < 1 || o.steps < 1 {
		return o, errors.New("a job needs at least one process and one step")
	}
	if _, err := os.Stat(o.runsc); err != nil {
		return o, fmt.Errorf("no runsc to show (make one with `make runsc`): %w", err)
	}
	return o, nil
}

func defaultRunsc() string {
	if path := os.Getenv("TPUVISOR_RUNSC"); path != "" {
		return path
	}
	return filepath.Join("bin", "runsc")
}

func run(ctx context.Context) (err error) {
	o, err := parse()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "tpuvisor-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	fmt.Printf("A training job on %d simulated TPUs moves from one host to another, in a gVisor sandbox.\n\n", o.members)
	trainer, err := trial.BuildTrainer(ctx, dir)
	if err != nil {
		return err
	}
	t, err := trial.New(o.runsc, trainer, dir, trial.Job{
		Processes: o.members,
		Groups:    groupsFrom(0, o.members),
		Steps:     o.steps,
		Pace:      o.pace,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	s := &show{Trial: t, options: o, began: time.Now()}
	return s.play(ctx)
}

// groupsFrom lists n numbers of IOMMU groups.
func groupsFrom(first, n int) []int {
	groups := make([]int, n)
	for i := range groups {
		groups[i] = first + i
	}
	return groups
}
