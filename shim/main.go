// Binary containerd-shim-runsc-v1 is gVisor's shim for containerd, which can checkpoint
// containers, and start them from a checkpoint. gVisor's own refuses the first, and
// does the latter for no engine.
//
// It drives the runsc that is found in PATH, or that its configuration names.
package main

import (
	"context"

	containerd "github.com/containerd/containerd/v2/pkg/shim"
	"gvisor.dev/gvisor/pkg/shim/v1"
	"gvisor.dev/gvisor/pkg/shim/v1/extension"
	_ "gvisor.dev/gvisor/pkg/shim/v1/plugin" // the service that engines talk to
)

func main() {
	extension.NewExtension = extend
	extension.NewPodExtension = extend
	containerd.Run(context.Background(), manager{v1.NewShimManager("io.containerd.runsc.v1")})
}
