package libtpusim

import (
	"reflect"
	"testing"
)

func TestFaultsAsText(t *testing.T) {
	for _, text := range []string{
		"refuse@CHECKPOINT",
		"refuse@CHECKPOINT:rank=1,state=FAULTED,text=no%20memory%3B left%2C at%3A %40all%20100%25",
		"late=2.5s@RESTORE:rank=0,nth=2",
		"wrongstate=17@*",
		"abort@CHECKPOINT:at=half;stall@RESTORE:act=true;topology=v6e@RESTORE:act=false",
	} {
		faults, err := ParseFaults(text)
		if err != nil {
			t.Errorf("ParseFaults(%q): %v", text, err)
			continue
		}
		again, err := ParseFaults(faults.String())
		if err != nil || !reflect.DeepEqual(again, faults) {
			t.Errorf("ParseFaults(%q) = %+v, %v; want %+v", faults.String(), again, err, faults)
		}
	}
	faults, _ := ParseFaults("refuse@CHECKPOINT:rank=1,text=a%3Bb%2Cc ; stall@*")
	if len(faults) != 2 || faults[0].Text != "a;b,c" || faults[0].Rank != 1 || faults[1].Rank != -1 {
		t.Errorf("faults are %+v", faults)
	}
}

func TestFaultsRefused(t *testing.T) {
	for _, text := range []string{
		"refuse", "@CHECKPOINT", "nap@CHECKPOINT", "refuse@SLEEP", "late@RESTORE", "late=soon@RESTORE",
		"wrongstate=SLEEPY@RESTORE", "refuse=x@RESTORE", "refuse@RESTORE:rank=x", "refuse@RESTORE:color=red",
		"abort@RESTORE:at=noon", "refuse@RESTORE:text=%zz", "stall@RESTORE:act=maybe",
	} {
		if faults, err := ParseFaults(text); err == nil {
			t.Errorf("ParseFaults(%q) = %v, want an error", text, faults)
		}
	}
}

func TestEveryKindIsDescribed(t *testing.T) {
	for _, kind := range Kinds() {
		if Describe(kind) == "" {
			t.Errorf("%s has no description", kind)
		}
	}
}
