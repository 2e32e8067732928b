package bootargs

import (
	"strings"
	"testing"
)

func TestTakeOver(t *testing.T) {
	for _, tc := range []struct{ name, args, want, policy string }{
		{"another command", "runsc --root=/r restore c", "runsc --root=/r restore c", ""},
		{"no command", "runsc --version", "runsc --version", ""},
		{"default", "runsc --root=/r boot --x c", "runsc --root=/r --restore-spec-validation=enforce --restore-spec-validation=ignore boot --x c", "enforce"},
		{"warning", "runsc --restore-spec-validation=warning boot c", "runsc --restore-spec-validation=warning --restore-spec-validation=ignore boot c", "warning"},
		{"ignore", "runsc -restore-spec-validation=ignore boot c", "runsc -restore-spec-validation=ignore --restore-spec-validation=ignore boot c", "ignore"},
		{"ignore as runsc writes it", "runsc --restore-spec-validation=ignore boot c", "runsc --restore-spec-validation=ignore boot c", "ignore"},
		{"boot is an argument", "runsc run boot", "runsc run boot", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			policy = ""
			got := TakeOver(strings.Fields(tc.args))
			if strings.Join(got, " ") != tc.want || Policy() != tc.policy {
				t.Errorf("got %q with policy %q", got, Policy())
			}
			again := TakeOver(got)
			if strings.Join(again, " ") != tc.want || Policy() != tc.policy {
				t.Errorf("started again: %q with policy %q", again, Policy())
			}
		})
	}
}
