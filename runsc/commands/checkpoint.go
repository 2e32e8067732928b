package commands

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/google/subcommands"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"
	"gvisor.dev/gvisor/runsc/sandbox"

	"tpuvisor.dev/tpuvisor/runsc/image"
	"tpuvisor.dev/tpuvisor/runsc/progress"
)

// checkpoint saves a container. It leaves a whole image, or none.
type checkpoint struct {
	target
	opts        sandbox.CheckpointOpts
	path        string
	compression string
	progress    bool
	tpus        bool // whether there can be any
}

// Name implements subcommands.Command.
func (*checkpoint) Name() string { return "checkpoint" }

// Synopsis implements subcommands.Command.
func (*checkpoint) Synopsis() string { return "save the state of a container" }

// Usage implements subcommands.Command.
func (*checkpoint) Usage() string {
	return `checkpoint [flags] <container id> - save the state of a container.

The sandbox's TPU runtimes are asked to let go of their TPUs before. If anything
fails, they are asked to take them back, the container runs on, and no file of the
image is left. Until the sandbox is being saved, an interrupt has the same effect.
`
}

// SetFlags implements subcommands.Command. The flags are gVisor's, and ours.
func (c *checkpoint) SetFlags(f *flag.FlagSet) {
	f.StringVar(&c.path, "image-path", "", "directory to save the image to; it is made if it is not there")
	f.BoolVar(&c.opts.Resume, "leave-running", false, "let the container run on when it is saved")
	f.StringVar(&c.compression, "compression", string(statefile.CompressionLevelDefault), "how to compress the image: none, or flate-best-speed")
	f.BoolVar(&c.opts.ExcludeCommittedZeroPages, "exclude-committed-zero-pages", false, "leave out pages of memory that hold zeros")
	f.BoolVar(&c.opts.Direct, "direct", false, "write the pages file with O_DIRECT, past the page cache")
	f.StringVar(&c.opts.CudaCheckpointPath, "cuda-checkpoint-path", "", "path of the cuda-checkpoint program in the container")
	f.BoolVar(&c.opts.CudaCheckpointSequential, "cuda-checkpoint-sequential", false, "run cuda-checkpoint for one process after the other")
	f.StringVar(&c.opts.SaveRestoreExecArgv, "save-restore-exec-argv", "", "program, and its arguments after spaces, to run in the container before it is saved and after it is restored; if it fails, so does the save or the restore")
	f.DurationVar(&c.opts.SaveRestoreExecTimeout, "save-restore-exec-timeout", control.DefaultSaveRestoreExecTimeout, "how long that program may run")
	f.BoolVar(&c.progress, "tpu-progress", false, "write a line to stderr for each thing that happens to a TPU runtime, also where stderr is no terminal")

	// Engines give these to every runtime. They have no meaning here: there is no
	// work directory, and file locks are part of the sandbox and always saved.
	f.String("work-path", "", "ignored")
	f.Bool("file-locks", false, "ignored: a container's file locks are always saved")
}

// Execute implements subcommands.Command.
func (c *checkpoint) Execute(_ context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	conf := args[0].(*config.Config)
	cont, err := c.load(conf, f)
	if err != nil {
		util.Fatalf("%v", err)
	}
	if err := c.save(conf, cont); err != nil {
		util.Fatalf("checkpoint failed: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return subcommands.ExitSuccess
}

func (c *checkpoint) save(conf *config.Config, cont *container.Container) error {
	if c.path == "" {
		return errors.New("the flag -image-path must be given")
	}
	level, err := statefile.CompressionLevelFromString(c.compression)
	if err != nil {
		return fmt.Errorf("flag -compression: %w", err)
	}
	c.opts.Compression = level
	c.opts.SaveRestoreExecContainerID = cont.ID
	dir, err := image.Claim(c.path, cont.ID)
	if err != nil {
		return err
	}
	c.tpus = mayHaveTPUs(conf, cont)
	var janitor *janitor
	if c.tpus {
		janitor = hireJanitor(conf, cont, dir, c.opts.Resume)
		defer janitor.dismiss()
	}
	report := &image.Report{Created: time.Now(), Container: cont.ID, LeaveRunning: c.opts.Resume}
	if err := c.saveTo(conf, cont, report); err != nil {
		return errors.Join(err, dir.Discard())
	}
	if !dir.Remote() {
		// Without it the image can be restored all the same. It may be all that is
		// left of the container.
		if err := errors.Join(dir.Write(report), dir.Mark()); err != nil {
			log.Warningf("The image is whole, but for what describes it: %v", err)
		}
	}
	janitor.dismiss() // who would remove the image now, while an earlier one goes
	dir.Release()
	return nil
}

// saveTo makes the sandbox save itself, and shows what happens meanwhile.
func (c *checkpoint) saveTo(conf *config.Config, cont *container.Container, report *image.Report) error {
	var watch *progress.Watcher
	if c.tpus {
		watch = progress.Watch(cont, progress.Options{Always: c.progress, Ends: !c.opts.Resume, Out: os.Stderr})
	}
	stop := cancelOnSignal(cont)
	err := cont.Checkpoint(conf, c.path, c.opts)
	canceled := stop()
	end := time.Now()
	op := watch.Stop()
	switch {
	case err != nil:
		return explain(cont, err)
	case canceled && c.opts.Resume:
		return errors.New("interrupted, when the container was being saved already: it runs on, and the image is removed")
	}
	report.SetOperation(op, end)
	return nil
}
