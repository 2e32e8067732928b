// Package enclosure makes sure that a program leaves no process and no mount
// behind, even if it is killed: it runs in PID and mount namespaces of its own.
// Programs that start sandboxes are run in it. It takes root.
//
// The package imports the standard library and golang.org/x/sys alone.
package enclosure

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// The names under which the program is called again: as the first process of the
// namespaces, and as itself inside.
const (
	initName  = "enclosure-init"
	insideEnv = "TPUVISOR_ENCLOSED"
)

// Run returns what main returns. It runs main in another process, which is the
// calling program called again, inside the enclosure; so it must be the first thing
// that the program does, and be reached in the same way there. All that main has
// started ends with it.
func Run(main func() int) int {
	switch {
	case os.Getenv(insideEnv) != "":
		os.Unsetenv(insideEnv) // what main calls again is no part of this
		return main()
	case os.Args[0] == initName:
		return report(inside())
	default:
		return report(outside())
	}
}

func report(status int, err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, "enclosure:", err)
		return 1
	}
	return status
}

// outside starts the first process of the namespaces. The kernel ends all others
// when that ends, and ends that when this one does.
func outside() (int, error) {
	runtime.LockOSThread() // the death signal is about the thread that forks
	cmd := again(append([]string{initName}, os.Args...))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := start(cmd); err != nil {
		return 0, fmt.Errorf("new PID and mount namespaces (are you root?): %w", err)
	}
	return statusOf(cmd.Wait())
}

// inside is the first process: it starts main's, and waits for whatever is left to
// it meanwhile, as the first process of a machine does.
func inside() (int, error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return 0, fmt.Errorf("make the mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return 0, fmt.Errorf("mount /proc: %w", err)
	}
	cmd := again(os.Args[1:])
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	if err := start(cmd); err != nil {
		return 0, err
	}
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait for %s: %w", cmd.Args[0], err)
		case pid != cmd.Process.Pid:
		case ws.Signaled():
			return 0, fmt.Errorf("%s was killed: %v", cmd.Args[0], ws.Signal())
		default:
			return ws.ExitStatus(), nil
		}
	}
}

// again is the calling program with other arguments, the name included.
func again(args []string) *exec.Cmd {
	return &exec.Cmd{Path: "/proc/self/exe", Args: args, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
}

// start starts the command, and passes signals on: what becomes of them is for main
// to decide. A terminal sends an interrupt to all, so main may get that more than
// once.
func start(cmd *exec.Cmd) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		for s := range signals {
			cmd.Process.Signal(s) // it may have ended: then so do we
		}
	}()
	return nil
}

func statusOf(err error) (int, error) {
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode(), nil
	}
	return 0, err
}
