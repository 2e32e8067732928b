package commands

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/google/subcommands"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"
	"gvisor.dev/gvisor/runsc/specutils"

	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy/remap"
	"tpuvisor.dev/tpuvisor/runsc/client"
	"tpuvisor.dev/tpuvisor/runsc/image"
	"tpuvisor.dev/tpuvisor/runsc/progress"
)

// restore is gVisor's, with a look at the image before, and at the TPUs after.
//
// gVisor's command is done when the restored sandbox runs, and then its runtimes are
// asked to take their TPUs back. One that is not detached from its container tells
// if that fails; a detached one only if it shows progress, which takes that long.
type restore struct {
	cmd.Restore
	spec     *specs.Spec
	progress bool
}

// SetFlags implements subcommands.Command.
func (r *restore) SetFlags(f *flag.FlagSet) {
	r.Restore.SetFlags(f)
	f.BoolVar(&r.progress, "tpu-progress", false, "write a line to stderr for each thing that happens to a TPU runtime; with -detach, return when the TPUs are back")
}

// FetchSpec implements util.SubCommand.
func (r *restore) FetchSpec(conf *config.Config, f *flag.FlagSet) (string, *specs.Spec, error) {
	id, spec, err := checked(r.Restore.FetchSpec(conf, f))
	r.spec = spec
	return id, spec, err
}

// Execute implements subcommands.Command.
func (r *restore) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	if err := checkPod(args[0].(*config.Config), r.spec); err != nil {
		return util.Errorf("restore refused: %v", err)
	}
	if f.NArg() != 1 || !specutils.IsRootContainer(r.spec) {
		return r.Restore.Execute(ctx, f, args...)
	}
	forgetFilestore(args[0].(*config.Config), f.Arg(0), r.spec)
	if err := r.look(f.Lookup("image-path").Value.String()); err != nil {
		return util.Errorf("restore refused: %v", err)
	}
	detached := f.Lookup("detach").Value.String() == "true"
	show := progress.Options{Out: os.Stderr, Always: r.progress, Plain: !detached, FromStart: true}
	if detached && !show.Shows() {
		return r.Restore.Execute(ctx, f, args...)
	}
	conf, id := args[0].(*config.Config), f.Arg(0)
	_, loadErr := container.Load(conf.RootDir, container.FullID{ContainerID: id}, container.LoadOpts{})
	w := watchRestore(conf, id, show)
	status := r.Restore.Execute(ctx, f, args...)
	err := w.stop(status != subcommands.ExitSuccess || !detached)
	if status != subcommands.ExitSuccess || err == nil {
		return status
	}
	if loadErr != nil {
		destroy(conf, id) // it was made by this command, which has failed
	}
	return util.Errorf("restore failed: %v", err)
}

// look refuses early what cannot work. An image without a report is left to gVisor.
func (r *restore) look(path string) error {
	if path == "" {
		return nil
	}
	report, err := image.Read(path)
	if err != nil {
		log.Warningf("Not looking at the image beforehand: %v", err)
		return nil
	}
	if report == nil {
		return nil
	}
	_, err = image.Check(path, image.Host{Sysfs: remap.HostSysfs{}, Spec: r.spec})
	return err
}

func destroy(conf *config.Config, id string) {
	c, err := container.Load(conf.RootDir, container.FullID{ContainerID: id}, container.LoadOpts{})
	if err == nil {
		err = c.Destroy()
	}
	if err != nil {
		log.Warningf("Removing the container that was not restored: %v", err)
	}
}

// A restoreWatch follows a restore that another part of the command makes.
type restoreWatch struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // why the TPUs are not back, when done is closed
}

func watchRestore(conf *config.Config, id string, o progress.Options) *restoreWatch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &restoreWatch{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		c := awaitRunning(ctx, conf, id)
		if c == nil {
			return
		}
		shown := progress.Watch(c, o)
		defer shown.Stop()
		err := client.AwaitTPUs(ctx, c, 0)
		if ctx.Err() != nil || errors.Is(err, client.ErrGone) || errors.Is(err, client.ErrForeign) || errors.Is(err, client.ErrPaused) {
			return // ended, or none of our business
		}
		w.err = err
	}()
	return w
}

// stop ends the watching: at once, or when it is known whether the TPUs are back.
func (w *restoreWatch) stop(now bool) error {
	if now {
		w.cancel()
	}
	<-w.done
	w.cancel()
	return w.err
}

// lookEvery is how often a container is looked at that is not running yet.
const lookEvery = 50 * time.Millisecond

// awaitRunning waits for the container to be restored, and returns nil if ctx ends
// before.
func awaitRunning(ctx context.Context, conf *config.Config, id string) *container.Container {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		c, err := container.Load(conf.RootDir, container.FullID{ContainerID: id}, container.LoadOpts{})
		if err == nil && c.Status == container.Running {
			return c
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
