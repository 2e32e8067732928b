// Package tpuhost makes a TPU host without hardware: one command, and all that
// it starts, sees PCI devices with a TPU's ids under /sys and their VFIO groups
// (or TPU v4 accel nodes) under /dev. The rest of the machine stays as it is.
//
// The nodes are the kernel's random device: gVisor can open, poll and close
// them as it would a VFIO group, but they answer no ioctl.
//
// Everything lives in a mount namespace of the command's own, so nothing is
// left on the machine when the command and its children have ended. It takes
// root. For runsc, only the commands that start a sandbox (create, run,
// restore) need to see the host.
//
// The package imports the standard library and golang.org/x/sys alone.
package tpuhost
