//go:build engines

package engines

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	work "tpuvisor.dev/tpuvisor/test/job"
	"tpuvisor.dev/tpuvisor/test/sandbox"
	"tpuvisor.dev/tpuvisor/test/trial"
)

// weights is how many bytes a member has in its TPU's memory.
const weights = 64 << 10

// job is a simulated job, as an engine's container: which steps it does, and which
// requests its runtimes receive. An engine starts it.
type job struct {
	*trial.Trial
	t   *testing.T
	dir string
}

func newJob(t *testing.T, processes int) *job {
	t.Helper()
	dir := t.TempDir()
	tr, err := trial.New(trainer, trainer, dir, trial.Job{Processes: processes})
	if err != nil {
		t.Fatal(err)
	}
	j := &job{Trial: tr, t: t, dir: dir}
	if err := os.Mkdir(j.hbm(), 0o755); err != nil {
		t.Fatal(err)
	}
	j.wipe()
	return j
}

func (j *job) hbm() string { return filepath.Join(j.dir, "hbm") }
func (j *job) log() string { return filepath.Join(j.dir, "log") }

// arguments are the trainer's.
func (j *job) arguments(more ...string) []string {
	return append([]string{"-processes", strconv.Itoa(j.Processes), "-size", strconv.Itoa(weights)}, more...)
}

// wipe overwrites the memory of the TPUs: what a job finds on another host.
func (j *job) wipe() {
	j.t.Helper()
	for rank := range j.Processes {
		path := filepath.Join(j.hbm(), "rank"+strconv.Itoa(rank))
		if err := os.WriteFile(path, bytes.Repeat([]byte{0xa5}, weights), 0o644); err != nil {
			j.t.Fatal(err)
		}
	}
}

// goesOn wants all members to do more steps, and all steps so far to be those of an
// uninterrupted job.
func (j *job) goesOn() {
	j.t.Helper()
	before := j.progress()
	err := sandbox.Poll(j.t.Context(), fmt.Sprintf("more steps of the job than %v", before), func() (bool, error) {
		for rank, steps := range j.progress() {
			if steps < before[rank]+3 {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		j.t.Fatal(err)
	}
	j.verify()
}

// verify wants the steps since the last rewind to follow one another, with the sums
// that they have in an uninterrupted job.
func (j *job) verify() {
	j.t.Helper()
	for rank := range j.Processes {
		lines, err := j.Lines(rank)
		if err != nil {
			j.t.Fatal(err)
		}
		if len(lines) == 0 {
			continue
		}
		first := lines[0].Step
		sums := work.Reference(rank, weights, first+len(lines)-1)
		for i, line := range lines {
			if want := (work.Line{Rank: rank, Step: first + i, Sum: sums[first+i]}); line != want {
				j.t.Fatalf("a member said\n%s, and without interruption it would have said\n%s", line, want)
			}
		}
	}
}

// rewind forgets the steps of a container that has ended after it was saved: what is
// restored has not done the last of them.
func (j *job) rewind() {
	j.t.Helper()
	for rank := range j.Processes {
		if err := os.Remove(filepath.Join(j.log(), fmt.Sprintf("rank%d.steps", rank))); err != nil {
			j.t.Fatal(err)
		}
	}
}

func (j *job) progress() []int {
	j.t.Helper()
	done, err := j.Progress()
	if err != nil {
		j.t.Fatal(err)
	}
	return done
}

// stands wants the job to do no step while f runs.
func (j *job) stands(f func()) {
	j.t.Helper()
	before := j.progress()
	f()
	after := j.progress()
	if !slices.Equal(before, after) {
		j.t.Errorf("the job went on from steps %v to %v while it was paused", before, after)
	}
}

// received wants every member's runtime to have received just these requests.
func (j *job) received(want ...string) {
	j.t.Helper()
	for rank := range j.Processes {
		requests, err := j.Requests(rank)
		if err != nil {
			j.t.Fatal(err)
		}
		var got []string
		for _, q := range requests {
			got = append(got, tpuwire.ActionName(q.Action))
		}
		if !slices.Equal(got, want) {
			j.t.Errorf("member %d received the requests %v, want %v", rank, got, want)
		}
	}
}

// says wants each of the words in a text that users are promised.
func says(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("this does not say %q:\n%s", word, text)
		}
	}
}
