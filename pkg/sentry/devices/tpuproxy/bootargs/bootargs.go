// Package bootargs changes how the sandbox's own process, `runsc boot`, compares the
// spec of a restore with the saved one. gVisor does that before anybody can say that
// the numbers of IOMMU groups may differ. So its comparison is switched off, and made
// later, by the seam, with the policy that was asked for.
package bootargs

import (
	"slices"
	"strings"
)

const (
	name     = "restore-spec-validation"
	off      = "--" + name + "=ignore"
	standard = "--" + name + "=enforce" // gVisor's default
)

var policy string

// Policy is what TakeOver found: "ignore", "warning" or "enforce"; "" when nothing
// was taken over, and gVisor compares the specs itself.
func Policy() string { return policy }

// TakeOver gives the arguments to go on with for a process that was started with
// these: the same, except for the sandbox's own process. It must be called from main,
// before the flags are parsed.
func TakeOver(args []string) []string {
	command := firstNonFlag(args)
	if command < 0 || args[command] != "boot" {
		return args
	}
	policy = ""
	for _, arg := range args[1:command] {
		if value, ok := strings.CutPrefix(strings.TrimLeft(arg, "-"), name+"="); ok {
			policy = value
			break // a second one is ours: the process has started itself again
		}
	}
	if slices.Contains(args[1:command], off) {
		if policy == "" {
			policy = "ignore"
		}
		return args
	}
	insert := []string{off}
	if policy == "" {
		policy = strings.TrimPrefix(standard, "--"+name+"=")
		insert = []string{standard, off}
	}
	return slices.Insert(slices.Clone(args), command, insert...)
}

// firstNonFlag finds the command. runsc starts itself with flags that hold their
// values.
func firstNonFlag(args []string) int {
	for i := 1; i < len(args); i++ {
		if !strings.HasPrefix(args[i], "-") {
			return i
		}
	}
	return -1
}
