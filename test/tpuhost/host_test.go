package tpuhost

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestNodes(t *testing.T) {
	h, err := New("v5e", 7, 3)
	if err != nil {
		t.Fatal(err)
	}
	second := h.Chips[1]
	second.Address = "0000:00:1f.0"
	h.Chips = append(h.Chips, second, OtherDevice(0, 5))
	want := []Node{{"/dev/vfio/vfio", 10, 196}, {"/dev/vfio/3", 245, 3}, {"/dev/vfio/7", 245, 7}}
	if got := h.Nodes(); !reflect.DeepEqual(got, want) {
		t.Errorf("nodes of a VFIO host are %v, want %v", got, want)
	}
	h.Chips = h.Chips[:2]
	h.Chips[0].Accel, h.Chips[1].Accel = true, true
	want = []Node{{"/dev/accel0", 121, 0}, {"/dev/accel1", 121, 1}}
	if got := h.Nodes(); !reflect.DeepEqual(got, want) {
		t.Errorf("nodes of an accel host are %v, want %v", got, want)
	}
	if got := (Host{}).Nodes(); got != nil {
		t.Errorf("nodes of a host without TPUs are %v", got)
	}
}

func TestHostsRefused(t *testing.T) {
	if _, err := New("v9", 0); err == nil {
		t.Error("an unknown architecture was taken")
	}
	if _, err := New("v5e", make([]int, maxChips+1)...); err == nil {
		t.Error("more chips were taken than a bus has slots")
	}
	for name, change := range map[string]func(*Host){
		"no address":       func(h *Host) { h.Chips[0].Address = "04.0" },
		"same address":     func(h *Host) { h.Chips[0].Address = h.Chips[1].Address },
		"negative group":   func(h *Host) { h.Chips[0].Group = -1 },
		"path in address":  func(h *Host) { h.Chips[0].Address = "../../etc" },
		"upper-case digit": func(h *Host) { h.Chips[0].Address = "0000:00:0A.0" },
	} {
		h, err := New("v5e", 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		change(&h)
		if h.check() == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// TestSysfs follows the links that gVisor and runtimes follow.
func TestSysfs(t *testing.T) {
	h, err := New("v6e", 4, 4)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := h.writeSys(root); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"bus/pci/devices/0000:00:04.0/vendor":                                "0x1ae0",
		"bus/pci/devices/0000:00:05.0/device":                                "0x006e",
		"kernel/iommu_groups/4/devices/0000:00:05.0/device":                  "0x006e",
		"devices/pci0000:00/0000:00:04.0/iommu_group/type":                   "DMA",
		"class/vfio-dev/vfio1/device/vendor":                                 "0x1ae0",
		"class/vfio-dev/vfio0/device/iommu_group/devices/0000:00:05.0/class": "0x120000",
	} {
		got, err := os.ReadFile(filepath.Join(root, path))
		if err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("%s holds %q, %v; want %q", path, got, err, want)
		}
	}
}
