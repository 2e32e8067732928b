// Package holders finds out, on the host, which processes hold an IOMMU group open.
// A group can be open once only, so a holder is what stands in the way of a restore.
package holders

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy/remap"
)

// Holder is a process that has the node of a group open.
type Holder struct {
	Group   uint32
	PID     int
	Command string // the name of its program
	Sandbox string // the id of the sandbox whose process it is, or ""
}

// String names the holder for a person.
func (h Holder) String() string {
	if h.Sandbox != "" {
		return fmt.Sprintf("sandbox %q (pid %d)", h.Sandbox, h.PID)
	}
	return fmt.Sprintf("pid %d (%s)", h.PID, h.Command)
}

// Find lists the holders of the host's groups, by group and pid. Processes that the
// caller may not look into are left out: only root sees all.
func Find() ([]Holder, error) { return find("/dev/vfio", "/proc") }

// Describe says in one line who holds which of the groups, or "" when nobody is found.
func Describe(groups []uint32) string {
	all, err := Find()
	if err != nil {
		return ""
	}
	return describe(all, groups)
}

func describe(all []Holder, groups []uint32) string {
	var parts []string
	for _, h := range all {
		if slices.Contains(groups, h.Group) {
			parts = append(parts, fmt.Sprintf("/dev/vfio/%d is held by %v", h.Group, h))
		}
	}
	return strings.Join(parts, ", ")
}

func find(devDir, procDir string) ([]Holder, error) {
	groups, err := nodes(devDir)
	if err != nil || len(groups) == 0 {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(procDir, "[0-9]*", "fd", "*"))
	if err != nil {
		return nil, err
	}
	var found []Holder
	for _, file := range files {
		rdev, ok := deviceNumber(file)
		group, known := groups[rdev]
		if !ok || !known {
			continue
		}
		proc := filepath.Dir(filepath.Dir(file))
		if h, ok := holder(proc); ok {
			h.Group = group
			found = append(found, h)
		}
	}
	slices.SortFunc(found, func(a, b Holder) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.PID, b.PID))
	})
	return slices.Compact(found), nil
}

// nodes maps the device numbers of the groups' nodes to the groups.
func nodes(devDir string) (map[uint64]uint32, error) {
	entries, err := os.ReadDir(devDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	groups := make(map[uint64]uint32)
	for _, e := range entries {
		group, ok := remap.GroupOfNode("/dev/vfio/" + e.Name())
		if !ok {
			continue
		}
		if rdev, ok := deviceNumber(filepath.Join(devDir, e.Name())); ok {
			groups[rdev] = group
		}
	}
	return groups, err
}

func deviceNumber(file string) (rdev uint64, ok bool) {
	var stat unix.Stat_t
	if err := unix.Stat(file, &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFCHR {
		return 0, false
	}
	return stat.Rdev, true
}

// holder describes the process of a folder in /proc. ok is false if it has ended.
func holder(proc string) (h Holder, ok bool) {
	pid, err := strconv.Atoi(filepath.Base(proc))
	if err != nil {
		return h, false
	}
	comm, err := os.ReadFile(filepath.Join(proc, "comm"))
	if err != nil {
		return h, false
	}
	h = Holder{PID: pid, Command: strings.TrimSpace(string(comm))}
	cmdline, err := os.ReadFile(filepath.Join(proc, "cmdline"))
	if err == nil {
		h.Sandbox = sandboxID(cmdline)
	}
	return h, true
}

// sandboxID is the last argument of `runsc-sandbox … boot … ID`.
func sandboxID(cmdline []byte) string {
	args := bytes.Split(bytes.TrimRight(cmdline, "\x00"), []byte{0})
	if filepath.Base(string(args[0])) != "runsc-sandbox" {
		return ""
	}
	return string(args[len(args)-1])
}
