// Package devices holds the end-to-end tests of the device side on a TPU host without
// hardware: which TPUs a sandbox sees, before and after a restore, and which restores
// are refused. What takes a device that answers is in test/vfio. They take root, and
// the runsc that the environment variable TPUVISOR_RUNSC names, or bin/runsc.
package devices

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tpuvisor.dev/tpuvisor/test/sandbox"
	"tpuvisor.dev/tpuvisor/test/tpuhost"
)

var runscBinary, probeBinary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "devices-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = prepare(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "devices:", err)
		return 1
	}
	return m.Run()
}

func prepare(dir string) error {
	if os.Getuid() != 0 {
		return fmt.Errorf("these tests start sandboxes on a host of their own, which takes root")
	}
	runscBinary = os.Getenv("TPUVISOR_RUNSC")
	if runscBinary == "" {
		out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
		if err != nil {
			return fmt.Errorf("finding the project's folder: %w", err)
		}
		runscBinary = filepath.Join(strings.TrimSpace(string(out)), "bin", "runsc")
	}
	if _, err := os.Stat(runscBinary); err != nil {
		return fmt.Errorf("no runsc to test (make one with `make runsc`): %w", err)
	}
	probeBinary = filepath.Join(dir, "probe")
	build := exec.Command("go", "build", "-o", probeBinary, "./probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building the probe: %w\n%s", err, out)
	}
	return nil
}

// rig is one runsc with all that a test needs around it.
type rig struct {
	*testing.T
	runsc *sandbox.Runsc
	dir   string
	held  []string // what the probe opens
	seq   int
}

func newRig(t *testing.T, held ...string) *rig {
	t.Helper()
	dir := t.TempDir()
	r, err := sandbox.New(runscBinary, filepath.Join(dir, "runsc"))
	if err != nil {
		t.Fatal(err)
	}
	if held == nil {
		held = []string{"/dev/vfio/0"}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(r.Log())
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return &rig{T: t, runsc: r, dir: dir, held: held}
}

func (r *rig) name(what string) string {
	r.seq++
	return fmt.Sprintf("%s%d", what, r.seq)
}

func (r *rig) bundle(host tpuhost.Host) string {
	r.Helper()
	bundle := filepath.Join(r.dir, r.name("bundle"))
	w := sandbox.Workload{Program: probeBinary, Args: append([]string{"hold"}, r.held...)}
	if err := w.Bundle(bundle, host); err != nil {
		r.Fatal(err)
	}
	return bundle
}

func (r *rig) start(host tpuhost.Host) *sandbox.Container {
	r.Helper()
	c, err := r.runsc.Run(r.Context(), r.name("c"), host, r.bundle(host))
	if err != nil {
		r.Fatal(err)
	}
	r.says(c, "ready")
	return c
}

// save checkpoints a container and takes it away.
func (r *rig) save(c *sandbox.Container) (image string) {
	r.Helper()
	image = filepath.Join(r.dir, r.name("image"))
	if err := c.Checkpoint(r.Context(), image); err != nil {
		r.Fatal(err)
	}
	if err := c.Delete(r.Context()); err != nil {
		r.Fatal(err)
	}
	return image
}

func (r *rig) restore(image string, host tpuhost.Host) (*sandbox.Container, error) {
	r.Helper()
	return r.runsc.Restore(r.Context(), r.name("c"), host, r.bundle(host), image)
}

func (r *rig) mustRestore(image string, host tpuhost.Host) *sandbox.Container {
	r.Helper()
	c, err := r.restore(image, host)
	if err != nil {
		r.Fatal(err)
	}
	return c
}

func (r *rig) says(c *sandbox.Container, what string) {
	r.Helper()
	err := sandbox.Poll(r.Context(), fmt.Sprintf("the probe to say %q", what), func() (bool, error) {
		return strings.Contains(c.Output(), what), nil
	})
	if err != nil {
		r.Fatalf("%v; it said %q", err, c.Output())
	}
}

type view struct {
	Nodes, Class []string
	TPUs         map[string]string
}

// sees waits until a sandbox sees these nodes in /dev/vfio, and these TPUs in /sys,
// each as "address group". It may run before all is there.
func (r *rig) sees(c *sandbox.Container, nodes string, tpus ...string) {
	r.Helper()
	var got string
	want := fmt.Sprintf("%q %q", strings.Fields(nodes), tpus)
	err := sandbox.Poll(r.Context(), "the sandbox to see its TPUs", func() (bool, error) {
		out, err := c.Exec(r.Context(), "/probe", "look")
		if err != nil {
			return false, err
		}
		var v view
		if err := json.Unmarshal([]byte(out), &v); err != nil {
			return false, err
		}
		got = v.String()
		return got == want, nil
	})
	if err != nil {
		r.Fatalf("%v\nhave %s\nwant %s", err, got, want)
	}
}

func (v view) String() string {
	slices.Sort(v.Nodes)
	var tpus []string
	for _, address := range slices.Sorted(maps.Keys(v.TPUs)) {
		tpus = append(tpus, address+" "+v.TPUs[address])
	}
	return fmt.Sprintf("%q %q", v.Nodes, tpus)
}

// opens lets the probe open what it holds, and gives the host's nodes that its
// sandbox has open then.
func (r *rig) opens(c *sandbox.Container) []string {
	r.Helper()
	before := strings.Count(c.Output(), "held")
	if err := c.Kill(r.Context(), "USR1"); err != nil {
		r.Fatal(err)
	}
	err := sandbox.Poll(r.Context(), "the probe to open its paths", func() (bool, error) {
		return strings.Count(c.Output(), "held") > before, nil
	})
	if err != nil {
		r.Fatalf("%v; it said %q", err, c.Output())
	}
	state, err := c.State(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", state.PID))
	if err != nil {
		r.Fatal(err)
	}
	var open []string
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.Contains(target, "vfio/") {
			open = append(open, filepath.Base(target))
		}
	}
	slices.Sort(open)
	return open
}

func host(t *testing.T, arch string, groups ...int) tpuhost.Host {
	t.Helper()
	h, err := tpuhost.New(arch, groups...)
	if err != nil {
		t.Fatal(err)
	}
	return h
}
