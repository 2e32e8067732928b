package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// open opens what the guest is to have in place of a pipe, and sets how to look at it.
func (m *misfit) open() (int, error) {
	switch m.as {
	case "tpu":
		return m.device, nil
	case "regular-file":
		return m.sized(unix.Open("/tmp/odd", unix.O_RDWR|unix.O_CREAT, 0o644))
	case "host-file":
		return m.sized(unix.Open(m.path("odd"), unix.O_RDWR|unix.O_CREAT, 0o644))
	case "memfd":
		return m.sized(unix.MemfdCreate("odd", 0))
	case "directory":
		return unix.Open("/tmp", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	case "eventfd":
		return m.quiet(unix.Eventfd(0, 0))
	case "timerfd":
		return m.quiet(unix.TimerfdCreate(unix.CLOCK_MONOTONIC, 0))
	case "epoll":
		return unix.EpollCreate1(0)
	case "inotify":
		return m.quiet(unix.InotifyInit1(0))
	case "socket":
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return 0, err
		}
		_, err = m.quiet(pair[1], nil)
		return pair[0], err
	case "proc-file":
		return m.comm()
	case "terminal":
		return m.terminal()
	}
	return 0, fmt.Errorf("there is no kind %q", m.as)
}

// sized looks whether a file is longer than it was.
func (m *misfit) sized(fd int, err error) (int, error) {
	m.check = func() string {
		var s unix.Stat_t
		if err := unix.Fstat(fd, &s); err != nil || s.Size != 0 {
			return fmt.Sprintf("the file has %d bytes (%v)", s.Size, err)
		}
		return ""
	}
	return fd, err
}

// quiet looks whether there is anything to read.
func (m *misfit) quiet(fd int, err error) (int, error) {
	m.check = func() string {
		polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(polled, 0); n != 0 || err != nil {
			return fmt.Sprintf("there is something to read (%v)", err)
		}
		return ""
	}
	return fd, err
}

// comm is the file that a thread is renamed by.
func (m *misfit) comm() (int, error) {
	const path = "/proc/self/comm"
	was, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	m.check = func() string {
		if is, err := os.ReadFile(path); err != nil || string(is) != string(was) {
			return fmt.Sprintf("the name was %q, and is %q (%v)", was, is, err)
		}
		return ""
	}
	return unix.Open(path, unix.O_RDWR, 0)
}

func (m *misfit) terminal() (int, error) {
	master, err := m.quiet(unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, 0))
	if err != nil {
		return 0, err
	}
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return 0, err
	}
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return 0, err
	}
	return unix.Open(fmt.Sprintf("/dev/pts/%d", n), unix.O_RDWR|unix.O_NOCTTY, 0)
}

// tpu is the device that the guest holds, for a runtime.
type tpu struct{ m *misfit }

func (t *tpu) Detach() error { return unix.Close(t.m.device) }

func (t *tpu) Attach() (err error) {
	t.m.device, err = unix.Open(t.m.dev, unix.O_RDWR|unix.O_CLOEXEC, 0)
	return err
}

func (*tpu) Topology() *controlpb.TpuTopology {
	return &controlpb.TpuTopology{NumChips: proto.Int32(1)}
}
