// Command guest is what runs inside the sandboxes that are measured. It is built
// static. Its first argument says what it is:
//
//	guest true      ends at once
//	guest idle      processes with threads and open files, and no TPU
//	guest runtimes  processes with a TPU and any number of runtimes in each
//
// When all is set up, it makes the file ready in the folder -log. It does not end by
// itself.
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// Runtimes' threads keep their names, so none of them may be the first one.
func init() { runtime.LockOSThread() }

func main() {
	if len(os.Args) < 2 {
		fail(fmt.Errorf("say what to be: true, idle or runtimes"))
	}
	debug.SetGCPercent(-1)       // a collection in the middle would be measured too
	debug.SetMaxThreads(1 << 20) // Go's own limit is 10,000
	fs := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	var what func() error
	switch os.Args[1] {
	case "true":
		return
	case "idle":
		what = idle(fs)
	case "runtimes":
		what = runtimes(fs)
	default:
		fail(fmt.Errorf("%q is nothing to be", os.Args[1]))
	}
	if err := fs.Parse(os.Args[2:]); err != nil {
		fail(err)
	}
	if err := what(); err != nil {
		fail(err)
	}
	block()
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "guest:", err)
	os.Exit(1)
}

// load is what a process has besides, TPU or not.
type load struct {
	log     string
	threads int
	files   int
	memory  int
	held    []byte
}

func (l *load) flags(fs *flag.FlagSet) {
	fs.StringVar(&l.log, "log", "/log", "folder to write to")
	fs.IntVar(&l.threads, "threads", 1, "threads of each process")
	fs.IntVar(&l.files, "files", 3, "open files of each process")
	fs.IntVar(&l.memory, "memory", 0, "MiB of memory that cannot be compressed")
}

// take takes all of it.
func (l *load) take() error {
	l.held = make([]byte, l.memory<<20)
	random := rand.NewChaCha8([32]byte{})
	random.Read(l.held)
	if err := openFiles(l.files); err != nil {
		return err
	}
	for have := threadsNow(); have < l.threads; have++ {
		startThread("", func() {})
	}
	return nil
}

// ready says that all is set up.
func (l *load) ready() error {
	return os.WriteFile(filepath.Join(l.log, "ready"), nil, 0o644)
}

func threadsNow() int {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		fail(err)
	}
	return len(tasks)
}

// openFiles opens files until there are n.
func openFiles(n int) error {
	have, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for range n - (len(have) - 1) { // one of them was the folder
		if _, err := unix.Dup(0); err != nil {
			return fmt.Errorf("open file: %w", err)
		}
	}
	return nil
}

// startThread starts a thread of that name, if it is not empty, that runs f and does
// nothing else ever. It returns when the thread has its name.
func startThread(name string, f func()) {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		started <- setName(name)
		f()
		block()
	}()
	if err := <-started; err != nil {
		fail(err)
	}
}

// block blocks the calling thread, and not only its goroutine: a thread that Go
// parks may be none of ours any more.
func block() {
	for {
		unix.Pause() // until a signal
	}
}
