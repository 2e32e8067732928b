// Package remap says which TPUs a sandbox has, and which TPU of the host that it
// is restored on takes the place of each one it was saved with.
//
// It is pure logic and knows nothing of gVisor, so that the files of the seam can
// import it. docs/devices.md has the rule in words.
package remap
