// Command trainer is the workload of the tests: a training job that uses simulated
// TPUs, in one or more processes. It is built static, and run inside a sandbox:
//
//	trainer -processes 4 -hbm /hbm -log /log
//
// The first process starts the members and is their meeting place; it holds no
// TPU. A member holds the device files of its TPU open, keeps its weights in the
// TPU's memory (a file under -hbm, which is meant to lie outside the sandbox) and
// says a line per step on stdout and in -log/rankN.steps. With
// LIBTPU_CHECKPOINTING_ENABLED=true in its environment, it has a control thread,
// which logs every request in -log/rankN.requests.
//
// A member ends with status 3 when its TPU's memory holds no job any more, and
// with 134 where a real runtime would abort.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"tpuvisor.dev/tpuvisor/test/libtpusim"
)

// How a process of the job ends that does not end well.
const (
	exitUsage = 2
	exitNoJob = 3
	exitAbort = 134
	exitOther = 1
)

// options are the flags: the members get the same as the first process.
type options struct {
	processes    int
	runtimes     int // per process
	steps        int
	pace         time.Duration
	size         int
	hold         string
	fault        string
	hbm          string
	log          string
	dev          string
	cpu          bool
	unshareFiles bool
	lowestFD     int
	process      int // which process this is; -1 is the first one
}

func parse(args []string) (*options, error) {
	o := &options{}
	fs := flag.NewFlagSet("trainer", flag.ContinueOnError)
	fs.IntVar(&o.processes, "processes", 1, "number of processes that have TPUs")
	fs.IntVar(&o.runtimes, "runtimes", 1, "number of TPU runtimes in each process")
	fs.IntVar(&o.steps, "steps", 0, "steps to do; 0: go on until killed")
	fs.DurationVar(&o.pace, "pace", 10*time.Millisecond, "pause between two steps")
	fs.IntVar(&o.size, "size", 64<<10, "bytes of weights in each TPU's memory")
	fs.StringVar(&o.hold, "hold", string(libtpusim.HoldSelf), "what holds the job while its TPU is detached: self, or none")
	fs.StringVar(&o.fault, "fault", "", "faults of the runtimes: kind@ACTION:key=value,…;… with the kinds\n"+kinds())
	fs.StringVar(&o.hbm, "hbm", "/hbm", "folder of the files that stand for the TPUs' memory")
	fs.StringVar(&o.log, "log", "/log", "folder to write the logs to")
	fs.StringVar(&o.dev, "dev", "/dev", "folder of the device files")
	fs.BoolVar(&o.cpu, "cpu", false, "train on the CPU: use no TPU")
	fs.BoolVar(&o.unshareFiles, "unshare-files", false, "give each control thread a table of open files of its own")
	fs.IntVar(&o.lowestFD, "lowest-fd", 0, "lowest number that the control pipes' descriptors may have")
	fs.IntVar(&o.process, "process", -1, "for the trainer's own use: the number of this process")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	switch {
	case fs.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case o.processes < 1 || o.runtimes < 1:
		return nil, fmt.Errorf("a job needs at least one process and one runtime")
	case o.hold != string(libtpusim.HoldSelf) && o.hold != string(libtpusim.HoldNone):
		return nil, fmt.Errorf("-hold is %q, and must be %s or %s", o.hold, libtpusim.HoldSelf, libtpusim.HoldNone)
	}
	_, err := libtpusim.ParseFaults(o.fault)
	return o, err
}

func kinds() string {
	var b strings.Builder
	for _, kind := range libtpusim.Kinds() {
		fmt.Fprintf(&b, "%s: %s\n", kind, libtpusim.Describe(kind))
	}
	return b.String()
}

// The main goroutine keeps the process's first thread, so that no control thread
// gets it: its name is the process's, and it cannot end.
func init() { runtime.LockOSThread() }

func main() {
	o, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "trainer:", err)
		os.Exit(exitUsage)
	}
	if o.process < 0 {
		os.Exit(lead(o))
	}
	os.Exit(follow(o))
}
