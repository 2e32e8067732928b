//go:build engines

package engines

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tpuvisor.dev/tpuvisor/test/sandbox"
	"tpuvisor.dev/tpuvisor/test/tpuhost"
)

// searchPath is where a place finds programs: the packages' before all others.
const searchPath = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin"

// place is a machine as an engine finds it: a TPU host without hardware, with our
// binaries in /usr/local/bin, and with nothing that an engine has left or that
// somebody has configured. It is a mount namespace: what is written to /etc, /run
// and /var goes to a folder of the test.
type place struct {
	t   *testing.T
	dir string
	pid int      // of a process that is there
	env []string // for what runs there
}

// furnish puts the folder $1 in the place of what engines write to, and then keeps
// the namespace until stdin ends.
const furnish = `
dir=$1
for at in etc var/lib; do
	mkdir -p "$dir/upper/$at" "$dir/work/$at"
	mount -t overlay overlay -o "lowerdir=/$at,upperdir=$dir/upper/$at,workdir=$dir/work/$at" "/$at"
done
for at in etc/docker etc/containerd var/lib/docker var/lib/containerd var/lib/containers var/tmp; do
	mkdir -p "$dir/$at" "/$at"
	mount --bind "$dir/$at" "/$at"
done
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /usr/local/bin
mkdir "$dir/tmp"
shift
for program; do
	to="/usr/local/bin/${program##*/}"
	: > "$to"
	mount --bind "$program" "$to"
done
echo ready
exec cat
`

func newPlace(t *testing.T, chips int, programs ...string) *place {
	t.Helper()
	groups := make([]int, chips)
	for i := range groups {
		groups[i] = i
	}
	host, err := tpuhost.New("v5e", groups...)
	if err != nil {
		t.Fatal(err)
	}
	p := &place{t: t, dir: t.TempDir()}
	p.env = append(os.Environ(), "PATH="+searchPath, "HOME="+p.dir, "TMPDIR="+filepath.Join(p.dir, "tmp"))
	args := append([]string{"-e", "-c", furnish, "furnish", p.dir}, programs...)
	cmd := host.Command(context.WithoutCancel(t.Context()), "/bin/sh", args...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("furnish the place of an engine: %v: %s", err, stderr.String())
		}
	})
	if _, err := io.ReadFull(stdout, make([]byte, len("ready\n"))); err != nil {
		t.Fatalf("furnish the place of an engine: %v", err)
	}
	p.pid = cmd.Process.Pid
	return p
}

// command is exec.CommandContext for a program that runs at the place.
func (p *place) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	enter := []string{"--mount=/proc/" + strconv.Itoa(p.pid) + "/ns/mnt", "--wd=/", "--", name}
	cmd := exec.CommandContext(ctx, "nsenter", append(enter, args...)...)
	cmd.Env = p.env
	return cmd
}

// try runs a script of the shell at the place, and returns what it said on stdout.
// The words are variables of it, "NAME=value".
func (p *place) try(ctx context.Context, script string, words ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, sandbox.Patience)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := p.command(ctx, "sh", "-e", "-u", "-c", script)
	cmd.Env = slices.Concat(p.env, words)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // for what holds on to our ends of the pipes
	if err := cmd.Run(); err != nil {
		err = errors.Join(err, ctx.Err())
		return stdout.String(), fmt.Errorf("%s: %w\n%s%s", strings.TrimSpace(script), err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

// do is try for a script that has to succeed.
func (p *place) do(script string, words ...string) string {
	p.t.Helper()
	out, err := p.try(p.t.Context(), script, words...)
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

// poll waits until the script succeeds.
func (p *place) poll(script string, words ...string) {
	p.t.Helper()
	var last error
	err := sandbox.Poll(p.t.Context(), "success of: "+script, func() (bool, error) {
		_, last = p.try(p.t.Context(), script, words...)
		return last == nil, nil
	})
	if err != nil {
		p.t.Fatal(errors.Join(err, last))
	}
}

// write makes a file at the place.
func (p *place) write(path, content string) {
	p.t.Helper()
	cmd := p.command(p.t.Context(), "sh", "-e", "-c", `mkdir -p "$(dirname "$1")"; cat > "$1"`, "write", path)
	cmd.Stdin = strings.NewReader(content)
	if out, err := cmd.CombinedOutput(); err != nil {
		p.t.Fatalf("write %s: %v: %s", path, err, out)
	}
}
