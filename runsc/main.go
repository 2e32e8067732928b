// Binary runsc is gVisor's OCI runtime whose checkpoint, restore, pause and resume
// are safe for workloads that use TPUs.
//
// It may import the API types of pkg/sentry/control, and gVisor's runsc.
package main

import (
	"fmt"
	"os"

	"gvisor.dev/gvisor/runsc/cli/maincli"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control"
	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy"
	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy/bootargs"
	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy/hostview"
	"tpuvisor.dev/tpuvisor/pkg/sentry/savehook"
)

func main() {
	if !savehook.SeamLaid() {
		fmt.Fprintln(os.Stderr, "runsc: this binary was built without tpuvisor's seam, so a checkpoint would lose the TPUs of the sandbox; build it with `make runsc`")
		os.Exit(128)
	}
	// The sandbox process is this same binary.
	if err := hostview.Prepare(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "runsc:", err) // gVisor finds out by itself whether it can go on
	}
	os.Args = bootargs.TakeOver(os.Args)
	plane := &control.Plane{}
	savehook.Register(plane.Hooks())
	// Registered last, and so run first after a restore: a runtime that is asked to
	// restore opens the nodes that this makes.
	savehook.Register(savehook.Hooks{Name: "TPU devices", PostRestore: tpuproxy.AfterRestore})
	maincli.Main()
}
