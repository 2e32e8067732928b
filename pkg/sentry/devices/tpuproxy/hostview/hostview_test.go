package hostview

import (
	"fmt"
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
		must(os.MkdirAll(filepath.Join(root, "sys/bus/pci/devices"), 0o755))
		must(os.Symlink(dir, filepath.Join(root, "sys/bus/pci/devices", f[1])))
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
		given         []uint32
		veiled        string
	}{
		{"TPUs only", "vfio 0 1", []string{"0 0000:00:04.0 " + tpu, "1 0000:00:05.0 " + tpu}, "0 1 vfio", "", "", true, nil, ""},
		{"directory of devices", "vfio 0 devices", []string{"0 0000:00:04.0 " + tpu}, "0 vfio", "devices", "", false, nil, ""},
		{"another group", "vfio 0 7", []string{"0 0000:00:04.0 " + tpu, "7 0000:00:09.0 " + nic}, "0 vfio", "7", "", false, nil, ""},
		{"empty group", "vfio 9", nil, "vfio", "9", "", false, nil, ""},
		{"another sandbox's TPU", "vfio 0 1", []string{"0 0000:00:04.0 " + tpu, "1 0000:00:05.0 " + tpu}, "1 vfio", "0", "", false, []uint32{1}, "0000:00:04.0"},
		{"TPU of another driver", "vfio 0", []string{"0 0000:00:04.0 " + tpu, "1 0000:00:05.0 " + tpu}, "0 vfio", "", "", false, nil, "0000:00:05.0"},
		{"no VFIO", "", nil, "", "", "", true, nil, ""},
		{"physical function", "vfio 3", []string{"3 0000:00:04.0 " + pf}, "3 vfio", "", "0000:00:04.0", false, nil, ""},
		{"bridge in the group", "vfio 3", []string{"3 0000:00:04.0 " + tpu, "3 0000:00:03.0 " + nic}, "3 vfio", "", "0000:00:03.0", false, nil, ""},
		{"noiommu group", "vfio noiommu-0", nil, "vfio", "noiommu-0", "", false, nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v, err := plan(host(t, tc.names, tc.devices...), tc.given)
			if err != nil {
				t.Fatal(err)
			}
			disguised, veiled := bases(v.disguise), bases(v.veil)
			for _, c := range []struct {
				what string
				got  []string
				want string
			}{{"kept", v.names, tc.keep}, {"hidden", v.hidden, tc.hidden}, {"disguised", disguised, tc.disguised}, {"veiled", veiled, tc.veiled}} {
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

func bases(dirs []string) (names []string) {
	for _, dir := range dirs {
		names = append(names, filepath.Base(dir))
	}
	return names
}

func TestPlanWithoutDirectory(t *testing.T) {
	if v, err := plan(t.TempDir(), nil); err != nil || !v.asItIs() {
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

func TestGivenTo(t *testing.T) {
	const device = `"linux": {"devices": [{"path": "/dev/vfio/vfio"}, {"path": "/dev/vfio/4"}]}`
	for text, want := range map[string][]uint32{
		`{` + device + `}`: {4},
		`{` + device + `, "annotations": {"io.kubernetes.cri.container-type": "sandbox"}}`: nil,
		`no spec`: nil,
	} {
		file, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.WriteString(text); err != nil {
			t.Fatal(err)
		}
		got := givenTo([]string{"runsc", "boot", fmt.Sprintf("--spec-fd=%d", file.Fd())})
		if !slices.Equal(got, want) || (got == nil) != (want == nil) {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
	if got := givenTo([]string{"runsc", "boot"}); got != nil {
		t.Errorf("without a spec: %v", got)
	}
}
