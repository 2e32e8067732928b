package main

import "context"

// row is one line of work, of which there may be several series.
type row struct {
	name    string
	work    string // what it does, in words
	measure func(*run, context.Context) error
}

var rows = []row{
	{"scan", "a sandbox with no TPU open and many processes, threads and open files", (*run).scan},
	{"crowd", "one TPU process with many threads and open files", (*run).crowd},
	{"quiesce", "runtimes that answer at once: checkpoint", (*run).quiesce},
	{"return", "the same runtimes: restore", nil}, // measured with quiesce
	{"paused", "pause, then checkpoint, against the same checkpoint unpaused", (*run).paused},
	{"plain", "what has nothing to do with TPUs", (*run).plain},
	{"wire", "encoding and decoding, against protodelim of the protobuf module", (*run).wire},
	{"trust", "what a hostile guest can make the sentry spend", (*run).trust},
}

// sizes are how much of everything there is.
type sizes struct {
	processes, threads, files int   // scan: processes, and of each
	crowdThreads, crowdFiles  int   // crowd
	runtimes                  []int // quiesce, return
	memory                    int   // plain: MiB
	names                     int   // trust: threads named like a runtime
	drips                     int   // trust: runtimes that answer byte by byte
	limit                     string
	preSaveTime, wireTime     string // of Go benchmarks
}

var (
	full = sizes{
		processes: 200, threads: 10, files: 100, crowdThreads: 2000, crowdFiles: 10000,
		runtimes: []int{1, 8, 64, 256}, memory: 64, names: 10000, drips: 64, limit: "20s", preSaveTime: "50x", wireTime: "0.2s",
	}
	small = sizes{
		processes: 3, threads: 10, files: 20, crowdThreads: 50, crowdFiles: 200,
		runtimes: []int{1, 8}, memory: 1, names: 100, drips: 4, limit: "2s", preSaveTime: "2x", wireTime: "2x",
	}
)
