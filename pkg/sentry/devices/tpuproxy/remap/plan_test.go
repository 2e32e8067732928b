package remap

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// inv makes an inventory of "slot:group:id" words, all hexadecimal but the group.
func inv(t *testing.T, text string) Inventory {
	t.Helper()
	var out Inventory
	for word := range strings.FieldsSeq(text) {
		var slot, id uint16
		var group uint32
		if _, err := fmt.Sscanf(word, "%x:%d:%x", &slot, &group, &id); err != nil {
			t.Fatalf("%q: %v", word, err)
		}
		out = append(out, Device{fmt.Sprintf("0000:00:%02x.0", slot), group, id})
	}
	out.sort()
	return out
}

func TestPlan(t *testing.T) {
	for _, tc := range []struct{ name, saved, now, want string }{
		{"same", "4:0:63 5:1:63", "4:0:63 5:1:63", "0>0 1>1"},
		{"other groups", "4:0:63 5:1:63", "4:8:63 5:9:63", "0>8 1>9"},
		{"permuted", "4:0:63 5:1:63", "4:1:63 5:0:63", "0>1 1>0"},
		{"overlapping", "4:0:63 5:1:63", "4:1:63 5:2:63", "0>1 1>2"},
		{"larger", "4:0:63", "4:3:63 5:4:63 6:5:63", "0>3"},
		{"order of addresses, not of groups", "4:7:63 5:3:63", "10:1:63 a:2:63", "7>2 3>1"},
		{"ids of one architecture", "4:0:6e", "4:1:6f", "0>1"},
		{"two architectures", "4:0:63 5:1:62", "4:5:62 5:6:63", "0>6 1>5"},
		{"shared group", "4:0:63 5:0:63 6:1:63", "4:4:63 5:5:63 6:5:63", "0>5 1>4"},
		{"nothing saved", "", "4:0:63", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := New(inv(t, tc.saved), inv(t, tc.now), nil)
			if err != nil {
				t.Fatal(err)
			}
			for pair := range strings.FieldsSeq(tc.want) {
				var old, want uint32
				if _, err := fmt.Sscanf(pair, "%d>%d", &old, &want); err != nil {
					t.Fatal(err)
				}
				if got, ok := p.Successor(old); !ok || got != want {
					t.Errorf("group %d becomes %d, %v; want %d", old, got, ok, want)
				}
			}
			if p.Identity() != (tc.saved == tc.now) {
				t.Error("takes itself for what it is not")
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	for _, tc := range []struct {
		name, saved, now string
		want             error
	}{
		{"too few", "4:0:63 5:1:63", "4:0:63", ErrTooFew},
		{"none", "4:0:63", "", ErrTooFew},
		{"other architecture", "4:0:63", "4:0:62", ErrArchitecture},
		{"too few of one architecture", "4:0:63 5:1:63", "4:0:63 5:1:62", ErrArchitecture},
		{"split", "4:0:63 5:0:63", "4:0:63 5:1:63", ErrSplit},
		{"merged", "4:0:63 5:1:63", "4:0:63 5:0:63", ErrSplit},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := New(inv(t, tc.saved), inv(t, tc.now), nil)
			if !errors.Is(err, tc.want) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q is more than a line", err)
			}
		})
	}
}

func TestRefusalText(t *testing.T) {
	_, err := New(inv(t, "4:0:63 5:1:63"), inv(t, "4:7:6f"), nil)
	want := "cannot restore the TPUs: too few TPUs here: saved 2 (v5e 0000:00:04.0 in group 0, v5e 0000:00:05.0 in group 1); here 1 (v6e 0000:00:04.0 in group 7)"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestContainers(t *testing.T) {
	saved, now := inv(t, "4:0:63 5:1:63"), inv(t, "4:5:63 5:6:63")
	if _, err := New(saved, now, map[string]Container{
		"a": {Saved: []uint32{0}, Now: []uint32{5}}, "b": {Saved: []uint32{1}, Now: []uint32{6, 5}},
	}); err != nil {
		t.Error(err)
	}
	_, err := New(saved, now, map[string]Container{
		"a": {Saved: []uint32{0}, Now: []uint32{6}}, "b": {Saved: []uint32{1}, Now: []uint32{5}},
	})
	if !errors.Is(err, ErrContainer) {
		t.Errorf("crossed containers: %v", err)
	}
}

func TestTarget(t *testing.T) {
	p, err := New(inv(t, "4:0:63 5:1:63"), inv(t, "4:1:63 5:2:63"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for group, want := range map[uint32]uint32{0: 1, 1: 1, 2: 2, 9: 9} {
		if got := p.Target(group); got != want {
			t.Errorf("the node of group %d leads to %d, want %d", group, got, want)
		}
	}
	if a, ok := p.SuccessorAddress("0000:00:05.0"); !ok || a != "0000:00:05.0" {
		t.Errorf("address becomes %q, %v", a, ok)
	}
	if got := p.String(); !strings.Contains(got, "v5e 0000:00:04.0 in group 0 -> 0000:00:04.0 in group 1") {
		t.Errorf("plan reads %q", got)
	}
}
