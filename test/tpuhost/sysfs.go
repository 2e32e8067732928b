package tpuhost

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// writeSys makes the files of the host's chips in an empty tree that stands for
// /sys: what gVisor and a TPU runtime read of a PCI device, and no more.
func (h Host) writeSys(root string) error {
	t := tree{root: root}
	t.dir("bus/pci/devices")
	t.dir("kernel/iommu_groups")
	vfio, accel := 0, 0
	for _, c := range h.Chips {
		t.chip(c)
		if c.Accel {
			t.class(c, "accel", "accel"+strconv.Itoa(accel))
			accel++
			continue
		}
		t.class(c, "vfio-dev", "vfio"+strconv.Itoa(vfio))
		vfio++
	}
	return errors.Join(t.errs...)
}

// tree writes below a root and keeps the errors.
type tree struct {
	root string
	errs []error
}

func (t *tree) note(err error) {
	if err != nil {
		t.errs = append(t.errs, err)
	}
}

func (t *tree) dir(name string) {
	t.note(os.MkdirAll(filepath.Join(t.root, name), 0o755))
}

func (t *tree) file(name, text string) {
	t.dir(filepath.Dir(name))
	t.note(os.WriteFile(filepath.Join(t.root, name), []byte(text+"\n"), 0o444))
}

// link makes a symbolic link at name that leads to target, both relative to the
// root; the link itself is relative, as sysfs has them.
func (t *tree) link(name, target string) {
	t.dir(filepath.Dir(name))
	to, err := filepath.Rel(filepath.Dir(name), target)
	t.note(err)
	t.note(os.Symlink(to, filepath.Join(t.root, name)))
}

func (t *tree) chip(c Chip) {
	dir := c.dir()
	t.file(dir+"/vendor", fmt.Sprintf("%#04x", c.Vendor))
	t.file(dir+"/device", fmt.Sprintf("%#04x", c.Device))
	t.file(dir+"/subsystem_vendor", "0x0000")
	t.file(dir+"/subsystem_device", "0x0000")
	t.file(dir+"/revision", "0x00")
	t.file(dir+"/class", "0x120000")
	t.file(dir+"/numa_node", "0")
	t.link("bus/pci/devices/"+c.Address, dir)
	t.link(dir+"/iommu_group", c.groupDir())
	t.link(filepath.Join(c.groupDir(), "devices", c.Address), dir)
	if _, err := os.Lstat(filepath.Join(t.root, c.groupDir(), "type")); err != nil {
		t.file(filepath.Join(c.groupDir(), "type"), "DMA")
	}
}

// class makes the chip's folder in a device class.
func (t *tree) class(c Chip, class, name string) {
	dir := filepath.Join(c.dir(), class, name)
	t.dir(dir)
	t.link(filepath.Join(dir, "device"), c.dir())
	t.link(filepath.Join("class", class, name), dir)
}
