package hostview

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// host makes a tree with the given names in /dev/vfio, and one PCI device per line of
// "group address vendor device".
func host(t *testing.T, names string, devices ...string) string {
	t.Helper()
	root := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(root+vfioDir, 0o755))
	for name := range strings.FieldsSeq(names) {
		must(os.WriteFile(filepath.Join(root, vfioDir, name), nil, 0o644))
	}
	for _, line := range devices {
		f := strings.Fields(line)
		dir := filepath.Join(root, "sys/devices/pci0000:00", f[1])
		members := filepath.Join(root, "sys/kernel/iommu_groups", f[0], "devices")
		must(os.MkdirAll(dir, 0o755))
		must(os.MkdirAll(members, 0o755))
		must(os.WriteFile(filepath.Join(dir, "vendor"), []byte(f[2]+"\n"), 0o644))
		must(os.WriteFile(filepath.Join(dir, "device"), []byte(f[3]+"\n"), 0o644))
		must(os.Symlink(dir, filepath.Join(members, f[1])))
	}
	return root
}

func TestPlan(t *testing.T) {
	const tpu, pf, nic = "0x1ae0 0x0063", "0x1ae0 0x006e", "0x8086 0x100e"
	for _, tc := range []struct {
		name, names   string
		devices       []string
		keep, hidden  string
		disguised     string
		seenAsItIsNow bool
	}{
		{"TPUs only", "vfio 0 1", []string{"0 0000:00:04.0 " + tpu, "1 0000:00:05.0 " + tpu}, "0 1 vfio", "", "", true},
		{"directory of devices", "vfio 0 devices", []string{"0 0000:00:04.0 " + tpu}, "0 vfio", "devices", "", false},
		{"another group", "vfio 0 7", []string{"0 0000:00:04.0 " + tpu, "7 0000:00:09.0 " + nic}, "0 vfio", "7", "", false},
		{"empty group", "vfio 9", nil, "vfio", "9", "", false},
		{"no VFIO", "", nil, "", "", "", true},
		{"physical function", "vfio 3", []string{"3 0000:00:04.0 " + pf}, "3 vfio", "", "0000:00:04.0", false},
		{"bridge in the group", "vfio 3", []string{"3 0000:00:04.0 " + tpu, "3 0000:00:03.0 " + nic}, "3 vfio", "", "0000:00:03.0", false},
		{"noiommu group", "vfio noiommu-0", nil, "vfio", "noiommu-0", "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v, err := plan(host(t, tc.names, tc.devices...))
			if err != nil {
				t.Fatal(err)
			}
			var disguised []string
			for _, dir := range v.disguise {
				disguised = append(disguised, filepath.Base(dir))
			}
			for _, c := range []struct {
				what string
				got  []string
				want string
			}{{"kept", v.names, tc.keep}, {"hidden", v.hidden, tc.hidden}, {"disguised", disguised, tc.disguised}} {
				if !slices.Equal(c.got, strings.Fields(c.want)) {
					t.Errorf("%s: %q, want %q", c.what, c.got, c.want)
				}
			}
			if v.asItIs() != tc.seenAsItIsNow {
				t.Errorf("seen as it is: %v", v.asItIs())
			}
		})
	}
}

func TestPlanWithoutDirectory(t *testing.T) {
	if v, err := plan(t.TempDir()); err != nil || !v.asItIs() {
		t.Errorf("got %v, %v", v, err)
	}
}

func TestMakesChroot(t *testing.T) {
	for line, want := range map[string]bool{
		"runsc --root=/r boot --bundle=/b --setup-root c":       true,
		"runsc --root=/r boot --setup-root=false --bundle=/b c": false,
		"runsc --root=/r gofer --setup-root c":                  false,
		"runsc run --setup-root boot":                           false,
	} {
		if got := makesChroot(strings.Fields(line)); got != want {
			t.Errorf("%q: %v", line, got)
		}
	}
}
