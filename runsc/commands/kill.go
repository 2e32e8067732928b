package commands

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/subcommands"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"
)

// kill is gVisor's, but for a whole container: one that is paused can be killed too,
// since an engine may pause it and be gone; and of one that has ended it says so in
// runc's words, by which engines know that there is nothing left to kill.
type kill struct{ cmd.Kill }

// Execute implements subcommands.Command.
func (k *kill) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	one := f.Lookup("pid").Value.String() != "0" || f.Lookup("pgid").Value.String() != "0"
	if one || f.NArg() < 1 || f.NArg() > 2 {
		return k.Kill.Execute(ctx, f, args...)
	}
	c, err := container.Load(args[0].(*config.Config).RootDir, container.FullID{ContainerID: f.Arg(0)}, container.LoadOpts{})
	if err != nil {
		util.Fatalf("loading container: %v", err)
	}
	sig, ok := signalOf(f.Arg(1))
	if !ok {
		return k.Kill.Execute(ctx, f, args...) // which says what is wrong
	}
	all := f.Lookup("all").Value.String() == "true"
	if err := killContainer(c, sig, all); err != nil {
		if c.Status != container.Created && !c.IsSandboxRunning() {
			err = fmt.Errorf("container not running: %w", err)
		}
		util.Fatalf("%v", err)
	}
	return subcommands.ExitSuccess
}

// signalOf understands "", "KILL", "SIGKILL" and "9".
func signalOf(word string) (unix.Signal, bool) {
	if word == "" {
		return unix.SIGTERM, true
	}
	if n, err := strconv.Atoi(word); err == nil {
		return unix.Signal(n), unix.SignalName(unix.Signal(n)) != ""
	}
	sig := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(word), "SIG"))
	return sig, sig != 0
}

// killContainer sends the signal. In a paused sandbox it waits until that is resumed,
// as with any runtime, but for the one that nothing can wait for.
func killContainer(c *container.Container, sig unix.Signal, all bool) error {
	switch {
	case c.Status != container.Paused:
		return c.SignalContainer(sig, all)
	case sig != unix.SIGKILL:
		return c.Sandbox.SignalContainer(c.ID, sig, all)
	}
	// Resumed, the sandbox counts as stopped when it has ended; gVisor takes a paused
	// one to be there for ever. The signal is there first, so nothing runs meanwhile.
	killed := make(chan error, 1)
	go func() {
		err := c.Sandbox.SignalContainer(c.ID, sig, all)
		killed <- errors.Join(err, c.Resume())
	}()
	limit := time.NewTimer(killTime)
	defer limit.Stop()
	var err error
	select {
	case err = <-killed:
	case <-limit.C:
		err = errors.New("the sandbox does not answer")
	}
	if !c.IsSandboxRoot() {
		return err // the sandbox has other containers, which go on
	}
	// It has nothing to do any more, whatever it is doing.
	if err := unix.Kill(c.SandboxPid(), unix.SIGKILL); !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

// killTime is how long a sandbox has to take note that it is to end.
const killTime = 5 * time.Second

// remove is gVisor's delete, for which a paused container has stopped too when its
// sandbox is gone.
type remove struct{ cmd.Delete }

// Execute implements subcommands.Command.
func (r *remove) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	for _, id := range f.Args() {
		c, err := container.Load(args[0].(*config.Config).RootDir, container.FullID{ContainerID: id}, container.LoadOpts{})
		if err == nil && c.Status == container.Paused && !c.IsSandboxRunning() {
			if err := f.Set("force", "true"); err != nil {
				return util.Errorf("%v", err)
			}
		}
	}
	return r.Delete.Execute(ctx, f, args...)
}
