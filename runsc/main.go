// Binary runsc is gVisor's OCI runtime whose checkpoint, restore, pause and resume
// are safe for workloads that use TPUs.
//
// It may import the API types of pkg/sentry/control, and gVisor's runsc.
package main

import (
	"fmt"
	"os"

	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd/alias"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control"
	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy"
	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy/bootargs"
	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy/hostview"
	"tpuvisor.dev/tpuvisor/pkg/sentry/savehook"
	"tpuvisor.dev/tpuvisor/runsc/commands"
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
	alias.HandleAlias()
	desk := control.NewDesk(&control.Plane{Devices: control.Devices{
		MayBeOpen:    tpuproxy.MayBeOpen,
		AfterRestore: tpuproxy.AfterRestore,
		WaitFree:     tpuproxy.WaitGroupsFree,
	}})
	savehook.Register(desk.Hooks())
	desk.Calls(savehook.Handle)
	all, topics := commands.All()
	cli.Run(nil, all, topics)
}
