package inprocess

import (
	"errors"
	"slices"
	"testing"

	"tpuvisor.dev/tpuvisor/test/faults"
)

// A scenario is a row that no fault of a runtime makes. It prepares the world, in which
// there are three members of which the first is the one of the row, and returns what
// is to be done while they act.
type scenario func(t *testing.T, s *scene) (do func(t *testing.T) error)

// A scene is the world of one scenario.
type scene struct {
	*world
	row      faults.Row
	bad      *member
	attempts int       // how often anything is sent
	rest     []*member // whose end the scenario looks at itself
	before   count
}

var scenarios = map[string]scenario{}

// add adds scenarios of some rows.
func add(more map[string]scenario) struct{} {
	for id, s := range more {
		scenarios[faults.Find(id).ID] = s
	}
	return struct{}{}
}

// scenarioRow does a row that has a scenario.
func scenarioRow(t *testing.T, row faults.Row, prepare scenario) {
	s := &scene{world: newWorld(t), row: row, attempts: 1}
	phase := faults.Checkpoint
	want := row.Detach
	if want == nil {
		phase, want = faults.Resume, row.Attach
	}
	s.lock(row.Lock)
	for range 3 {
		text := ""
		if row.Fault != "" {
			text = row.FaultAt(phase, s.limit, 0)
		}
		s.newMember(t, "c1", text)
	}
	s.bad = s.members[0]
	do := prepare(t, s)
	if row.Real {
		s.realTime(t)
	}
	s.run(t, func(t *testing.T) {
		s.before = s.count()
		s.end(t, *want, do(t))
	})
}

// checkpoint is a checkpoint whose save succeeds, and the resume after it.
func (s *scene) checkpoint() error {
	if err := s.plane.PreSave(s.k.Kernel); err != nil {
		return err
	}
	return s.plane.PostResume(s.k.Kernel)
}

// end looks at everything when the scenario is over.
func (s *scene) end(t *testing.T, want faults.Outcome, err error) {
	t.Helper()
	wantText(t, err)
	switch kind := kinds[want.Error]; {
	case want.Error == faults.None && err != nil, want.Error != faults.None && err == nil:
		t.Errorf("got error %v, want %q", err, want.Error)
	case kind != nil && !errors.Is(err, kind):
		t.Errorf("got error %v, want kind %q", err, want.Error)
	}
	s.settle()
	r := &trial{world: s.world, row: s.row}
	r.exited(t)
	for _, m := range s.members {
		then := want.Others
		if m == s.bad {
			then = want.Then
		}
		if slices.Contains(s.rest, m) {
			continue
		}
		m.wantThen(t, then, err)
		m.wantAtMost(t, s.attempts)
		if want.Error == faults.NoRuntime || want.Error == faults.TooMany || want.Error == faults.PausedTwice {
			m.wantAtMost(t, 0)
		}
	}
	s.wantCount(t, s.before)
}
