// Command misfit is a guest that holds a TPU and has something else there where a
// control thread's pipes should be, or is odd in another way. It is run inside a
// sandbox by runsc exec, as
//
//	misfit -as eventfd -dir /log -dev /dev/vfio/0
//
// When it is ready it writes DIR/KIND.ready; when there is a file DIR/KIND.stop, it
// looks whether anything has been done to what it has open, says so in DIR/KIND.done,
// and ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/test/libtpusim"
)

// The main goroutine keeps the first thread, which some kinds end.
func init() { runtime.LockOSThread() }

func main() {
	as := flag.String("as", "", "what to be")
	dir := flag.String("dir", "/log", "folder for what it says")
	dev := flag.String("dev", "/dev/vfio/0", "device file to hold open")
	flag.Parse()
	m := &misfit{as: *as, dir: *dir, dev: *dev}
	if m.as == "child" { // of one that inherits
		m.as = "inherits"
		m.await()
		return
	}
	if err := m.run(); err != nil {
		fmt.Fprintln(os.Stderr, "misfit:", err)
		os.Exit(1)
	}
}

type misfit struct {
	as, dir, dev string
	device       int
	check        func() string // what has been done to it, or ""
}

func (m *misfit) path(what string) string { return filepath.Join(m.dir, m.as+"."+what) }

func (m *misfit) say(what, text string) error {
	whole := m.path(what) + ".new"
	if err := os.WriteFile(whole, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(whole, m.path(what))
}

func (m *misfit) run() (err error) {
	if m.device, err = unix.Open(m.dev, unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open %s: %w", m.dev, err)
	}
	if err := m.become(); err != nil {
		return err
	}
	if err := m.say("ready", ""); err != nil {
		return err
	}
	if m.as == "leader-gone" {
		go func() { m.finish(); os.Exit(0) }()
		unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
	}
	m.finish()
	return nil
}

// finish waits to be told, and says what it has seen.
func (m *misfit) finish() {
	m.await()
	said := ""
	if m.check != nil {
		said = m.check()
	}
	if err := m.say("done", said); err != nil {
		fmt.Fprintln(os.Stderr, "misfit:", err)
	}
}

func (m *misfit) await() {
	for {
		if _, err := os.Stat(m.path("stop")); err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// become starts the threads that it takes to be what was asked for.
func (m *misfit) become() error {
	switch m.as {
	case "no-runtime":
		return nil
	case "runtime", "leader-gone", "thousands-of-threads":
		return m.serve()
	case "inherits":
		return errors.Join(m.serve(), m.child())
	case "come-and-go":
		if err := m.serve(); err != nil {
			return err
		}
		go churn()
		return nil
	}
	requests, answers, err := twoPipes()
	if err != nil {
		return err
	}
	switch m.as {
	case "not-open":
		return thread(unix.RLIMIT_NOFILE+500, answers[0])
	case "wrong-direction":
		return thread(requests[0], answers[1])
	case "one-pipe":
		return thread(requests[1], requests[0])
	}
	file, err := m.open()
	if err != nil {
		return fmt.Errorf("open %s: %w", m.as, err)
	}
	if err := thread(file, answers[0]); err != nil {
		return err
	}
	return thread(requests[1], file)
}

func twoPipes() (requests, answers [2]int, err error) {
	if err = unix.Pipe2(requests[:], unix.O_CLOEXEC); err == nil {
		err = unix.Pipe2(answers[:], unix.O_CLOEXEC)
	}
	return requests, answers, err
}

// thread starts a thread that is named for the two descriptors, and does nothing.
func thread(request, response int) error {
	named := make(chan error)
	go func() {
		runtime.LockOSThread()
		named <- name(request, response)
		select {}
	}()
	return <-named
}

func name(request, response int) error {
	b, err := unix.BytePtrFromString(tpuwire.ThreadName{RequestFD: int32(request), ResponseFD: int32(response)}.String())
	if err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(b)), 0, 0, 0)
}

// serve makes it a runtime as it should be, with a thousand threads of that name if
// it is to have many.
func (m *misfit) serve() error {
	requests, answers, err := twoPipes()
	if err != nil {
		return err
	}
	named := make(chan error)
	r := libtpusim.New(libtpusim.Config{Rank: 0, TPU: &tpu{m}, Log: func(q libtpusim.Request) { m.note(q.String()) }})
	go func() {
		runtime.LockOSThread()
		named <- name(requests[1], answers[0])
		in, out := os.NewFile(uintptr(requests[0]), "requests"), os.NewFile(uintptr(answers[1]), "answers")
		err := r.Serve(context.Background(), in, out)
		fmt.Fprintln(os.Stderr, "misfit: control thread:", err)
		os.Exit(1)
	}()
	if err := <-named; err != nil {
		return err
	}
	for i := 0; m.as == "thousands-of-threads" && i < 1000; i++ {
		if err := thread(requests[1], answers[0]); err != nil {
			return err
		}
	}
	m.check = func() string { return fmt.Sprint("state ", tpuwire.StateName(r.State())) }
	return nil
}

func (m *misfit) note(line string) {
	f, err := os.OpenFile(m.path("requests"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		fmt.Fprintln(os.Stderr, "misfit:", err)
		return
	}
	defer f.Close()
	fmt.Fprintln(f, line)
}

// child starts a process that has the TPU, and nothing else.
func (m *misfit) child() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	device, err := unix.Dup(m.device)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(device), "tpu")
	defer f.Close()
	_, err = os.StartProcess(self, []string{self, "-as", "child", "-dir", m.dir}, &os.ProcAttr{
		Files: []*os.File{nil, nil, nil, f},
	})
	return err
}

// churn starts threads and children without pause.
func churn() {
	self, err := os.Executable()
	if err != nil {
		return
	}
	for {
		go func() {
			runtime.LockOSThread() // and the thread ends with the goroutine
		}()
		p, err := os.StartProcess(self, []string{self, "-help"}, &os.ProcAttr{Files: []*os.File{nil, nil, nil}})
		if err == nil {
			_, _ = p.Wait()
		}
	}
}
