package faults

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Row is one fault.
type Row struct {
	ID   string // "kind/name"
	What string // what the guest, the operator or the host does

	// Fault is how libtpusim does it: the text of a fault in which ACTION stands for
	// the phase's verb, RANK for who misbehaves, and 1.01L for that many limits. The
	// runners have a scenario of the row's ID where it is empty.
	Fault string

	// Detach is what happens if it is done at CHECKPOINT, Attach if it is done at
	// RESTORE, after a resume or in a restored sandbox. Nil: it is not done there.
	Detach, Attach *Outcome

	// OneMesh makes all runtimes members of one mesh, so that RESTORE is a rendezvous.
	// Without it each is alone.
	OneMesh bool

	// Lock is the lock handshake; then a phase's verb is LOCK, or UNLOCK.
	Lock bool

	// Real makes time real: a task of the kernel ends.
	Real bool

	In Runners
}

// Runners are those that run a row.
type Runners int

// The runners.
const (
	InProcess Runners = 1 << iota
	Sandboxed
	Both = InProcess | Sandboxed
)

// Kind is the first part of the row's ID.
func (r Row) Kind() string {
	kind, _, _ := strings.Cut(r.ID, "/")
	return kind
}

// An Outcome is what must be true at the end. Whatever it is, no runtime gets a verb
// twice, every runtime that is alive is RUNNING or named in the error, and nothing is
// left over in the sandbox.
type Outcome struct {
	Error Error // what the operator is told
	Then  Then  // what becomes of the runtime that misbehaves
	// Later: the error may come with the next operation instead, since it is chance
	// whether this one sees the fault.
	Later bool
	// Others is what becomes of the others; "" is Running.
	Others Then
}

// An Error is a kind of error.
type Error string

// The kinds of error.
const (
	None        Error = ""
	Refused     Error = "refused"
	WrongState  Error = "wrong state"
	NotMessage  Error = "not a message"
	TooLarge    Error = "too large"
	NoAnswer    Error = "no answer in time"
	Closed      Error = "closed"
	Exited      Error = "exited"
	Topology    Error = "topology differs"
	NoRuntime   Error = "no runtime to ask"
	TooMany     Error = "too many runtimes"
	Lost        Error = "pipes not found again"
	Unread      Error = "earlier request unanswered"
	Reopened    Error = "TPU opened meanwhile"
	PausedTwice Error = "paused more than once"
	Exiting     Error = "sandbox exiting"
	Busy        Error = "another one is under way"
	Some        Error = "says what failed"
)

// Then is what becomes of a runtime.
type Then string

// What becomes of runtimes.
const (
	Running Then = "running" // RUNNING, with its TPU attached
	Named   Then = "named"   // alive, and not known to be RUNNING: the error names it
	Gone    Then = "gone"    // its process has ended
)

// A Phase is when a fault is done.
type Phase string

// The phases.
const (
	Checkpoint Phase = "checkpoint"
	Resume     Phase = "resume"
	Restore    Phase = "restore"
)

// Phases lists all phases.
var Phases = []Phase{Checkpoint, Resume, Restore}

// Verb is the action at which the row is done in a phase.
func (r Row) Verb(p Phase) string {
	switch {
	case r.Lock && p == Checkpoint:
		return "LOCK"
	case r.Lock:
		return "UNLOCK"
	case p == Checkpoint:
		return "CHECKPOINT"
	}
	return "RESTORE"
}

// At returns the outcome of the row in a phase, or nil.
func (r Row) At(p Phase) *Outcome {
	if p == Checkpoint {
		return r.Detach
	}
	return r.Attach
}

var limits = regexp.MustCompile(`\b(\d+(?:\.\d+)?)L\b`)

// FaultAt is the row's fault in a phase, for libtpusim: the members of ranks
// misbehave, and a runtime has the time limit given.
func (r Row) FaultAt(p Phase, limit time.Duration, ranks ...int) string {
	text := strings.ReplaceAll(r.Fault, "ACTION", r.Verb(p))
	text = limits.ReplaceAllStringFunc(text, func(times string) string {
		n, err := strconv.ParseFloat(strings.TrimSuffix(times, "L"), 64)
		if err != nil {
			panic(err) // the pattern is of numbers
		}
		return time.Duration(n * float64(limit)).String()
	})
	all := make([]string, len(ranks))
	for i, rank := range ranks {
		all[i] = strings.ReplaceAll(text, "RANK", strconv.Itoa(rank))
	}
	return strings.Join(all, ";")
}

// Find returns the row with an ID. It panics where there is none: a mistake in a
// runner.
func Find(id string) Row {
	i := slices.IndexFunc(Table, func(r Row) bool { return r.ID == id })
	if i < 0 {
		panic(fmt.Sprintf("faults: no row %q", id))
	}
	return Table[i]
}
