// Package libtpusim is a TPU runtime that exists for tests: it keeps to the
// contract that real runtimes keep, strictly, and breaks it where it is told to.
//
// A Runtime is a guest.Machine with a TPU, whose memory it saves and brings back,
// and a Mesh with the other members of its job. Serve is its control thread; Do is
// how the workload uses the TPU. What it breaks is a list of Faults, written as text, so
// that the same fault can be had from a goroutine on pipes of any kind and from a
// process in a sandbox.
//
// What it is strict about: a second RESTORE wedges it for good; a TPU operation
// while it is detached is an error that the workload must not survive; RESTORE
// waits for every detached member; and every request is logged.
//
// The package imports pkg/guest, pkg/tpuwire, the protocol's messages and the
// standard library, and never gVisor.
package libtpusim
