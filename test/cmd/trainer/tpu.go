package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// tpu is one member's TPU: the device files that it holds open, and the file that
// stands for its memory.
type tpu struct {
	hbm     string // path of the file
	dev     string
	rank    int
	members int
	share   int    // how many groups or chips are the member's; 0: not known yet
	open    []int  // descriptors
	saved   []byte // the memory, while the devices are closed
}

func newTPU(o *options, rank int) *tpu {
	return &tpu{
		hbm:     filepath.Join(o.hbm, fmt.Sprintf("rank%d", rank)),
		dev:     o.dev,
		rank:    rank,
		members: o.processes * o.runtimes,
	}
}

func (t *tpu) read() ([]byte, error) { return os.ReadFile(t.hbm) }

// write does not make the file shorter or longer while it is being read: a TPU's
// memory has one size.
func (t *tpu) write(b []byte) error {
	f, err := os.OpenFile(t.hbm, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, 0)
	return errors.Join(err, f.Truncate(int64(len(b))), f.Close())
}

// Detach implements libtpusim.TPU. What is left in the TPU's memory is spoilt, so
// that nobody can go on without a RESTORE.
func (t *tpu) Detach() error {
	saved, err := t.read()
	if err != nil {
		return err
	}
	if err := t.write(slices.Repeat([]byte{0xdb}, len(saved))); err != nil {
		return err
	}
	t.saved = saved
	return t.closeDevices()
}

// Attach implements libtpusim.TPU.
func (t *tpu) Attach() error {
	if err := t.openDevices(); err != nil {
		return err
	}
	if err := t.write(t.saved); err != nil {
		return err
	}
	t.saved = nil
	return nil
}

func (t *tpu) closeDevices() error {
	var errs []error
	for _, fd := range t.open {
		errs = append(errs, unix.Close(fd))
	}
	t.open = nil
	return errors.Join(errs...)
}

// openDevices opens the member's share of the devices that there are now.
func (t *tpu) openDevices() error {
	paths, err := t.devices()
	if err != nil {
		return err
	}
	for _, path := range paths {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return errors.Join(fmt.Errorf("open %s: %w", path, err), t.closeDevices())
		}
		t.open = append(t.open, fd)
	}
	return nil
}

// devices lists the member's device files. VFIO groups and accel chips are shared
// out evenly, in the order of their numbers; the rest of an uneven division is
// nobody's, and so is what a later host has more of. Only names that are numbers
// are groups, and a group that /sys does not know is a name from an earlier host.
func (t *tpu) devices() ([]string, error) {
	groups := slices.DeleteFunc(numbered(filepath.Join(t.dev, "vfio"), ""), func(path string) bool {
		return len(deviceIDs(path)) == 0
	})
	paths := make([]string, 0, len(groups)+1)
	if len(groups) == 0 {
		groups = numbered(t.dev, "accel")
	} else {
		paths = append(paths, filepath.Join(t.dev, "vfio/vfio"))
	}
	share := t.share
	if share == 0 {
		share = max(1, len(groups)/t.members)
	}
	if len(groups) < share*t.members {
		return nil, fmt.Errorf("there are %d TPUs for %d members that need %d each", len(groups), t.members, share)
	}
	t.share = share
	return append(paths, groups[t.rank*share:(t.rank+1)*share]...), nil
}

// numbered lists the files of a folder whose name is the prefix and a number, in
// the order of the numbers.
func numbered(dir, prefix string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var numbers []int
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), prefix)
		if n, err := strconv.Atoi(digits); ok && err == nil && n >= 0 {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	paths := make([]string, len(numbers))
	for i, n := range numbers {
		paths[i] = filepath.Join(dir, prefix+strconv.Itoa(n))
	}
	return paths
}

// architectures names what PCI device ids stand for.
var architectures = map[string]string{
	"0x0056": "v4lite", "0x005e": "v4", "0x0062": "v5p", "0x0063": "v5e", "0x006e": "v6e", "0x0075": "7x",
}

// Topology implements libtpusim.TPU.
func (t *tpu) Topology() *controlpb.TpuTopology {
	topology := &controlpb.TpuTopology{PjrtVersion: proto.String("sim-1")}
	paths, err := t.devices()
	if err != nil {
		return topology
	}
	chips := 0
	for _, path := range paths {
		ids := deviceIDs(path)
		chips += len(ids)
		for _, id := range ids {
			if name, ok := architectures[id]; ok {
				topology.ChipArchitecture = proto.String(name)
			}
		}
	}
	if chips > 0 {
		topology.NumChips = proto.Int32(int32(chips))
		topology.MeshShape = proto.String(fmt.Sprintf("%dx1x1", chips))
	}
	return topology
}

// deviceIDs reads the PCI device ids of the chips behind a device file.
func deviceIDs(path string) []string {
	name := filepath.Base(path)
	pattern := filepath.Join("/sys/kernel/iommu_groups", name, "devices/*/device")
	if strings.HasPrefix(name, "accel") {
		pattern = filepath.Join("/sys/class/accel", name, "device/device")
	}
	files, err := filepath.Glob(pattern)
	if err != nil {
		return nil
	}
	var ids []string
	for _, file := range files {
		if b, err := os.ReadFile(file); err == nil {
			ids = append(ids, strings.TrimSpace(string(b)))
		}
	}
	return ids
}
