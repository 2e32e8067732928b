package tpuwire

import (
	"regexp"
	"strings"
	"testing"
)

func TestParseThreadName(t *testing.T) {
	for comm, want := range map[string]ThreadName{
		"libtpu00030004": {3, 4},
		"libtpu03ff0400": {0x3ff, 0x400},
		"libtpuFFFFffff": {0xffff, 0xffff},
		"libtpu00000000": {0, 0},
		"libtpuabCDEf01": {0xabcd, 0xef01},
	} {
		if got, ok := ParseThreadName(comm); !ok || got != want {
			t.Errorf("%q: %v, %t; want %v", comm, got, ok, want)
		}
	}
	for _, comm := range []string{
		"", "libtpu", "python3", "libtpu0003000", "libtpu000300040", "libtpu00030004\x00",
		"libtpu+0030004", "libtpu0003+004", "libtpu-0030004", "libtpu 0030004", "libtpu0003 004",
		"libtpu0x030x04", "libtpu0_030004", "libtpu0003000g", "libtpu000G0004", "LIBTPU00030004",
		" libtpu0030004", "libtpu00030004\n", "libtpu٠٠٠٤", "libtpX00030004", "tpu0000300040000",
		"libtpu0003000/", "libtpu0003000:", "libtpu0003000@", "libtpu0003000`",
	} {
		if got, ok := ParseThreadName(comm); ok {
			t.Errorf("%q: taken for %v", comm, got)
		}
	}
}

func TestParseThreadName_TakesNoMemory(t *testing.T) {
	allocs := testing.AllocsPerRun(100, func() {
		if _, ok := ParseThreadName("libtpu00030004"); !ok {
			t.Error("not taken")
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func FuzzThreadName(f *testing.F) {
	for _, comm := range []string{"", "libtpu", "libtpu00030004", "libtpuFFFFffff", "libtpu+0030004", "libtpu00030004\x00"} {
		f.Add(comm)
	}
	grammar := regexp.MustCompile(`\Alibtpu[0-9A-Fa-f]{8}\z`)
	f.Fuzz(func(t *testing.T, comm string) {
		name, ok := ParseThreadName(comm)
		if ok != grammar.MatchString(comm) {
			t.Fatalf("%q: taken: %t, which the grammar does not say", comm, ok)
		}
		if !ok {
			return
		}
		if name.RequestFD < 0 || name.RequestFD > MaxFD || name.ResponseFD < 0 || name.ResponseFD > MaxFD {
			t.Fatalf("%q: %+v is out of range", comm, name)
		}
		if !strings.EqualFold(name.String(), comm) {
			t.Fatalf("%q: written again as %q", comm, name)
		}
	})
}
