// Package tpuwire reads and writes the frames of the TPU control protocol over any
// reader and writer, and holds what both ends of it share: the limits, the kinds of
// error, the control thread's name, and a way to show a stranger's text to a person.
// docs/protocol.md explains the protocol.
//
// The sentry, runtimes and host tools all use it, so it imports the project's
// messages (proto/controlpb), the protobuf runtime and the standard library, and
// never gVisor.
package tpuwire
