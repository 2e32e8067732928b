//go:build vfio

package vfio

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tpuvisor.dev/tpuvisor/test/vfio/image"
	"tpuvisor.dev/tpuvisor/test/vfio/model"
)

// kernelModules are loaded in this order; those that the kernel has built in or does
// not know are left out.
var kernelModules = []string{"irqbypass", "iommufd", "vfio_virqfd", "vfio", "vfio_iommu_type1", "vfio-pci-core", "vfio-pci"}

// bench is what get-bench.sh has made.
type bench struct{ root string }

// getBench gets the bench, into build/ of the project.
func getBench(t *testing.T) bench {
	t.Helper()
	dir := filepath.Join(moduleRoot(t), "build", "vfio-bench")
	cmd := exec.CommandContext(t.Context(), "./get-bench.sh", dir)
	out, err := cmd.CombinedOutput()
	if err == nil {
		return bench{filepath.Join(dir, "root")}
	}
	if os.Getenv("TPUVISOR_SKIP_VFIO") != "" {
		t.Skipf("QEMU cannot be had: %v: %s", err, out)
	}
	t.Fatalf("QEMU cannot be had (set TPUVISOR_SKIP_VFIO to go without this tier): %v: %s", err, out)
	return bench{}
}

func moduleRoot(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func (b bench) one(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(b.root, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s in the bench: %v, %v", pattern, found, err)
	}
	return found[0]
}

// qemu is QEMU from the bench's folder: it brings its own libraries and loader.
func (b bench) qemu(ctx context.Context, args ...string) *exec.Cmd {
	lib := filepath.Join(b.root, "usr/lib/x86_64-linux-gnu")
	own := []string{
		"--library-path", lib + ":" + lib + "/systemd",
		filepath.Join(b.root, "usr/bin/qemu-system-x86_64"),
		"-L", filepath.Join(b.root, "usr/share/qemu"), "-L", filepath.Join(b.root, "usr/share/seabios"),
	}
	cmd := exec.CommandContext(ctx, filepath.Join(b.root, "usr/lib64/ld-linux-x86-64.so.2"), append(own, args...)...)
	cmd.Env = append(os.Environ(), "QEMU_MODULE_DIR="+lib+"/qemu")
	return cmd
}

// initramfs makes the machine's files.
func (b bench) initramfs(t *testing.T, dir, runsc string) string {
	t.Helper()
	programs := filepath.Join(dir, "programs") + "/"
	if err := os.MkdirAll(programs, 0o755); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", programs, "./inside", "./guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the machine's programs: %v: %s", err, out)
	}
	name := filepath.Join(dir, "initramfs")
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	a := image.New(file)
	a.Copy("init", programs+"inside")
	a.Copy("bin/runsc", runsc)
	a.Copy("rootfs/bin/guest", programs+"guest")
	for _, dir := range []string{"dev", "proc", "sys", "tmp", "etc", "rootfs/proc", "rootfs/sys", "rootfs/dev"} {
		a.Dir(dir)
	}
	var order []string
	for _, module := range kernelModules {
		if data := b.module(t, module); data != nil {
			a.File("modules/"+module, data)
			order = append(order, module)
		}
	}
	a.File("modules/order", []byte(strings.Join(order, "\n")))
	if err := errors.Join(a.Close(), file.Close()); err != nil {
		t.Fatal(err)
	}
	return name
}

// module gives one of the kernel's, or nil if it has none of that name.
func (b bench) module(t *testing.T, name string) []byte {
	t.Helper()
	var file string
	err := filepath.WalkDir(b.one(t, "usr/lib/modules/*"), func(path string, _ os.DirEntry, err error) error {
		if base, _, _ := strings.Cut(filepath.Base(path), "."); base == name {
			file = path
		}
		return err
	})
	if err != nil || file == "" {
		return nil
	}
	if !strings.HasSuffix(file, ".xz") {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	data, err := exec.CommandContext(t.Context(), "xz", "-dc", file).Output()
	if err != nil {
		t.Fatalf("unpacking %s: %v", file, err)
	}
	return data
}

// machine is the emulated one.
type machine struct {
	cmd     *exec.Cmd
	tpus    []*model.TPU
	lines   *bufio.Scanner
	console io.Writer
	said    bytes.Buffer // by QEMU itself
}

// Devices of the machine: three TPUs of one architecture, and one of another.
var tpuIDs = []uint16{0x0063, 0x0063, 0x0063, 0x006f}

const (
	googleVendor = 0x1ae0
	memory       = "3072M"
)

// onlyFlag is what the machine's first program looks for in the kernel's arguments: the
// scenarios to carry out, separated by commas, or nothing for all.
const onlyFlag = "bench.only="

// boot starts the machine. It is off when ctx ends, or the test.
func (b bench) boot(t *testing.T, ctx context.Context, dir, runsc, only string) *machine {
	t.Helper()
	m := new(machine)
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "q35,accel=tcg,memory-backend=m",
		"-object", "memory-backend-memfd,id=m,size=" + memory + ",share=on", "-m", memory,
		"-cpu", "max", "-smp", "2",
		"-device", "intel-iommu,intremap=on,caching-mode=on",
		"-kernel", b.one(t, "boot/vmlinuz-*"), "-initrd", b.initramfs(t, dir, runsc),
		"-append", "console=ttyS0 intel_iommu=on panic=-1 quiet loglevel=4 rdinit=/init mitigations=off no_timer_check " + onlyFlag + only,
		"-serial", "stdio", "-device", "edu",
	}
	for i, id := range tpuIDs {
		socket := filepath.Join(dir, fmt.Sprintf("tpu%d", i))
		m.tpus = append(m.tpus, plug(t, socket, id))
		device, err := json.Marshal(map[string]any{
			"driver": "vfio-user-pci", "bus": fmt.Sprintf("port%d", i),
			"socket": map[string]string{"type": "unix", "path": socket},
		})
		if err != nil {
			t.Fatal(err)
		}
		port := fmt.Sprintf("pcie-root-port,id=port%d,chassis=%d,slot=%d,addr=%#x", i, i+1, i+1, 8+i)
		args = append(args, "-device", port, "-device", string(device))
	}
	m.start(t, b.qemu(ctx, args...))
	return m
}

func plug(t *testing.T, socket string, id uint16) *model.TPU {
	t.Helper()
	tpu, err := model.New(googleVendor, id)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- tpu.Serve(l) }()
	t.Cleanup(func() {
		l.Close()
		if err := <-served; err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		tpu.Close()
	})
	return tpu
}

func (m *machine) start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = &m.said
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	m.cmd, m.console, m.lines = cmd, in, bufio.NewScanner(out)
	m.lines.Buffer(nil, 1<<20)
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
}

// event is what the machine says: see inside.
type event struct {
	Event, Scenario, Error, Text string
	Seconds                      float64
}

// next gives the next event. What is said besides goes to the test's log.
func (m *machine) next(t *testing.T) (e event) {
	t.Helper()
	for m.lines.Scan() {
		line := strings.TrimSpace(m.lines.Text())
		text, ours := strings.CutPrefix(line, "bench ")
		if !ours {
			if line != "" {
				t.Log("console:", line)
			}
			continue
		}
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			t.Fatalf("the machine says %q", line)
		}
		return e
	}
	t.Fatalf("the machine has ended: %v: %s", m.lines.Err(), m.said.String())
	return e
}

// goOn lets the machine go on after an event.
func (m *machine) goOn(t *testing.T) {
	t.Helper()
	if _, err := io.WriteString(m.console, "\n"); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) counts() []model.Counts {
	counts := make([]model.Counts, len(m.tpus))
	for i, tpu := range m.tpus {
		counts[i], _ = tpu.Counts()
	}
	return counts
}
