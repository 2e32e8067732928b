// Package sandbox drives a real runsc: it makes bundles, runs containers on a TPU
// host without hardware, checkpoints and restores them, and leaves nothing behind.
// Tests and the demo use it. It takes root.
//
// A Runsc has a state directory and logs of its own, so any number of them can be
// used at a time. All its errors say what the command said, and Log tells what the
// sandboxes said.
//
// The package imports test/tpuhost, the OCI runtime specification's types,
// golang.org/x/sys and the standard library, and never gVisor.
package sandbox
