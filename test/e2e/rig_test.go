package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/test/trial"
)

// rig is a trial whose errors end the test. What its sandbox said is shown if the
// test fails, and all of it is gone when the test is over.
type rig struct {
	*trial.Trial
	t *testing.T
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
	tr, err := trial.New(runscBinary, trainerBinary, t.TempDir(), j)
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
	return &rig{Trial: tr, t: t}
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// checkpoint saves the job and returns the image.
func (r *rig) checkpoint(flags ...string) string {
	r.t.Helper()
	image, err := r.Checkpoint(r.t.Context(), flags...)
	r.must(err)
	return image
}

// failCheckpoint wants a checkpoint to fail, and every word in what runsc says.
func (r *rig) failCheckpoint(words ...string) {
	r.t.Helper()
	_, err := r.Checkpoint(r.t.Context())
	if err == nil {
		r.t.Fatal("the checkpoint succeeded")
	}
	wantWords(r.t, err, words...)
}

// wantWords looks for what users are promised to be told.
func wantWords(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error does not say %q:\n%v", word, err)
		}
	}
}

// move restores the job elsewhere, the old host's TPU memory being wiped.
func (r *rig) move(image string) {
	r.t.Helper()
	r.must(r.Wipe())
	r.must(r.Restore(r.t.Context(), image))
}

// goesOn wants the members given, or all of them, to do more steps; and all steps
// so far to be those of an uninterrupted job.
func (r *rig) goesOn(ranks ...int) {
	r.t.Helper()
	r.must(r.Advance(r.t.Context(), 3, ranks...))
	r.must(r.Verify())
}

// wantRequests wants the member's runtime to have received just these.
func (r *rig) wantRequests(rank int, want ...string) {
	r.t.Helper()
	requests, err := r.Requests(rank)
	r.must(err)
	var got []string
	for _, q := range requests {
		got = append(got, tpuwire.ActionName(q.Action))
	}
	if !slices.Equal(got, want) {
		r.t.Errorf("member %d received the requests %v, want %v", rank, got, want)
	}
}

// wantAllRequests is wantRequests for every member of n.
func (r *rig) wantAllRequests(n int, want ...string) {
	r.t.Helper()
	for rank := range n {
		r.wantRequests(rank, want...)
	}
}

// wantStatus wants runsc to give the container this status.
func (r *rig) wantStatus(want string) {
	r.t.Helper()
	s, err := r.Container.State(r.t.Context())
	r.must(err)
	if s.Status != want {
		r.t.Errorf("the container is %s, want %s", s.Status, want)
	}
}

// stillStands wants the members to have done no step since the progress given.
func (r *rig) stillStands(before []int) {
	r.t.Helper()
	now, err := r.Progress()
	r.must(err)
	if fmt.Sprint(now) != fmt.Sprint(before) {
		r.t.Errorf("the job went from steps %v to %v while it was paused", before, now)
	}
}
