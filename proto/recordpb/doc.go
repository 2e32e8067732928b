// Package recordpb holds the record that a checkpoint keeps about the runtimes
// that it detached, generated from tpuvisor/record/v1/record.proto.
//
// It imports controlpb, the protobuf runtime and nothing else.
package recordpb
