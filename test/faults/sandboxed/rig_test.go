//go:build faults

package sandboxed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/test/faults"
	"tpuvisor.dev/tpuvisor/test/sandbox"
	"tpuvisor.dev/tpuvisor/test/trial"
)

const (
	// limit is that of the runtimes in rows that wait for it to end.
	limit = 4 * time.Second
	// generous is their limit in all others.
	generous = 100 * time.Second
	// patience is how long one command of a row may take.
	patience = 2 * time.Minute
)

const (
	timeoutAnnotation           = "dev.gvisor.internal.tpu.timeout"
	checkpointTimeoutAnnotation = "dev.gvisor.internal.tpu.checkpoint-timeout"
	handshakeAnnotation         = "dev.gvisor.internal.tpu.handshake"
)

// words are what users are told of each kind of error.
var words = map[faults.Error]string{
	faults.Refused:    "refused",
	faults.WrongState: "in a state that does not fit",
	faults.NotMessage: "not a message of the protocol",
	faults.TooLarge:   "is larger than the limit",
	faults.NoAnswer:   "no answer in time",
	faults.Closed:     "closed",
	faults.Exited:     "exited",
	faults.Topology:   "topology differs",
	faults.NoRuntime:  "has no runtime",
	faults.Reopened:   "opened a TPU",
	faults.Busy:       "under way",
}

// pace is the time between two steps of the job: a sandbox that is busy is slow.
const pace = 100 * time.Millisecond

// A rig is a job in a sandbox, and what is looked at around each row.
type rig struct {
	*trial.Trial
	pid int // of the sandbox
	ctx context.Context
	dir string
	end context.CancelFunc
}

func start(t *testing.T, j trial.Job) (*rig, error) {
	t.Helper()
	if j.Annotations == nil {
		j.Annotations = map[string]string{}
	}
	if j.Annotations[timeoutAnnotation] == "" {
		j.Annotations[timeoutAnnotation] = generous.String()
	}
	j.Pace = pace
	dir := t.TempDir()
	tr, err := trial.New(runscBinary, trainerBinary, dir, j)
	if err != nil {
		return nil, err
	}
	r := &rig{Trial: tr, dir: dir}
	r.ctx, r.end = context.WithTimeout(t.Context(), 10*patience)
	if err := tr.Start(r.ctx); err != nil {
		return nil, errors.Join(err, r.close())
	}
	state, err := tr.Container.State(r.ctx)
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	r.pid = state.PID
	return r, nil
}

func (r *rig) close() error {
	r.end()
	return r.Trial.Close()
}

// before is what a row must leave as it was.
type before struct {
	fds      map[string]int
	requests [][]string
}

func (r *rig) look() (before, error) {
	var b before
	fds, err := r.fds()
	if err != nil {
		return b, err
	}
	b.fds = fds
	b.requests, err = r.asked()
	return b, err
}

// fds counts the sandbox's open files by what they are, but for those of the guest's
// folders: gVisor keeps a file open that it has seen.
func (r *rig) fds() (map[string]int, error) {
	dir := fmt.Sprintf("/proc/%d/fd", r.pid)
	files, err := os.ReadDir(dir)
	open := map[string]int{}
	for _, f := range files {
		target, err := os.Readlink(filepath.Join(dir, f.Name()))
		if err == nil && !strings.HasPrefix(target, "/root/") {
			kind, _, _ := strings.Cut(target, ":[")  // a socket's or a pipe's number
			if kind != "anon_inode:seccomp notify" { // those of the platform's processes, which it makes as it likes
				open[kind]++
			}
		}
	}
	return open, err
}

// asked lists the verbs that each member has received.
func (r *rig) asked() ([][]string, error) {
	all := make([][]string, max(1, r.Processes)*max(1, r.Runtimes))
	for rank := range all {
		requests, err := r.Requests(rank)
		if err != nil {
			return nil, err
		}
		for _, q := range requests {
			all[rank] = append(all[rank], tpuwire.ActionName(q.Action))
		}
	}
	return all, nil
}

// after looks whether all is as it was, for a sandbox that lives on. No verb may have
// come more often than most times.
func (r *rig) after(b before, most int) error {
	asked, err := r.asked()
	if err != nil {
		return err
	}
	for rank, verbs := range asked {
		if len(b.requests) <= rank {
			break
		}
		count := map[string]int{}
		for _, verb := range verbs[len(b.requests[rank]):] {
			if count[verb]++; count[verb] > most && verb != "GETSTATE" {
				err = errors.Join(err, fmt.Errorf("rank %d received %v", rank, verbs[len(b.requests[rank]):]))
				break
			}
		}
	}
	return errors.Join(err, r.wantFDs(b.fds))
}

// wantFDs wants no more open files than there were, once connections are closed.
func (r *rig) wantFDs(was map[string]int) error {
	var more []string
	ctx, cancel := context.WithTimeout(r.ctx, patience/3)
	defer cancel()
	err := sandbox.Poll(ctx, "open files to be closed", func() (ok bool, err error) {
		more = nil
		is, err := r.fds()
		for kind, n := range is {
			if n > was[kind] {
				more = append(more, fmt.Sprintf("%d of %s", n-was[kind], kind))
			}
		}
		return len(more) == 0, err
	})
	if err != nil {
		return fmt.Errorf("the sandbox has more open files than before: %q: %w", more, err)
	}
	return nil
}

// answers wants runsc list, state and kill to answer.
func (r *rig) answers(status string) error {
	list, err := r.Runsc.List(r.ctx)
	if err != nil {
		return err
	}
	state, err := r.Container.State(r.ctx)
	if err != nil {
		return err
	}
	if state.Status != status || list[r.Container.ID] != status {
		return fmt.Errorf("the container is %s, and listed as %s, and should be %s", state.Status, list[r.Container.ID], status)
	}
	if status != "running" {
		return nil
	}
	return r.Container.Kill(r.ctx, "CONT")
}

// goesOn wants the members given, or all, to do more steps, and the right ones.
func (r *rig) goesOn(ranks ...int) error {
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	return errors.Join(r.Advance(ctx, 2, ranks...), r.Verify())
}

// save makes a checkpoint that leaves the container running.
func (r *rig) save(flags ...string) (image string, err error) {
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	image = r.Image()
	return image, r.Container.Checkpoint(ctx, image, append(flags, "-leave-running")...)
}

// wantError wants the error of an outcome, and of a failed checkpoint no image.
func wantError(want faults.Error, verb, image string, err error) error {
	if want == faults.None {
		return err
	}
	if err == nil {
		return fmt.Errorf("it succeeded, and should have failed: %s", want)
	}
	if image != "" {
		if _, statErr := os.Stat(image); !errors.Is(statErr, fs.ErrNotExist) {
			return fmt.Errorf("an image is left of a failed checkpoint: %v", statErr)
		}
	}
	return wantWords(err, words[want], verb)
}

// wantWords looks for what users are promised to be told.
func wantWords(err error, all ...string) error {
	if err == nil {
		return errors.New("it succeeded")
	}
	for _, word := range all {
		if !strings.Contains(err.Error(), word) {
			return fmt.Errorf("the error does not say %q: %w", word, err)
		}
	}
	if at := strings.IndexFunc(strings.TrimSpace(err.Error()), func(c rune) bool { return c < ' ' && c != '\n' && c != '\t' || c == 0x7f }); at >= 0 {
		return fmt.Errorf("the error has a control byte: %q", err.Error())
	}
	return nil
}

// A step is one row of a group that shares a sandbox.
type step struct {
	row   faults.Row
	phase faults.Phase
	do    func(r *rig) error
	ended bool // the sandbox has ended
	saves int  // how many checkpoints are made; 0 is one
}

// group does rows one after the other in one sandbox, or in a fresh one after one that
// has failed. job says what runs, for the steps that are left.
func group(t *testing.T, job func(left []step) trial.Job, steps []step) {
	t.Helper()
	var r *rig
	for i, s := range steps {
		begun := time.Now()
		var err error
		if r == nil {
			r, err = start(t, job(steps[i:]))
		}
		if err == nil {
			err = s.inside(r)
		}
		if r != nil && (err != nil || i == len(steps)-1) {
			if err == nil && !s.ended {
				err = r.answers("running")
			}
			log := r.Runsc.Log()
			err = errors.Join(err, r.close())
			r = nil
			if err != nil && testing.Verbose() {
				t.Logf("what the sandbox said:\n%s", log)
			}
		}
		results.record(t, s.row, s.phase, begun, err)
	}
}

func (s step) inside(r *rig) error {
	b, err := r.look()
	if err != nil {
		return err
	}
	if err := s.do(r); err != nil {
		return err
	}
	if s.ended {
		return nil
	}
	return r.after(b, max(1, s.saves))
}

// rows lists the rows that are run here and for which keep says so.
func rows(keep func(faults.Row) bool) []faults.Row {
	return slices.DeleteFunc(slices.Clone(faults.Table), func(r faults.Row) bool {
		return r.In&faults.Sandboxed == 0 || !keep(r)
	})
}

// tool puts the misfit where the sandbox finds it, and returns its path inside.
func (r *rig) tool() (string, error) {
	path := filepath.Join(r.dir, "log", "misfit")
	content, err := os.ReadFile(misfitBinary)
	if err != nil {
		return "", err
	}
	return "/log/misfit", os.WriteFile(path, content, 0o755)
}
