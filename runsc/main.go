// Binary runsc is gVisor's OCI runtime with tpuvisor's subsystem inside.
package main

import (
	"fmt"
	"os"

	"gvisor.dev/gvisor/runsc/cli/maincli"

	"tpuvisor.dev/tpuvisor/pkg/sentry/savehook"
)

func main() {
	if !savehook.SeamLaid() {
		fmt.Fprintln(os.Stderr, "runsc: this binary was built without tpuvisor's seam, so a checkpoint would lose the TPU. Build it with `make runsc`.")
		os.Exit(128)
	}
	maincli.Main()
}
