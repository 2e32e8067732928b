package remap

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// sysfs makes a tree with one group per line of "group address vendor device".
func sysfs(t *testing.T, lines ...string) HostSysfs {
	t.Helper()
	root := t.TempDir()
	for _, line := range lines {
		var group, address, vendor, device string
		if _, err := fmt.Sscan(line, &group, &address, &vendor, &device); err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(root, "sys/devices/pci0000:00", address)
		members := filepath.Join(root, iommuGroups, group, "devices")
		for _, d := range []string{dir, members} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for name, text := range map[string]string{"vendor": vendor, "device": device} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(dir, filepath.Join(members, address)); err != nil {
			t.Fatal(err)
		}
	}
	return HostSysfs{Root: root}
}

func TestRead(t *testing.T) {
	s := sysfs(t,
		"7 0000:00:0a.0 0x1ae0 0x0063",
		"7 0000:00:04.0 0x1ae0 0x0063",
		"2 0000:00:05.0 0x1ae0 0x006f",
		"3 0000:00:06.0 0x1ae0 0x0042", // a network card of the same vendor
		"4 0000:00:07.0 0x8086 0x0063",
		"5 0000:00:08.0 0x1ae0 0x0075",
	)
	got, err := Read(s, []uint32{7, 2, 3, 4, 99})
	want := Inventory{{"0000:00:04.0", 7, 0x63}, {"0000:00:05.0", 2, 0x6f}, {"0000:00:0a.0", 7, 0x63}}
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("got %v, %v; want %v", got, err, want)
	}
	if g := got.Groups(); !slices.Equal(g, []uint32{2, 7}) {
		t.Errorf("groups %v", g)
	}
	if s := got[1].String(); s != "v6e 0000:00:05.0 in group 2" {
		t.Errorf("device is called %q", s)
	}
}

func TestReadMemberWithoutFiles(t *testing.T) {
	s := sysfs(t, "1 0000:00:04.0 0x1ae0 0x0062")
	if err := os.Symlink("nowhere", filepath.Join(s.Root, iommuGroups, "1/devices/0000:00:00.0")); err != nil {
		t.Fatal(err)
	}
	got, err := Read(s, []uint32{1})
	if err != nil || len(got) != 1 || got[0].Architecture() != "v5p" {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestReadGarbage(t *testing.T) {
	if _, err := Read(sysfs(t, "1 0000:00:04.0 0x1ae0 many"), []uint32{1}); err == nil {
		t.Error("no error")
	}
}

func TestArchitectures(t *testing.T) {
	for id, want := range map[uint16]string{
		0x56: "v4", 0x5e: "v4", 0x62: "v5p", 0x63: "v5e", 0x6e: "v6e", 0x6f: "v6e", 0x75: "7x", 0x76: "7x", 0x99: "unknown 0x0099",
	} {
		if got := (Device{ID: id}).Architecture(); got != want {
			t.Errorf("%#x is %q, want %q", id, got, want)
		}
	}
}

func TestAddressOrder(t *testing.T) {
	sorted := []string{"0000:00:04.0", "0000:00:04.1", "0000:00:10.0", "0000:0f:00.0", "0001:00:00.0", "10000:00:00.0"}
	if !slices.IsSortedFunc(sorted, compareAddresses) {
		t.Error("not in order")
	}
}

func TestRecord(t *testing.T) {
	inv := Inventory{{"0000:00:04.0", 7, 0x63}, {"0000:00:05.0", 2, 0x6f}}
	text, err := inv.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(text)
	if err != nil || !slices.Equal(got, inv) {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := Decode("{"); err == nil {
		t.Error("garbage is taken for a list")
	}
}
