package remap

import (
	"slices"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func spec(paths ...string) *specs.Spec {
	s := &specs.Spec{Root: &specs.Root{Path: "rootfs"}, Linux: &specs.Linux{}}
	for _, p := range paths {
		s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{Path: p, Type: "c"})
	}
	return s
}

func TestGroups(t *testing.T) {
	all := map[string]*specs.Spec{
		"a": spec("/dev/vfio/vfio", "/dev/vfio/12", "/dev/vfio/3", "/dev/vfio/devices/vfio0", "/dev/vfio/4294967296", "/dev/accel0"),
		"b": spec("/dev/vfio/3"),
		"c": {},
	}
	if got := GroupsInSpecs(all); !slices.Equal(got, []uint32{3, 12}) {
		t.Errorf("groups %v", got)
	}
	shares := Shares(map[string]*specs.Spec{"a": spec("/dev/vfio/1", "/dev/vfio/2")}, all)
	if a := shares["a"]; len(shares) != 2 || !slices.Equal(a.Saved, []uint32{1, 2}) || !slices.Equal(a.Now, []uint32{3, 12}) {
		t.Errorf("shares %v", shares)
	}
}

func TestWithoutGroups(t *testing.T) {
	all := map[string]*specs.Spec{"a": spec("/dev/vfio/vfio", "/dev/vfio/3", "/dev/fuse", "/dev/vfio/4"), "b": {}}
	got, err := WithoutGroups(all, []uint32{3, 9})
	if err != nil {
		t.Fatal(err)
	}
	if d := got["a"].Linux.Devices; len(d) != 3 || d[0].Path != "/dev/vfio/vfio" || d[1].Path != "/dev/fuse" {
		t.Errorf("devices %v", d)
	}
	got["a"].Root.Path = ""
	if len(all["a"].Linux.Devices) != 4 || all["a"].Root.Path != "rootfs" {
		t.Error("the original has changed")
	}
}
