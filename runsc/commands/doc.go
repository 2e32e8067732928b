// Package commands is the runsc's commands: gVisor's own, those of them that have to
// know about TPUs in their place, and `runsc tpu`.
package commands
