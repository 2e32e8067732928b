//go:build faults

package sandboxed

import (
	"fmt"
	"strings"
	"testing"

	"tpuvisor.dev/tpuvisor/test/faults"
	"tpuvisor.dev/tpuvisor/test/trial"
)

// bad is who misbehaves, of how many, where there are several.
const (
	bad     = 1
	members = 3
)

// spent are the rows after which the runtime cannot be asked again, although its TPU is
// attached.
var spent = map[string]bool{
	"answers/too-long-by-one": true, "answers/4-gib": true,
	"silence/stops-reading": true, "silence/closes-requests": true, "silence/thread-answers-and-exits": true,
}

// strands are the rows in which the runtime lets go of its TPU at CHECKPOINT, and does
// not get it back.
var strands = map[string]bool{
	"answers/success-faulted": true, "answers/half": true, "silence/acts-and-never-answers": true,
	"silence/thread-acts-and-exits": true, "silence/thread-exits-answering": true, "silence/thread-answers-and-exits": true,
}

func ofGuest(r faults.Row) bool { return r.Kind() == "answers" || r.Kind() == "silence" }

// lasting are rows after which the sandbox is as before, and that wait for no limit.
func lasting(r faults.Row, o *faults.Outcome) bool {
	return ofGuest(r) && o != nil && o.Then == faults.Running && o.Error != faults.NoAnswer && !spent[r.ID]
}

// TestSandboxed_Checkpoint does the rows one after the other, each at another CHECKPOINT of
// one sandbox; and then those that spoil the sandbox.
func TestSandboxed_Checkpoint(t *testing.T) {
	t.Parallel()
	guests(t, faults.Checkpoint)
}

func TestSandboxed_Resume(t *testing.T) {
	t.Parallel()
	guests(t, faults.Resume)
}

func guests(t *testing.T, phase faults.Phase) {
	var together []step
	for _, row := range rows(func(r faults.Row) bool { return lasting(r, r.At(phase)) }) {
		together = append(together, step{row: row, phase: phase, do: func(r *rig) error { return guestRow(r, row, phase, bad) }})
	}
	group(t, func(left []step) trial.Job {
		all := make([]string, len(left))
		for i, s := range left {
			all[i] = fmt.Sprintf("%s,nth=%d", s.row.FaultAt(phase, limit, bad), i+1)
		}
		return trial.Job{Processes: members, Fault: strings.Join(all, ";")}
	}, together)
	for _, row := range rows(func(r faults.Row) bool {
		return ofGuest(r) && r.At(phase) != nil && !lasting(r, r.At(phase)) || r.Lock && r.At(phase) != nil
	}) {
		alone(t, row, phase)
	}
}

// alone does a row in a sandbox of its own. All runtimes are of one mesh there, so that
// one that does not get its TPU back keeps the others waiting: then it is the only one.
func alone(t *testing.T, row faults.Row, phase faults.Phase) {
	t.Helper()
	n, rank := members, bad
	if phase != faults.Checkpoint && row.At(phase).Then == faults.Named || strands[row.ID] {
		n, rank = 1, 0
	}
	group(t, func([]step) trial.Job {
		j := trial.Job{Processes: n, Fault: row.FaultAt(phase, limit, rank), Annotations: map[string]string{}}
		if row.Lock {
			j.Annotations[handshakeAnnotation] = "lock"
		}
		if row.At(phase).Error == faults.NoAnswer {
			j.Annotations[timeoutAnnotation] = limit.String()
		}
		return j
	}, []step{{row: row, phase: phase, do: func(r *rig) error { return guestRow(r, row, phase, rank) }}})
}

// guestRow makes a checkpoint that leaves the sandbox running, in which a runtime
// misbehaves.
func guestRow(r *rig, row faults.Row, phase faults.Phase, bad int) error {
	want := row.At(phase)
	verb := row.Verb(phase)
	if row.Fault != "" && !strings.Contains(row.Fault, "ACTION") {
		_, verb, _ = strings.Cut(row.Fault, "@")
		verb, _, _ = strings.Cut(verb, ":")
	}
	image, err := r.save()
	if phase != faults.Checkpoint {
		image = "" // it is whole: the resume has failed
	}
	if want.Error == faults.Exited {
		verb = "" // it may be asked, or not any more
	}
	if !want.Later || err != nil { // else it was seen too late, and left out
		if err := wantError(want.Error, verb, image, err); err != nil {
			return err
		}
	}
	var going []int
	for rank := range r.Processes {
		if rank != bad || want.Then == faults.Running {
			going = append(going, rank)
		}
	}
	if len(going) == 0 {
		return nil
	}
	return r.goesOn(going...)
}
