package tpuhost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// stage is how this program is called when it is the step between Command and
// the command: inside the new mount namespace, before the command itself.
const stage = "tpuhost-stage"

// Command needs a step in a process of its own, and that can be no program but
// the running one. So the step begins here, before main or any test.
func init() {
	if len(os.Args) < 3 || os.Args[0] != stage {
		return
	}
	var h Host
	err := json.Unmarshal([]byte(os.Args[1]), &h)
	if err == nil {
		err = h.Exec(os.Args[2:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(125)
}

// Command is exec.CommandContext for a program that runs on the host h. Until
// the program is started, and if that fails, the command is the calling
// program once more; it then ends with status 125 and the reason on stderr.
func (h Host) Command(ctx context.Context, name string, arg ...string) *exec.Cmd {
	spec, err := json.Marshal(h)
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Err = errors.Join(cmd.Err, err)
	cmd.Args = append([]string{stage, string(spec), name}, arg...)
	return cmd
}

// Exec replaces the calling process by the program argv[0], looked up in PATH,
// which runs on the host h. It returns only if that could not be done.
func (h Host) Exec(argv, env []string) error {
	if err := h.check(); err != nil {
		return err
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return fmt.Errorf("tpuhost: %w", err)
	}
	runtime.LockOSThread() // the namespace is this thread's alone until the exec
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("tpuhost: a new mount namespace (are you root?): %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("tpuhost: make the mounts private: %w", err)
	}
	if err := h.mount(); err != nil {
		return err
	}
	if err := unix.Exec(path, argv, env); err != nil {
		return fmt.Errorf("tpuhost: start %s: %w", path, err)
	}
	return nil
}
