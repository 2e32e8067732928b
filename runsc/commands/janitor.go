package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/google/subcommands"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"
	"gvisor.dev/gvisor/runsc/specutils"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/api"
	"tpuvisor.dev/tpuvisor/runsc/client"
	"tpuvisor.dev/tpuvisor/runsc/image"
)

// A janitor is a process that outlives a checkpoint command that is killed, and then
// does what that would have done at an interrupt: nobody else would remove the image.
type janitor struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
}

// vigil is what the janitor does before it has anything to do: a shell waits at a
// fraction of the cost of runsc.
const vigil = `read -r ok || exec "$@"`

// hireJanitor starts one. Without it the checkpoint is made all the same; then it is
// nil.
func hireJanitor(conf *config.Config, cont *container.Container, dir *image.Dir, resume bool) *janitor {
	if dir.Remote() {
		return nil
	}
	j := &janitor{}
	if err := j.start(conf, cont, dir, resume); err != nil {
		log.Warningf("Nobody removes the image if this command is killed: %v", err)
		return nil
	}
	return j
}

func (j *janitor) start(conf *config.Config, cont *container.Container, dir *image.Dir, resume bool) error {
	self, err := os.Open(specutils.ExePath) // which is another in the shell
	if err != nil {
		return err
	}
	defer self.Close()
	claim, lock := dir.Claimed()
	j.cmd = exec.Command("/bin/sh", "-c", vigil, "sh", "/proc/self/fd/4", "-root="+conf.RootDir, new(cleanup).Name(),
		"-claim="+claim, "-since="+time.Now().Format(time.RFC3339Nano), fmt.Sprintf("-leave-running=%v", resume), cont.ID)
	j.cmd.ExtraFiles = []*os.File{lock, self}              // descriptors 3 and 4
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // what kills the command's group is not for it
	if j.stdin, err = j.cmd.StdinPipe(); err != nil {
		return err
	}
	return j.cmd.Start()
}

// dismiss ends the janitor, if it has not ended, when the command sees to the image itself.
func (j *janitor) dismiss() {
	if j == nil || j.cmd == nil {
		return
	}
	_, err := j.stdin.Write([]byte{'\n'})
	if err = errors.Join(err, j.stdin.Close(), j.cmd.Wait()); err != nil {
		log.Infof("Dismissing the janitor: %v", err)
	}
	j.cmd = nil
}

// cleanup is what the janitor runs.
type cleanup struct {
	target
	claim       string
	since       string
	leftRunning bool
}

// Name implements subcommands.Command.
func (*cleanup) Name() string { return "checkpoint-cleanup" }

// Synopsis implements subcommands.Command.
func (*cleanup) Synopsis() string { return "see to the image of a checkpoint command that was killed" }

// Usage implements subcommands.Command.
func (*cleanup) Usage() string { return "checkpoint-cleanup [flags] <container id>\n" }

// SetFlags implements subcommands.Command.
func (c *cleanup) SetFlags(f *flag.FlagSet) {
	f.StringVar(&c.claim, "claim", "", "the image directory's claim, of which file descriptor 3 is the lock")
	f.StringVar(&c.since, "since", "", "when the checkpoint command began")
	f.BoolVar(&c.leftRunning, "leave-running", false, "whether the container runs on when it is saved")
}

// FetchSpec implements util.SubCommand. The container may be gone.
func (*cleanup) FetchSpec(*config.Config, *flag.FlagSet) (string, *specs.Spec, error) {
	return "", nil, nil
}

// Execute implements subcommands.Command.
func (c *cleanup) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	since, err := time.Parse(time.RFC3339Nano, c.since)
	if err != nil {
		return util.Errorf("flag -since: %v", err)
	}
	dir, err := image.Inherit(c.claim, os.NewFile(3, "lock"))
	if err != nil {
		return util.Errorf("flag -claim: %v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	cont, err := c.load(args[0].(*config.Config), f)
	if err == nil && c.worthless(ctx, cont, since) {
		err = dir.Discard()
	} else {
		dir.Abandon()
	}
	if err != nil {
		return util.Errorf("%v", err)
	}
	return subcommands.ExitSuccess
}

// worthless gives the checkpoint up, if it can be given up still, and says whether its
// image is to be removed. It is kept if it may be all that is left of the container.
func (c *cleanup) worthless(ctx context.Context, cont *container.Container, since time.Time) bool {
	try, cancel := context.WithTimeout(ctx, beginTime)
	cancelCheckpoint(try, cont, since)
	cancel()
	var s api.Settled
	for !s.Done {
		if err := client.CallContext(ctx, cont, api.OpSettle, nil, &s); err != nil {
			return false
		}
	}
	var status api.Status
	if err := client.CallContext(ctx, cont, api.OpStatus, nil, &status); err != nil {
		return false
	}
	for _, op := range status.Last {
		if op.Kind == api.KindCheckpoint && op.Start.After(since) {
			return op.Error != "" || c.leftRunning
		}
	}
	// There is no record of one in which no TPU was open.
	return c.leftRunning
}

// beginTime is how long a checkpoint may take to begin that has been asked for.
const beginTime = 2 * time.Second
