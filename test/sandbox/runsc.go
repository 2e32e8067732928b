package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tpuvisor.dev/tpuvisor/test/tpuhost"
)

// Patience is the one limit of everything that waits here: generous, since it is
// there to end a test that hangs, and for nothing else.
const Patience = 2 * time.Minute

// Runsc is a runsc binary with a state directory of its own. Its methods may be
// called from any goroutine.
type Runsc struct {
	// Flags are given to every command, before its name. They may be changed
	// while no command runs.
	Flags []string

	binary string
	dir    string

	mu         sync.Mutex
	containers []*Container
}

// New returns a Runsc that keeps all it has below the folder dir, which is made if
// it is not there. Close it when done, and only then remove the folder.
func New(binary, dir string) (*Runsc, error) {
	binary, err := filepath.Abs(binary)
	if err != nil {
		return nil, err
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	r := &Runsc{binary: binary, dir: dir}
	r.Flags = []string{
		"-root=" + r.root(),
		"-debug-log=" + r.logs() + "/",
		"-network=none",
		"-ignore-cgroups",
	}
	if _, err := os.Stat(binary); err != nil {
		return nil, fmt.Errorf("sandbox: no runsc: %w", err)
	}
	for _, folder := range []string{r.root(), r.logs()} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return nil, fmt.Errorf("sandbox: %w", err)
		}
	}
	return r, nil
}

func (r *Runsc) root() string { return filepath.Join(r.dir, "root") }
func (r *Runsc) logs() string { return filepath.Join(r.dir, "logs") }

// Error is what a command of runsc that failed returns.
type Error struct {
	Command string // its name: "checkpoint"
	Output  string // what it said on stderr
	Err     error  // how it ended: most often an *exec.ExitError
}

func (e *Error) Error() string {
	return fmt.Sprintf("runsc %s: %v: %s", e.Command, e.Err, strings.TrimSpace(e.Output))
}

func (e *Error) Unwrap() error { return e.Err }

// Do runs a command that starts no sandbox, and returns what it said on stdout.
func (r *Runsc) Do(ctx context.Context, command string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, r.binary, r.arguments(command, args)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = time.Second // for what holds on to our ends of the pipes
	if err := cmd.Run(); err != nil {
		return stdout.String(), &Error{command, stderr.String(), errors.Join(err, ctx.Err())}
	}
	return stdout.String(), nil
}

func (r *Runsc) arguments(command string, args []string) []string {
	return slices.Concat(r.Flags, []string{command}, args)
}

// start runs a command that starts a sandbox, on a host. What it and its container
// say goes to the end of the file console.
func (r *Runsc) start(ctx context.Context, host tpuhost.Host, console, command string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	f, err := os.OpenFile(console, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("sandbox: %w", err)
	}
	defer f.Close()
	before, err := f.Seek(0, 2)
	if err != nil {
		return fmt.Errorf("sandbox: %w", err)
	}
	cmd := host.Command(ctx, r.binary, r.arguments(command, args)...)
	cmd.Stdout, cmd.Stderr = f, f
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(console)
		return &Error{command, string(said[min(before, int64(len(said))):]), errors.Join(err, ctx.Err())}
	}
	return nil
}

// List names the containers that runsc knows, with their status.
func (r *Runsc) List(ctx context.Context) (map[string]string, error) {
	out, err := r.Do(ctx, "list", "-format=json")
	if err != nil {
		return nil, err
	}
	var states []State
	if err := json.Unmarshal([]byte(out), &states); err != nil {
		return nil, fmt.Errorf("sandbox: runsc list: %w", err)
	}
	statuses := make(map[string]string)
	for _, s := range states {
		statuses[s.ID] = s.Status
	}
	return statuses, nil
}

// Close ends all containers and takes away what runsc leaves in its state
// directory. The logs stay.
func (r *Runsc) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	r.mu.Lock()
	containers := r.containers
	r.containers = nil
	r.mu.Unlock()
	var errs []error
	for _, c := range slices.Backward(containers) {
		errs = append(errs, c.destroy(ctx))
	}
	// Where a sandbox was started without a host of its own, the network
	// namespace of the gofers is mounted here.
	err := unix.Unmount(filepath.Join(r.root(), "null-netns"), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		errs = append(errs, fmt.Errorf("sandbox: unmount null-netns: %w", err))
	}
	errs = append(errs, r.awaitEnd(ctx), os.RemoveAll(r.root()))
	return errors.Join(errs...)
}

// awaitEnd waits until no process of the sandboxes is left.
func (r *Runsc) awaitEnd(ctx context.Context) error {
	var left []string
	err := Poll(ctx, "the end of the sandboxes' processes", func() (bool, error) {
		left = r.processes()
		return len(left) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("%w; left are %q", err, left)
	}
	return nil
}

// processes lists the command lines of the processes that use the state directory.
func (r *Runsc) processes() []string {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is a good one
	var lines []string
	for _, file := range files {
		line, err := os.ReadFile(file) // the process may have ended
		if err == nil && bytes.Contains(line, []byte(r.root())) {
			lines = append(lines, string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	return lines
}

// Log is what the sandboxes and their containers said, for the reader of a test
// that has failed: the end of each file. What the commands said is in their errors.
func (r *Runsc) Log() string {
	var b strings.Builder
	for _, pattern := range []string{filepath.Join(r.logs(), "*.boot.txt"), filepath.Join(r.dir, "*.console")} {
		files, _ := filepath.Glob(pattern) // the pattern is a good one
		for _, file := range files {
			if content, err := os.ReadFile(file); err == nil && len(content) > 0 {
				fmt.Fprintf(&b, "---- %s\n%s\n", filepath.Base(file), tail(content, 50))
			}
		}
	}
	return b.String()
}

// chart matches a line of the pictures and tables that gVisor draws of its times.
var chart = regexp.MustCompile(`^\s*\[?\d\d:\d\d:\d\d\.|\||^-+\+`)

// tail returns the last lines, without charts.
func tail(content []byte, lines int) string {
	all := slices.DeleteFunc(strings.Split(strings.TrimSpace(string(content)), "\n"), chart.MatchString)
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
