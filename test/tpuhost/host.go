package tpuhost

import (
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// GoogleVendor is the PCI vendor id of every TPU.
const GoogleVendor = 0x1ae0

// architectures gives a chip architecture's PCI device id.
var architectures = map[string]uint16{
	"v4":     0x005e,
	"v4lite": 0x0056,
	"v5e":    0x0063,
	"v5p":    0x0062,
	"v6e":    0x006e,
	"7x":     0x0075,
}

// Chip is one PCI device of the host: a TPU, unless Vendor says otherwise.
type Chip struct {
	Address string // PCI address, such as "0000:00:04.0"
	Vendor  uint16 // PCI vendor id
	Device  uint16 // PCI device id
	Group   int    // number of its IOMMU group; several chips may share one
	Accel   bool   // driven through /dev/accelN, as TPU v4 was, and not through VFIO
}

// Host is what a command sees of the machine's TPUs. The zero Host has none.
type Host struct {
	Chips []Chip
	// Clutter adds a directory /dev/vfio/devices, as newer kernels have it.
	Clutter bool
}

// New returns a host with one chip of the architecture ("v5e"…) per group
// number given, at the addresses 0000:00:04.0, 0000:00:05.0 and so on.
func New(arch string, groups ...int) (Host, error) {
	device, ok := architectures[arch]
	if !ok {
		return Host{}, fmt.Errorf("tpuhost: unknown chip architecture %q; known are %s", arch, strings.Join(Architectures(), ", "))
	}
	if len(groups) > maxChips {
		return Host{}, fmt.Errorf("tpuhost: %d chips asked for; a host has at most %d", len(groups), maxChips)
	}
	var h Host
	for i, group := range groups {
		h.Chips = append(h.Chips, Chip{
			Address: fmt.Sprintf("0000:00:%02x.0", firstSlot+i),
			Vendor:  GoogleVendor,
			Device:  device,
			Group:   group,
		})
	}
	return h, nil
}

// The slots of one PCI bus that New fills: below the first are bridges and the like.
const (
	firstSlot = 4
	maxChips  = 32 - firstSlot
)

// OtherDevice returns the n-th device that is no TPU, bound to VFIO in the given
// group: hosts may have such devices beside their TPUs.
func OtherDevice(n, group int) Chip {
	return Chip{
		Address: fmt.Sprintf("0000:01:%02x.0", n),
		Vendor:  0x1af4,
		Device:  0x1041,
		Group:   group,
	}
}

// Architectures lists the names that New knows, in order.
func Architectures() []string {
	names := make([]string, 0, len(architectures))
	for name := range architectures {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Node is a device node that a container of this host needs.
type Node struct {
	Path  string
	Major int64
	Minor int64
}

// The majors that a kernel would use. VFIO's groups get theirs when the driver
// is loaded; any number will do, gVisor gives them one of its own.
const (
	miscMajor  = 10
	vfioMinor  = 196
	groupMajor = 245
	accelMajor = 121
)

// Nodes lists the device nodes to put into a container's spec: one per group of
// TPUs or accel chip, and the VFIO container node if there is a group. The numbers
// are what a machine with TPUs would show; they differ from node to node, since
// gVisor tells devices apart by them.
func (h Host) Nodes() []Node {
	return h.nodes(func(c Chip) bool { return c.Vendor == GoogleVendor })
}

// nodes lists the nodes of the chips that are wanted.
func (h Host) nodes(wanted func(Chip) bool) []Node {
	var nodes, groups []Node
	accel := 0
	for _, c := range h.Chips {
		switch {
		case c.Accel && wanted(c):
			nodes = append(nodes, Node{Path: fmt.Sprintf("/dev/accel%d", accel), Major: accelMajor, Minor: int64(accel)})
		case wanted(c):
			groups = append(groups, Node{Path: fmt.Sprintf("/dev/vfio/%d", c.Group), Major: groupMajor, Minor: int64(c.Group)})
		}
		if c.Accel {
			accel++
		}
	}
	if len(groups) == 0 {
		return nodes
	}
	slices.SortFunc(groups, func(a, b Node) int { return cmp.Compare(a.Minor, b.Minor) })
	nodes = append(nodes, Node{Path: "/dev/vfio/vfio", Major: miscMajor, Minor: vfioMinor})
	return append(nodes, slices.Compact(groups)...)
}

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)

func (h Host) check() error {
	seen := make(map[string]bool)
	for _, c := range h.Chips {
		switch {
		case !pciAddress.MatchString(c.Address):
			return fmt.Errorf("tpuhost: %q is no PCI address such as 0000:00:04.0", c.Address)
		case seen[c.Address]:
			return fmt.Errorf("tpuhost: two chips at the PCI address %s", c.Address)
		case c.Group < 0:
			return fmt.Errorf("tpuhost: the IOMMU group %d of chip %s is negative", c.Group, c.Address)
		}
		seen[c.Address] = true
	}
	return nil
}

// dir is the chip's folder, relative to /sys.
func (c Chip) dir() string {
	bus, _, _ := strings.Cut(c.Address, ".")
	return filepath.Join("devices", "pci"+bus[:len("0000:00")], c.Address)
}

func (c Chip) groupDir() string {
	return filepath.Join("kernel/iommu_groups", strconv.Itoa(c.Group))
}
