package holders

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFind(t *testing.T) {
	dev := t.TempDir()
	// The node of group 7 is the null device's: this process can open it.
	if err := unix.Mknod(filepath.Join(dev, "7"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 7))); err != nil {
		t.Skipf("no device nodes without root: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dev, "devices"), 0o755); err != nil {
		t.Fatal(err)
	}
	before, err := find(dev, "/proc")
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open("/dev/full")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	after, err := find(dev, "/proc")
	if err != nil {
		t.Fatal(err)
	}
	held := func(hs []Holder) bool {
		for _, h := range hs {
			if h.PID == os.Getpid() && h.Group == 7 && h.Sandbox == "" {
				return true
			}
		}
		return false
	}
	if held(before) || !held(after) {
		t.Errorf("before: %v, after: %v", before, after)
	}
}

func TestFindWithoutVFIO(t *testing.T) {
	if found, err := find(filepath.Join(t.TempDir(), "none"), "/proc"); err != nil || found != nil {
		t.Errorf("got %v, %v", found, err)
	}
}

func TestSandboxID(t *testing.T) {
	for line, want := range map[string]string{
		"runsc-sandbox\x00--root=/r\x00boot\x00--x\x00job-1\x00": "job-1",
		"/usr/bin/python3\x00boot\x00x\x00":                      "",
		"":                                                       "",
	} {
		if got := sandboxID([]byte(line)); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

func TestDescribe(t *testing.T) {
	all := []Holder{{3, 10, "runsc-sandbox", "job"}, {4, 11, "python3", ""}, {5, 12, "other", ""}}
	want := `/dev/vfio/3 is held by sandbox "job" (pid 10), /dev/vfio/4 is held by pid 11 (python3)`
	if got := describe(all, []uint32{4, 3, 9}); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
