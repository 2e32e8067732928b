package guest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
)

// threads lists the control threads of this process, by name, as a driver does.
func threads(t *testing.T) []tpuwire.ThreadName {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/comm")
	if err != nil {
		t.Fatal(err)
	}
	var names []tpuwire.ThreadName
	for _, file := range files {
		comm, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // has exited meanwhile
		}
		if err != nil {
			t.Fatal(err)
		}
		if name, ok := tpuwire.ParseThreadName(strings.TrimSuffix(string(comm), "\n")); ok {
			names = append(names, name)
		}
	}
	return names
}

// driverOf opens what a thread's name tells.
func driverOf(t *testing.T, name tpuwire.ThreadName) driver {
	t.Helper()
	open := func(fd int32, flags int) *os.File {
		f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), flags, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	return driver{requests: open(name.RequestFD, os.O_WRONLY), answers: open(name.ResponseFD, os.O_RDONLY)}
}

func TestControlThread(t *testing.T) {
	t.Setenv(EnableVariable, "true")
	var limits unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limits); err != nil {
		t.Fatal(err)
	}
	for _, lowest := range []int{0, 0x400, 0xfff0} {
		t.Run(fmt.Sprintf("descriptors from %d", lowest), func(t *testing.T) {
			if uint64(lowest+2) > limits.Cur {
				t.Skipf("this process may have %d descriptors", limits.Cur)
			}
			m, _ := into(t, running)
			thread, err := StartControlThread(t.Context(), m, ThreadOptions{LowestFD: lowest})
			if err != nil {
				t.Fatal(err)
			}
			name := thread.Name()
			if found := threads(t); !slices.Contains(found, name) {
				t.Fatalf("control threads %v, want one named %v", found, name)
			}
			if int(name.RequestFD) < lowest || int(name.ResponseFD) < lowest {
				t.Errorf("descriptors in %v are below %d", name, lowest)
			}
			d := driverOf(t, name)
			wantAnswer(t, d.ask(t, checkpoint), true, detached)
			wantAnswer(t, d.ask(t, restore), true, running)
			if err := thread.Stop(); err != nil {
				t.Errorf("Stop: %v", err)
			}
			for _, fd := range []int32{name.RequestFD, name.ResponseFD} {
				if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); !errors.Is(err, unix.EBADF) {
					t.Errorf("descriptor %d is open after Stop (%v)", fd, err)
				}
			}
		})
	}
}

func TestControlThread_NotEnabled(t *testing.T) {
	for _, value := range []string{"", "false", "0", "yes"} {
		t.Setenv(EnableVariable, value)
		m, _ := into(t, running)
		if _, err := StartControlThread(t.Context(), m, ThreadOptions{}); !errors.Is(err, ErrNotEnabled) {
			t.Errorf("%q: %v, want ErrNotEnabled", value, err)
		}
	}
}

func TestControlThread_DescriptorsTooLarge(t *testing.T) {
	t.Setenv(EnableVariable, "true")
	m, _ := into(t, running)
	tooLarge := func() int {
		if _, err := StartControlThread(t.Context(), m, ThreadOptions{LowestFD: tpuwire.MaxFD + 1}); err == nil {
			t.Error("no error")
		}
		return openDescriptors(t)
	}
	// The first time, the Go runtime may open descriptors of its own.
	if first, second := tooLarge(), tooLarge(); first != second {
		t.Errorf("%d descriptors are open, %d were before", second, first)
	}
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(open)
}
