// Package control drives the TPU runtimes of a sandbox around a checkpoint: it
// finds them among the sandbox's tasks, asks each over its two pipes to let go of
// the TPU before the kernel is saved and to take it back afterwards, undoes what
// it did when anything fails, and keeps what it needs for that in the checkpoint.
//
// A Plane does all this. Its methods are called by gVisor through
// pkg/sentry/savehook, on the goroutine of a control call, with no kernel lock
// held. Nothing that a guest does makes them panic, block beyond the limits that
// are set, or take memory without bound.
//
// The package may import gVisor's kernel and below, but not gVisor's
// pkg/sentry/control, and of this module proto/, pkg/tpuwire, pkg/sentry/savehook
// and pkg/sentry/devices/tpuproxy.
package control
