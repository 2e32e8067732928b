package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// tpu is one chip of the machine.
type tpu struct {
	address string
	id      string
}

// hardware is what the machine has: TPUs of one kind, one of another, and a device
// that is no TPU and is bound to VFIO all the same.
type hardware struct {
	tpus  []*tpu // by address
	other *tpu   // of another architecture
}

func (h *hardware) String() string {
	var parts []string
	for _, t := range append(slices.Clone(h.tpus), h.other) {
		parts = append(parts, fmt.Sprintf("%s id %s in group %d", t.address, t.id, t.group()))
	}
	return strings.Join(parts, ", ")
}

const pciDevices = "/sys/bus/pci/devices"

func (t *tpu) file(name string) string { return filepath.Join(pciDevices, t.address, name) }

func (t *tpu) group() int {
	link, err := os.Readlink(t.file("iommu_group"))
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(filepath.Base(link))
	if err != nil {
		return -1
	}
	return n
}

func (t *tpu) node() string { return fmt.Sprintf("/dev/vfio/%d", t.group()) }

// bind gives the device to VFIO.
func (t *tpu) bind() error {
	if err := os.WriteFile(t.file("driver_override"), []byte("vfio-pci"), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile("/sys/bus/pci/drivers_probe", []byte(t.address), 0o644); err != nil {
		return err
	}
	return wait(t.node(), func() bool { _, err := os.Stat(t.node()); return err == nil })
}

// remove takes the device away from the kernel; plugIn gives it back.
func (t *tpu) remove() error { return os.WriteFile(t.file("remove"), []byte("1"), 0o644) }

func (t *tpu) plugIn() error {
	bus := filepath.Join("/sys/class/pci_bus", t.address[:len("0000:00")], "rescan")
	if err := os.WriteFile(bus, []byte("1"), 0o644); err != nil {
		return err
	}
	if err := wait(t.address, func() bool { return t.group() >= 0 }); err != nil {
		return err
	}
	return t.bind()
}

// patience is for an emulated machine on a busy one; what is waited for takes seconds.
const patience = 3 * time.Minute

// wait polls, since the kernel tells of none of this.
func wait(what string, done func() bool) error {
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-again.C {
		if done() {
			return nil
		}
	}
	return fmt.Errorf("%s does not appear", what)
}

// findHardware binds all that is of use, and adds what hosts have besides.
func findHardware() (*hardware, error) {
	entries, err := os.ReadDir(pciDevices)
	if err != nil {
		return nil, err
	}
	h := new(hardware)
	for _, e := range entries {
		t := &tpu{address: e.Name()}
		t.id = attribute(t, "device")
		switch attribute(t, "vendor") {
		case "0x1ae0":
		case "0x1234": // QEMU's example device
			if err := t.bind(); err != nil {
				return nil, err
			}
			continue
		default:
			continue
		}
		if err := t.bind(); err != nil {
			return nil, err
		}
		if t.id == "0x0063" {
			h.tpus = append(h.tpus, t)
		} else {
			h.other = t
		}
	}
	slices.SortFunc(h.tpus, func(a, b *tpu) int { return cmp.Compare(a.address, b.address) })
	if len(h.tpus) < 3 || h.other == nil {
		return nil, fmt.Errorf("not the machine that was wanted: %d TPUs", len(h.tpus))
	}
	err = os.Mkdir("/dev/vfio/devices", 0o755)
	if errors.Is(err, os.ErrExist) {
		err = nil
	}
	return h, err
}

func attribute(t *tpu, name string) string {
	text, err := os.ReadFile(t.file(name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
