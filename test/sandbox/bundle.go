package sandbox

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"tpuvisor.dev/tpuvisor/test/tpuhost"
)

// Workload is what a container is made of: one static program, and no more.
type Workload struct {
	Program     string            // path of the program; inside, it lies in the root folder
	Args        []string          // its arguments
	Env         []string          // "KEY=value"; PATH is there already
	Mounts      map[string]string // host folders by the path that they have inside
	Annotations map[string]string // of the OCI spec
	// Change makes what else there is to change in the spec, if it is not nil.
	Change func(*specs.Spec)
}

// Bundle makes the workload's OCI bundle in a new folder, for a container that
// gets all TPUs of the host. Two bundles of one workload are alike to the file
// times: a container saved from one can be restored from the other.
func (w Workload) Bundle(dir string, host tpuhost.Host) error {
	root := filepath.Join(dir, RootFS)
	folders := []string{"dev", "proc", "sys", "tmp"}
	for inside := range w.Mounts {
		folders = append(folders, inside)
	}
	for _, folder := range folders {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o755); err != nil {
			return fmt.Errorf("sandbox: bundle: %w", err)
		}
	}
	if err := link(w.Program, filepath.Join(root, filepath.Base(w.Program))); err != nil {
		return fmt.Errorf("sandbox: bundle: %w", err)
	}
	for _, folder := range append(folders, ".") {
		if err := os.Chtimes(filepath.Join(root, folder), bundleTime, bundleTime); err != nil {
			return fmt.Errorf("sandbox: bundle: %w", err)
		}
	}
	config, err := json.MarshalIndent(w.Spec(host), "", "  ")
	if err != nil {
		return fmt.Errorf("sandbox: bundle: %w", err)
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644)
}

// RootFS is the folder of a bundle that is the container's root.
const RootFS = "rootfs"

// bundleTime is when the folders of every bundle were made.
var bundleTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// link makes a hard link, or a copy with the same time where there can be none.
func link(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.WriteFile(to, content, info.Mode()); err != nil {
		return err
	}
	return os.Chtimes(to, info.ModTime(), info.ModTime())
}

// Spec is the workload's OCI spec on a host.
func (w Workload) Spec(host tpuhost.Host) *specs.Spec {
	spec := &specs.Spec{
		Version: "1.0.0",
		Process: &specs.Process{
			Args: append([]string{"/" + filepath.Base(w.Program)}, w.Args...),
			Env:  append([]string{"PATH=/"}, w.Env...),
			Cwd:  "/",
		},
		Root:        &specs.Root{Path: RootFS},
		Hostname:    "sandbox",
		Annotations: w.Annotations,
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs"},
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs"},
		},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
		}},
	}
	for _, inside := range slices.Sorted(maps.Keys(w.Mounts)) {
		spec.Mounts = append(spec.Mounts, specs.Mount{
			Destination: inside, Type: "bind", Source: w.Mounts[inside], Options: []string{"rbind", "rw"},
		})
	}
	for _, n := range host.Nodes() {
		spec.Linux.Devices = append(spec.Linux.Devices, specs.LinuxDevice{
			Path: n.Path, Type: "c", Major: n.Major, Minor: n.Minor,
		})
	}
	if w.Change != nil {
		w.Change(spec)
	}
	return spec
}
