package inprocess

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"tpuvisor.dev/tpuvisor/test/faults"
)

// A crossing is how many runtimes there are, and which of them misbehave.
type crossing struct {
	runtimes int
	ranks    []int
}

var crossings = []crossing{
	{1, []int{0}},
	{3, []int{0}}, {3, []int{1}}, {3, []int{2}}, {3, []int{0, 1, 2}},
	{8, []int{0}}, {8, []int{7}},
}

// some are fewer where everything is slow: with the race detector, or a check of the
// order of locks.
func some(all []crossing) []crossing {
	if slow {
		return all[2:3]
	}
	return all
}

func TestInProcess(t *testing.T) {
	results := faults.Results{}
	for _, row := range faults.Table {
		if row.In&faults.InProcess == 0 {
			continue
		}
		results[row.ID] = t.Run(row.ID, func(t *testing.T) {
			if do := scenarios[row.ID]; do != nil {
				scenarioRow(t, row, do)
			} else {
				guestRow(t, row)
			}
		})
	}
	if err := results.Leave(); err != nil {
		t.Error(err)
	}
}

// guestRow does a row in every phase, with any number of runtimes.
func guestRow(t *testing.T, row faults.Row) {
	for _, phase := range faults.Phases {
		if row.At(phase) == nil {
			continue
		}
		for _, c := range some(crossings) {
			t.Run(fmt.Sprintf("%s/%d of %d", phase, c.ranks, c.runtimes), func(t *testing.T) {
				w := newWorld(t)
				if row.Real {
					w.limit = patience
				}
				w.oneMesh = row.OneMesh
				w.lock(row.Lock)
				for range c.runtimes {
					w.newMember(t, "c1", row.FaultAt(phase, w.limit, c.ranks...))
				}
				if row.Real {
					w.realTime(t)
				}
				w.run(t, func(t *testing.T) { (&trial{world: w, row: row, phase: phase, bad: c.ranks}).run(t) })
			})
		}
	}
}

// A trial is one row, in one phase.
type trial struct {
	*world
	row   faults.Row
	phase faults.Phase
	bad   []int
}

func (r *trial) run(t *testing.T) {
	before := r.count()
	begun := time.Now()
	err := r.plane.PreSave(r.k.Kernel)
	if r.phase == faults.Checkpoint {
		r.after(t, before, begun, err)
		return
	}
	if err != nil {
		t.Fatalf("the checkpoint before: %v", err)
	}
	r.rest()
	begin := r.plane.PostResume
	if r.phase == faults.Restore {
		r.move(t)
		before = r.count()
		begin = r.plane.PostRestore
	}
	begun = time.Now()
	r.after(t, before, begun, begin(r.k.Kernel))
}

// after looks at everything when the operation has ended.
func (r *trial) after(t *testing.T, before count, begun time.Time, err error) {
	t.Helper()
	took := time.Since(begun)
	want := *r.row.At(r.phase)
	if err == nil && r.phase == faults.Checkpoint {
		// What was not seen yet is seen now; and else all get their TPUs back.
		r.exited(t)
		err = r.plane.PostResume(r.k.Kernel)
		if !want.Later && err != nil {
			t.Errorf("the resume after the checkpoint: %v", err)
		}
		if want.Then == faults.Gone && err == nil {
			want.Error = faults.None // an exited process is left out
		}
	} else if again := r.plane.PostResume(r.k.Kernel); again != nil {
		t.Errorf("something is owed still: %v", again)
	}
	r.wantDuration(t, want.Error, took)
	r.wantError(t, want, err)
	r.settle()
	r.exited(t)
	for _, m := range r.members {
		then := want.Others
		if slices.Contains(r.bad, m.rank) {
			then = want.Then
		}
		m.wantThen(t, then, err)
		m.wantOnce(t)
	}
	r.wantCount(t, before)
}
