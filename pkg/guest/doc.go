// Package guest is a runtime's side of the TPU control protocol: what a program that
// drives TPUs needs so that its sandbox can be checkpointed and restored. It is meant
// for tests and for runtimes other than libtpu; docs/protocol.md explains the protocol.
//
// A Machine keeps the state, holds operations back where the protocol wants that, and
// calls a Device, which the user of the package writes. Serve answers requests over any
// reader and writer; StartControlThread makes the pipes and the thread that a driver
// looks for, on Linux.
//
// It imports pkg/tpuwire, the protocol's messages, the protobuf runtime, the standard
// library and golang.org/x/sys, and never gVisor.
package guest
