package devices

import (
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"tpuvisor.dev/tpuvisor/test/sandbox"
	"tpuvisor.dev/tpuvisor/test/tpuhost"
)

const (
	first  = "0000:00:04.0"
	second = "0000:00:05.0"
	third  = "0000:00:06.0"
)

func TestSameHost(t *testing.T) {
	r := newRig(t)
	h := host(t, "v5e", 0, 1)
	c := r.start(h)
	r.sees(c, "0 1 vfio", first+" 0", second+" 1")
	c = r.mustRestore(r.save(c), h)
	r.sees(c, "0 1 vfio", first+" 0", second+" 1")
	if got := r.opens(c); !slices.Equal(got, []string{"0"}) {
		t.Errorf("open on the host: %q", got)
	}
}

func TestOtherGroups(t *testing.T) {
	r := newRig(t, "/dev/vfio/0", "/dev/vfio/1")
	c := r.mustRestore(r.save(r.start(host(t, "v5e", 0, 1))), host(t, "v5e", 5, 6))
	if got := r.opens(c); !slices.Equal(got, []string{"5", "6"}) {
		t.Errorf("the old paths lead to %q", got)
	}
	r.sees(c, "0 1 5 6 vfio", first+" 5", second+" 6")
}

// TestGenerations goes on from host to host: each path leads to where it must after
// each step, whatever it led to before.
func TestGenerations(t *testing.T) {
	r := newRig(t, "/dev/vfio/0")
	c := r.start(host(t, "v5e", 0, 1))
	c = r.mustRestore(r.save(c), host(t, "v5e", 5, 6))
	r.sees(c, "0 1 5 6 vfio", first+" 5", second+" 6")
	c = r.mustRestore(r.save(c), host(t, "v5e", 6, 0)) // 5 becomes 6, and 6 becomes 0
	r.sees(c, "0 1 5 6 vfio", first+" 6", second+" 0")
	if got := r.opens(c); !slices.Equal(got, []string{"0"}) {
		t.Errorf("the path of a group that is here leads to %q", got)
	}
}

func TestOverlapAndMore(t *testing.T) {
	r := newRig(t, "/dev/vfio/0", "/dev/vfio/1", "/dev/vfio/2")
	c := r.mustRestore(r.save(r.start(host(t, "v5e", 0, 1))), host(t, "v5e", 1, 2, 3))
	r.sees(c, "0 1 2 3 vfio", first+" 1", second+" 2", third+" 3")
	if got := r.opens(c); !slices.Equal(got, []string{"1", "1", "2"}) {
		t.Errorf("open on the host: %q", got)
	}
}

func TestRefused(t *testing.T) {
	r := newRig(t)
	image := r.save(r.start(host(t, "v5e", 0, 1)))
	shared := host(t, "v5e", 7, 7)
	for _, tc := range []struct {
		name string
		host tpuhost.Host
		want string
	}{
		{"too few", host(t, "v5e", 3), "too few TPUs here: saved 2 (v5e 0000:00:04.0 in group 0, v5e 0000:00:05.0 in group 1); here 1 (v5e 0000:00:04.0 in group 3)"},
		{"other architecture", host(t, "v5p", 0, 1), "TPUs of another architecture here: saved 2 (v5e "},
		{"merged groups", shared, "grouped otherwise here: saved 2 (v5e "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := r.restore(image, tc.host)
			if err == nil {
				c.Delete(t.Context())
				t.Fatal("not refused")
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v\nlacks %q", err, tc.want)
			}
		})
	}
}

// TestSpecDifference: all but the numbers of groups is compared as ever.
func TestSpecDifference(t *testing.T) {
	r := newRig(t)
	image := r.save(r.start(host(t, "v5e", 0)))
	other := host(t, "v5e", 4)
	bundle := r.dir + "/changed"
	w := sandbox.Workload{Program: probeBinary, Args: []string{"hold", "/dev/vfio/0"}, Change: func(s *specs.Spec) {
		s.Process.Cwd = "/dev"
	}}
	if err := w.Bundle(bundle, other); err != nil {
		t.Fatal(err)
	}
	for _, policy := range []string{"enforce", "ignore"} {
		r.runsc.Flags = append(r.runsc.Flags, "--restore-spec-validation="+policy)
		c, err := r.runsc.Restore(t.Context(), r.name("c"), other, bundle, image)
		switch refused := err != nil && strings.Contains(err.Error(), "Cwd"); {
		case policy == "enforce" && !refused:
			t.Errorf("another working folder: %v", err)
		case policy == "ignore" && err != nil:
			t.Errorf("with validation off: %v", err)
		}
		if err == nil {
			c.Delete(t.Context())
		}
	}
}

// TestOtherDevices starts sandboxes on hosts where /dev/vfio has more than TPUs.
func TestOtherDevices(t *testing.T) {
	cluttered := host(t, "v5e", 0)
	cluttered.Clutter = true
	cluttered.Chips = append(cluttered.Chips, tpuhost.OtherDevice(0, 9))
	bridged := host(t, "v5e", 3)
	bridged.Chips = append(bridged.Chips, tpuhost.OtherDevice(0, 3))
	for _, tc := range []struct {
		name  string
		host  tpuhost.Host
		nodes string
		tpu   string
	}{
		{"other group and directory", cluttered, "0 vfio", first + " 0"},
		{"device beside the TPU", bridged, "3 vfio", first + " 3"},
		{"physical function", host(t, "v6e", 2), "2 vfio", first + " 2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			c := r.start(tc.host)
			r.sees(c, tc.nodes, tc.tpu)
		})
	}
}
