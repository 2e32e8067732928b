package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"tpuvisor.dev/tpuvisor/pkg/guest"
	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/test/libtpusim"
)

// startControl opens the member's devices and, if the environment asks for it,
// starts its control thread. Both happen on one thread of their own, since that
// thread may have a table of open files of its own.
func startControl(o *options, m *member, r *libtpusim.Runtime, t *tpu) error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if o.unshareFiles {
			if err := unix.Unshare(unix.CLONE_FILES); err != nil {
				started <- fmt.Errorf("unshare the table of open files: %w", err)
				return
			}
		}
		if err := t.openDevices(); err != nil {
			started <- err
			return
		}
		if os.Getenv(guest.EnableVariable) != "true" {
			started <- nil
			return
		}
		p, err := openPipes(o.lowestFD)
		if err == nil {
			r.FillRequests = p.fill
			err = nameThread(p.name())
		}
		started <- err
		if err == nil {
			m.control(r, p)
		}
	}()
	return <-started
}

// control is what the control thread does.
func (m *member) control(r *libtpusim.Runtime, p *pipes) {
	err := r.Serve(context.Background(), p.requests, p.answers)
	if !errors.Is(err, libtpusim.ErrThreadExit) {
		m.end(exitOther, fmt.Errorf("control thread: %w", err))
	}
}

// pipes are the two pipes of a control thread. All four ends lie in one table of
// open files, so the driver sees no end of file when the thread is gone.
type pipes struct {
	requests, sendRequests  descriptor
	receiveAnswers, answers descriptor
}

func openPipes(lowest int) (*pipes, error) {
	var ends []descriptor
	for range 2 {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			return nil, fmt.Errorf("make a control pipe: %w", err)
		}
		for _, fd := range fds {
			end, err := atLeast(fd, lowest)
			if err != nil {
				return nil, err
			}
			ends = append(ends, end)
		}
	}
	return &pipes{requests: ends[0], sendRequests: ends[1], receiveAnswers: ends[2], answers: ends[3]}, nil
}

// atLeast moves a descriptor to a number that is not below lowest.
func atLeast(fd, lowest int) (descriptor, error) {
	if fd >= lowest {
		return descriptor(fd), nil
	}
	moved, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, lowest)
	if err != nil {
		return 0, fmt.Errorf("move a control pipe to descriptor %d: %w", lowest, err)
	}
	return descriptor(moved), unix.Close(fd)
}

// name is what tells the driver about the pipes.
func (p *pipes) name() string {
	return tpuwire.ThreadName{RequestFD: int32(p.sendRequests), ResponseFD: int32(p.receiveAnswers)}.String()
}

// fill writes to the request pipe until it is full.
func (p *pipes) fill() error {
	if err := unix.SetNonblock(int(p.sendRequests), true); err != nil {
		return err
	}
	for size := 4096; size > 0; {
		_, err := p.sendRequests.Write(make([]byte, size))
		switch {
		case errors.Is(err, unix.EAGAIN):
			size /= 2
		case err != nil:
			return err
		}
	}
	return nil
}

func nameThread(name string) error {
	b, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(b)), 0, 0, 0)
}

// descriptor reads and writes as a C program would: in the calling thread, and so
// in that thread's table of open files.
type descriptor int

func (d descriptor) Read(p []byte) (int, error) {
	for {
		n, err := unix.Read(int(d), p)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, fmt.Errorf("read descriptor %d: %w", d, err)
		case n == 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

func (d descriptor) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Write(int(d), p[done:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return done, fmt.Errorf("write descriptor %d: %w", d, err)
		}
		done += n
	}
	return done, nil
}

func (d descriptor) Close() error { return unix.Close(int(d)) }
