// Package vfio is the bench: real VFIO, in a machine that QEMU emulates, with TPUs
// that are programs of ours. It shows what a host without hardware (test/tpuhost)
// cannot: devices that answer, DMA through an IOMMU, interrupts, groups that are busy.
//
//	go test -tags vfio ./test/vfio
//
// boots the machine once and carries out all scenarios in it, or those that the
// environment variable TPUVISOR_VFIO_SCENARIOS names, separated by commas. It takes no
// root and no KVM, but the runsc that the environment variable TPUVISOR_RUNSC names or bin/runsc, and
// QEMU 10.1 or newer with a Debian kernel, which get-bench.sh puts into build/ with the
// machine's own apt. If that cannot be had the test fails, unless TPUVISOR_SKIP_VFIO is
// set.
//
// The parts: model and vfiouser are the TPU; chip says how it is laid out; inside is the
// machine's first program and has the scenarios; guest runs in the sandboxes; image makes
// the machine's initramfs.
package vfio
