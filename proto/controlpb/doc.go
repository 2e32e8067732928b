// Package controlpb holds the messages of the TPU control protocol, generated
// from tpuvisor/control/v1/control.proto. docs/protocol.md explains the protocol.
//
// It imports the protobuf runtime and nothing else.
package controlpb
