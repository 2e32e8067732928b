// Package faults is the list of everything that can go wrong around a checkpoint, and
// of what must be true afterwards. Two runners read it: inprocess, on a real kernel in
// a test process, and sandboxed, with a real runsc. docs/faults.md is made from it.
//
// The package imports test/libtpusim and the standard library.
package faults
