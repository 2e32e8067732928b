package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/test/sandbox"
	"tpuvisor.dev/tpuvisor/test/tpuhost"
	"tpuvisor.dev/tpuvisor/test/trial"
)

// rig is a trial whose errors end the test, and whose runsc can be run as an
// operator runs it.
type rig struct {
	*trial.Trial
	t   *testing.T
	dir string
}

// start runs a job.
func start(t *testing.T, j trial.Job) *rig {
	t.Helper()
	r := prepareRig(t, j)
	r.must(r.Start(t.Context()))
	return r
}

func prepareRig(t *testing.T, j trial.Job) *rig {
	t.Helper()
	dir := t.TempDir()
	tr, err := trial.New(runscBinary, trainerBinary, dir, j)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("what the sandbox said:\n%s", tr.Runsc.Log())
		}
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	})
	return &rig{Trial: tr, t: t, dir: dir}
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// said is how a command has ended.
type said struct {
	stdout, stderr string
	status         int
}

// runsc runs a command as an operator does.
func (r *rig) runsc(command string, args ...string) said {
	r.t.Helper()
	return r.begin(command, args...).end()
}

// running is a command that has not ended.
type running struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
}

func (r *rig) begin(command string, args ...string) *running {
	r.t.Helper()
	return r.beginOn(tpuhost.Host{}, command, args...)
}

// beginOn starts a command on a host; one without chips is the machine itself.
func (r *rig) beginOn(host tpuhost.Host, command string, args ...string) *running {
	r.t.Helper()
	c := r.prepare(host, command, args...)
	r.must(c.cmd.Start())
	return c
}

// beginWith starts a command whose stderr is a terminal.
func (r *rig) beginWith(terminal *os.File, command string, args ...string) *running {
	r.t.Helper()
	c := r.prepare(tpuhost.Host{}, command, args...)
	c.cmd.Stderr = terminal
	r.must(c.cmd.Start())
	return c
}

func (r *rig) prepare(host tpuhost.Host, command string, args ...string) *running {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), sandbox.Patience)
	r.t.Cleanup(cancel)
	all := slices.Concat(r.Runsc.Flags, []string{command}, args)
	c := &running{t: r.t, cmd: exec.CommandContext(ctx, runscBinary, all...)}
	if len(host.Chips) > 0 {
		c.cmd = host.Command(ctx, runscBinary, all...)
	}
	c.cmd.Stdout, c.cmd.Stderr = &c.stdout, &c.stderr
	c.cmd.WaitDelay = time.Second // for a sandbox that holds on to our pipes
	return c
}

func (c *running) end() said {
	c.t.Helper()
	err := c.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		c.t.Fatal(err)
	}
	return said{stdout: c.stdout.String(), stderr: c.stderr.String(), status: c.cmd.ProcessState.ExitCode()}
}

func (c *running) signal(s syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

// The statuses of a command: done; done, and the answer is no; not done.
const (
	yes    = 0
	no     = 1
	failed = 128
)

// wants checks the status, and what is promised to be said.
func (s said) wants(t *testing.T, status int, words ...string) said {
	t.Helper()
	if s.status != status {
		t.Fatalf("the status is %d, want %d\n%s%s", s.status, status, s.stdout, s.stderr)
	}
	for _, word := range words {
		if !strings.Contains(s.stdout+s.stderr, word) {
			t.Errorf("it does not say %q:\n%s%s", word, s.stdout, s.stderr)
		}
	}
	return s
}

// oneLine wants an error in one line.
func (s said) oneLine(t *testing.T) {
	t.Helper()
	if n := strings.Count(strings.TrimSpace(s.stderr), "\n"); n != 0 {
		t.Errorf("the error has %d lines:\n%s", n+1, s.stderr)
	}
}

// parse reads what was said as JSON.
func parse[T any](t *testing.T, s said) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(s.stdout), &v); err != nil {
		t.Fatalf("no JSON: %v\n%s%s", err, s.stdout, s.stderr)
	}
	return v
}

// awaitRequest waits until a member's runtime has received an action so many times.
func (r *rig) awaitRequest(rank int, action string, times int) {
	r.t.Helper()
	r.must(sandbox.Poll(r.t.Context(), action, func() (bool, error) {
		requests, err := r.Requests(rank)
		n := 0
		for _, q := range requests {
			if tpuwire.ActionName(q.Action) == action {
				n++
			}
		}
		return n >= times, err
	}))
}

// wantRequests wants the member's runtime to have received just these, but for
// questions.
func (r *rig) wantRequests(rank int, want ...string) {
	r.t.Helper()
	requests, err := r.Requests(rank)
	r.must(err)
	var got []string
	for _, q := range requests {
		if name := tpuwire.ActionName(q.Action); name != "GETSTATE" {
			got = append(got, name)
		}
	}
	if !slices.Equal(got, want) {
		r.t.Errorf("member %d received the requests %v, want %v", rank, got, want)
	}
}

// goesOn wants the job to do more steps, and all so far to be the right ones.
func (r *rig) goesOn() {
	r.t.Helper()
	r.must(r.Advance(r.t.Context(), 2))
	r.must(r.Verify())
}

func (r *rig) wantStatus(want string) {
	r.t.Helper()
	s, err := r.Container.State(r.t.Context())
	r.must(err)
	if s.Status != want {
		r.t.Errorf("the container is %s, want %s", s.Status, want)
	}
}

// files lists what is in a folder; nil if it is not there.
func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// host is the job's, with the IOMMU groups given.
func host(t *testing.T, groups ...int) tpuhost.Host {
	t.Helper()
	h, err := tpuhost.New("v5e", groups...)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// bundle is that of the n-th host that the job was on, from 1.
func (r *rig) bundle(n int) string {
	return filepath.Join(r.dir, "host"+string(rune('0'+n)), "bundle")
}
