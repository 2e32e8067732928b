package commands

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/google/subcommands"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"
	"gvisor.dev/gvisor/runsc/specutils"
)

// forgetFilestore removes the file in which an earlier sandbox has kept what was
// written to the root file system, if there is no container of this name. An engine
// that saves the file system of a container that runs has it in its copy; and gVisor
// takes it for a sign that another container of this sandbox has the same root.
func forgetFilestore(conf *config.Config, id string, spec *specs.Spec) {
	if spec == nil || spec.Root == nil || spec.Root.Path == "" || !specutils.IsRootContainer(spec) {
		return
	}
	_, err := container.Load(conf.RootDir, container.FullID{ContainerID: id}, container.LoadOpts{})
	if !errors.Is(err, fs.ErrNotExist) {
		return
	}
	path := boot.SelfFilestorePath(spec.Root.Path, id)
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
		return
	}
	if err := os.Remove(path); err != nil {
		log.Warningf("Removing what an earlier sandbox has left: %v", err)
	}
}

// Execute implements subcommands.Command.
func (c *create) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	conf := args[0].(*config.Config)
	if err := checkPod(conf, c.spec); err != nil {
		util.Fatalf("creating container: %v", err)
	}
	forgetFilestore(conf, f.Arg(0), c.spec)
	return c.Create.Execute(ctx, f, args...)
}

// Execute implements subcommands.Command.
func (r *run) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	conf := args[0].(*config.Config)
	if err := checkPod(conf, r.spec); err != nil {
		util.Fatalf("running container: %v", err)
	}
	forgetFilestore(conf, f.Arg(0), r.spec)
	return r.Run.Execute(ctx, f, args...)
}
