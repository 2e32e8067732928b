package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"tpuvisor.dev/tpuvisor/test/sandbox"
	"tpuvisor.dev/tpuvisor/test/tpuhost"
)

// A binary is one of the two that are compared.
type binary struct {
	name string // "ours" or "upstream"
	path string
	dir  string // of all its sandboxes
	n    int    // of sandboxes so far
}

// box is a sandbox, with a state directory of its own. The bundle is made once, so
// that it can be restored too.
type box struct {
	*binary
	dir string
	id  string
	log string // a folder that it has as /log
}

// workload is what runs in a box.
type workload struct {
	args        []string // of the guest
	tpu         bool     // the sandbox gets the host's TPU
	annotations map[string]string
}

func (b *binary) newBox(r *run, w workload) (*box, error) {
	b.n++
	x := &box{binary: b, dir: filepath.Join(b.dir, fmt.Sprint(b.n)), id: fmt.Sprintf("%s-%d", b.name, b.n)}
	x.log = filepath.Join(x.dir, "log")
	for _, folder := range []string{x.log, x.logs()} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return nil, err
		}
	}
	var host tpuhost.Host
	if w.tpu {
		host = r.host
	}
	return x, sandbox.Workload{
		Program: r.guest, Args: w.args, Mounts: map[string]string{"/log": x.log}, Annotations: w.annotations,
		Change: func(s *specs.Spec) {
			s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1 << 17, Hard: 1 << 17}}
		},
	}.Bundle(x.bundle(), host)
}

func (x *box) bundle() string  { return filepath.Join(x.dir, "bundle") }
func (x *box) image() string   { return filepath.Join(x.dir, "image") }
func (x *box) root() string    { return filepath.Join(x.dir, "root") }
func (x *box) logs() string    { return filepath.Join(x.dir, "logs") }
func (x *box) console() string { return filepath.Join(x.dir, "console") }

// do runs a command of runsc, and returns how long it took.
func (x *box) do(ctx context.Context, command string, args ...string) (time.Duration, error) {
	console, err := os.OpenFile(x.console(), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		return 0, err
	}
	defer console.Close()
	cmd := exec.CommandContext(ctx, x.path, append([]string{
		"-root=" + x.root(), "-debug-log=" + x.logs() + "/",
		"-network=none", "-ignore-cgroups", command,
	}, args...)...)
	// Not pipes: those would have to be read, and sandboxes would hold them open.
	cmd.Stdout, cmd.Stderr = console, console
	begun := time.Now()
	err = cmd.Run()
	took := time.Since(begun)
	if err != nil {
		said, _ := os.ReadFile(x.console())
		err = fmt.Errorf("%s: runsc %s: %w: %s", x.name, command, errors.Join(err, ctx.Err()), lastLine(said))
	}
	return took, err
}

func lastLine(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	last := lines[len(lines)-1]
	return last[:min(len(last), 300)]
}

// start runs the box until its guest is set up.
func (x *box) start(ctx context.Context) (time.Duration, error) {
	took, err := x.do(ctx, "run", "-detach", "-bundle="+x.bundle(), x.id)
	if err != nil {
		return took, err
	}
	return took, x.await(ctx, "ready")
}

func (x *box) checkpoint(ctx context.Context, flags ...string) (time.Duration, error) {
	return x.do(ctx, "checkpoint", append(flags, "-image-path="+x.image(), x.id)...)
}

// restore restores the box from its own image, under its own name.
func (x *box) restore(ctx context.Context) (time.Duration, error) {
	return x.do(ctx, "restore", "-detach", "-bundle="+x.bundle(), "-image-path="+x.image(), x.id)
}

// remove ends the box, and takes away all it had.
func (x *box) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := x.do(ctx, "delete", "-force", x.id)
	return errors.Join(err, x.removeFiles())
}

// removeFiles takes away the box's folder. The gofers' network namespace is mounted
// in it.
func (x *box) removeFiles() error {
	err := unix.Unmount(filepath.Join(x.root(), "null-netns"), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return errors.Join(err, os.RemoveAll(x.dir))
}

// await waits for a file of the guest's.
func (x *box) await(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for looked := time.Now(); ; {
		if _, err := os.Stat(filepath.Join(x.log, name)); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: waiting for the guest to write %s: %w", x.name, name, ctx.Err())
		case <-tick.C:
		}
		if time.Since(looked) > time.Second {
			looked = time.Now()
			if err := x.alive(ctx); err != nil {
				return fmt.Errorf("%s: waiting for the guest to write %s: %w", x.name, name, err)
			}
		}
	}
}

// alive is an error if the sandbox is not.
func (x *box) alive(ctx context.Context) error {
	pid, err := x.pid(ctx)
	if err == nil {
		_, err = os.Stat(fmt.Sprintf("/proc/%d", pid))
	}
	if err != nil {
		said, _ := os.ReadFile(x.console())
		return fmt.Errorf("the sandbox has ended: %w: %s", err, lastLine(said))
	}
	return nil
}

// pid is the sandbox's process.
func (x *box) pid(ctx context.Context) (int, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, x.path, "-root="+x.root(), "state", x.id)
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		return 0, err
	}
	var state sandbox.State
	if err := json.Unmarshal(out.Bytes(), &state); err != nil {
		return 0, err
	}
	if state.Status == "stopped" || state.PID <= 0 {
		return 0, fmt.Errorf("the container is %s", state.Status)
	}
	return state.PID, nil
}

// turns are the times at which runtimes were asked, by the action's name.
func (x *box) turns(ctx context.Context) (map[string]turn, error) {
	if err := x.await(ctx, "turns"); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(x.log, "turns"))
	if err != nil {
		return nil, err
	}
	var all map[string]turn
	return all, json.Unmarshal(text, &all)
}

// A turn is one action, asked of all runtimes. All in nanoseconds.
type turn struct {
	First int64 // when the first request had been read, since 1970
	Last  int64 // when the last answer was being written
	Took  int64 // between the two
}

// size adds up the files of a folder.
func size(dir string) (int64, error) {
	var sum int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			sum += info.Size()
		}
		return err
	})
	return sum, err
}
