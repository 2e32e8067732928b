package remap

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Device is one TPU: a PCI function that can be reached through VFIO.
type Device struct {
	Address string // PCI address, such as "0000:00:04.0"
	Group   uint32 // number of its IOMMU group, which names its node in /dev/vfio
	ID      uint16 // PCI device id
}

const googleVendor = 0x1ae0

var architectures = map[uint16]string{
	0x0056: "v4",
	0x005e: "v4",
	0x0062: "v5p",
	0x0063: "v5e",
	0x006e: "v6e",
	0x006f: "v6e",
	0x0075: "7x",
	0x0076: "7x",
}

// IsTPU reports whether a PCI function with these ids is a TPU.
func IsTPU(vendor, device uint16) bool {
	_, known := architectures[device]
	return vendor == googleVendor && known
}

// Architecture is the chip's, such as "v5e": two TPUs of the same one can stand in
// for each other.
func (d Device) Architecture() string {
	if name, ok := architectures[d.ID]; ok {
		return name
	}
	return fmt.Sprintf("unknown %#04x", d.ID)
}

// String is how a device is named in a message for a person.
func (d Device) String() string {
	return fmt.Sprintf("%s %s in group %d", d.Architecture(), d.Address, d.Group)
}

// Inventory is the TPUs of a sandbox, by address.
type Inventory []Device

// Groups are the numbers of the inventory's IOMMU groups, in ascending order.
func (inv Inventory) Groups() []uint32 {
	var groups []uint32
	for _, d := range inv {
		groups = append(groups, d.Group)
	}
	slices.Sort(groups)
	return slices.Compact(groups)
}

// String lists the inventory in one line.
func (inv Inventory) String() string {
	if len(inv) == 0 {
		return "none"
	}
	names := make([]string, len(inv))
	for i, d := range inv {
		names[i] = d.String()
	}
	return fmt.Sprintf("%d (%s)", len(inv), strings.Join(names, ", "))
}

// Sysfs is what Read needs of a sysfs. Paths are absolute, as "/sys/kernel/…". A
// directory or file that is not there gives an error that is fs.ErrNotExist.
type Sysfs interface {
	ReadDir(dir string) ([]string, error)
	ReadFile(file string) ([]byte, error)
}

const iommuGroups = "/sys/kernel/iommu_groups"

// Read takes the inventory of the given IOMMU groups. What is no TPU is left out,
// and so is a group that sysfs does not have.
func Read(sysfs Sysfs, groups []uint32) (Inventory, error) {
	var inv Inventory
	for _, group := range groups {
		members := path.Join(iommuGroups, strconv.FormatUint(uint64(group), 10), "devices")
		addresses, err := sysfs.ReadDir(members)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("iommu group %d: %w", group, err)
		}
		for _, address := range addresses {
			d, ok, err := readDevice(sysfs, path.Join(members, address))
			if err != nil {
				return nil, fmt.Errorf("iommu group %d: %w", group, err)
			}
			if ok {
				inv = append(inv, Device{Address: address, Group: group, ID: d})
			}
		}
	}
	inv.sort()
	return inv, nil
}

// readDevice reports the device id of a TPU. Inside a sandbox only TPUs have their
// files, so one whose ids cannot be found is not a TPU.
func readDevice(sysfs Sysfs, dir string) (id uint16, ok bool, err error) {
	vendor, err := readID(sysfs, path.Join(dir, "vendor"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	id, err = readID(sysfs, path.Join(dir, "device"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	return id, err == nil && IsTPU(vendor, id), err
}

func readID(sysfs Sysfs, file string) (uint16, error) {
	data, err := sysfs.ReadFile(file)
	if err != nil {
		return 0, err
	}
	v, err := strconv.ParseUint(strings.TrimSpace(string(data)), 0, 16)
	if err != nil {
		return 0, fmt.Errorf("%s holds %q, which is no PCI id", file, data)
	}
	return uint16(v), nil
}

func (inv Inventory) sort() {
	slices.SortFunc(inv, func(a, b Device) int { return compareAddresses(a.Address, b.Address) })
}

// compareAddresses orders PCI addresses by domain, bus, device and function.
func compareAddresses(a, b string) int {
	x, okX := parseAddress(a)
	y, okY := parseAddress(b)
	if !okX || !okY {
		return cmp.Compare(a, b)
	}
	return slices.Compare(x[:], y[:])
}

func parseAddress(s string) (parts [4]uint64, ok bool) {
	fields := strings.FieldsFunc(s, func(r rune) bool { return r == ':' || r == '.' })
	if len(fields) != len(parts) {
		return parts, false
	}
	for i, f := range fields {
		v, err := strconv.ParseUint(f, 16, 32)
		if err != nil {
			return parts, false
		}
		parts[i] = v
	}
	return parts, true
}
