package control

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/kernel"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/api"
	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// Everything that is kept is bounded, since a guest decides how much of it there is.
const (
	maxOperations = 8
	maxSteps      = 5 * maxRuntimes // GETSTATE, LOCK, CHECKPOINT, RESTORE, UNLOCK
	maxEvents     = 4 * maxRuntimes
	maxKnown      = 4 * maxRuntimes
	maxPhases     = 8
)

// An operation is what the report has of one, while it is under way and after.
// The desk's mu guards it.
type operation struct {
	api.Operation
	open     map[int32]int  // the step under way of each thread, by index
	members  map[int32]bool // the threads that were asked anything; true: to stop their work
	undoFrom int            // the first step of the undo, or -1
}

func (op *operation) phase() string { return op.Phases[len(op.Phases)-1].Name }

// start makes an operation the one under way. d.mu is held.
func (d *Desk) start(kind, phase string) *operation {
	op := d.hold(kind, phase)
	d.announce(op)
	return op
}

// hold is start for an operation that may turn out to have nothing to do: nobody is
// told of it before announce. d.mu is held.
func (d *Desk) hold(kind, phase string) *operation {
	d.lastID++
	now := time.Now()
	op := &operation{
		Operation: api.Operation{ID: d.lastID, Kind: kind, Start: now, Phases: []api.Phase{{Name: phase, Start: now}}},
		open:      map[int32]int{},
		members:   map[int32]bool{},
		undoFrom:  -1,
	}
	if kind == api.KindCheckpoint {
		d.plane.canceled.Store(false)
	}
	d.current = op
	return op
}

// announce tells of an operation that was begun by hold. d.mu is held.
func (d *Desk) announce(op *operation) {
	d.emit(op, api.Event{})
	d.emit(op, api.Event{Phase: op.phase()})
}

// enter begins a phase, which ends the one before. d.mu is held.
func (d *Desk) enter(op *operation, phase string) {
	now := time.Now()
	d.endPhase(op, now)
	if len(op.Phases) == maxPhases {
		return
	}
	if phase == api.PhaseUndo {
		op.undoFrom = len(op.Steps)
		metricUndos.Increment()
	}
	op.Phases = append(op.Phases, api.Phase{Name: phase, Start: now})
	d.emit(op, api.Event{Phase: phase})
}

func (d *Desk) endPhase(op *operation, now time.Time) {
	last := &op.Phases[len(op.Phases)-1]
	if !last.End.IsZero() {
		return
	}
	last.End = now
	countPhase(last.Name, now.Sub(last.Start))
	d.emit(op, api.Event{Phase: last.Name, Ended: true})
}

// finish ends the operation. d.mu is held.
func (d *Desk) finish(op *operation) {
	op.End = time.Now()
	d.endPhase(op, op.End)
	op.Runtimes = len(op.members)
	op.open, op.members = nil, nil
	metricOperations.Increment(kindField(op.Kind), outcomeField(op.Error == ""))
	d.past = append(d.past, op)
	if len(d.past) > maxOperations {
		d.past = slices.Delete(d.past, 0, 1)
	}
	if d.current == op {
		d.current = nil
	}
	d.emit(op, api.Event{Ended: true, Error: op.Error})
}

// fail notes why the operation has failed, unless that is known already.
func (op *operation) fail(err error) {
	if err != nil && op.Error == "" {
		op.Error = oneLine(err)
	}
}

// summary is the operation in one line.
func (op *operation) summary() string {
	parts := make([]string, len(op.Phases))
	for i, p := range op.Phases {
		parts[i] = fmt.Sprintf("%s %v", p.Name, roundElapsed(p.End.Sub(p.Start)))
	}
	text := fmt.Sprintf("%s of %d runtimes: %s", op.Kind, op.Runtimes, strings.Join(parts, ", "))
	if op.Error != "" {
		text += ": failed: " + strings.TrimPrefix(op.Error, "tpu: ")
	}
	if op.Undone != "" {
		text += "; " + op.Undone
	}
	return text
}

// describeUndone says how the undo ended, in the words that an error of PreSave has
// for it.
func (op *operation) describeUndone(err error) string {
	back := op.back()
	var undone *undoError
	switch {
	case err != nil && !errors.As(err, &undone):
		return "not undone: " + oneLine(err)
	case err != nil:
		return oneLine(err)
	case len(back) == 0:
		return ""
	case len(back) > maxListed:
		back = append(back[:maxListed], fmt.Sprintf("and %d more", len(back)-maxListed))
	}
	return "undone: RUNNING again: pid " + strings.Join(back, ", ")
}

// back lists the processes of which a runtime has acknowledged the last step of the
// undo, by process ID.
func (op *operation) back() []string {
	if op.undoFrom < 0 {
		return nil
	}
	last := map[int32]api.Step{} // by thread
	for _, s := range op.Steps[op.undoFrom:] {
		last[s.TID] = s
	}
	var pids []int32
	for _, s := range last {
		if s.Result == acked.String() {
			pids = append(pids, s.PID)
		}
	}
	slices.Sort(pids)
	var names []string
	for _, pid := range slices.Compact(pids) {
		names = append(names, fmt.Sprint(pid))
	}
	return names
}

// knownState is what a runtime has last said about itself.
type knownState struct {
	state    string
	when     time.Time
	topology *api.Topology
}

// observe takes what the plane tells. It never waits for long: d.mu is held for
// moments only.
func (d *Desk) observe(e Event) {
	if e.Err != nil {
		log.Infof("tpu: %v", e.Err)
	}
	if e.Result != sent.String() {
		metricRequests.Increment(actionField(e.Action), resultField(e.Result))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	op := d.current
	if op == nil {
		return
	}
	if op.undoneBy(e) {
		d.enter(op, api.PhaseUndo)
	}
	d.learn(e)
	if step := op.note(e); step != nil {
		d.emit(op, api.Event{Phase: op.phase(), Step: step, Ended: !step.End.IsZero(), Error: step.Error})
	}
}

// undoneBy reports whether an event shows that a checkpoint is being undone.
func (op *operation) undoneBy(e Event) bool {
	if phase := op.phase(); op.Kind != api.KindCheckpoint || phase != api.PhaseDetach && phase != api.PhaseSave {
		return false
	}
	return e.Action == actRestore || e.Action == actUnlock || e.Action == actGetState && op.members[e.TID]
}

func (d *Desk) learn(e Event) {
	now := d.known[e.TID]
	if e.Result != sent.String() && e.State != controlpb.RuntimeState_STATE_UNSPECIFIED {
		now.state, now.when = tpuwire.StateName(e.State), e.Time
	}
	if t := topologyOf(e.Topology); t != nil {
		now.topology = t
	}
	if _, old := d.known[e.TID]; old || len(d.known) < maxKnown {
		d.known[e.TID] = now
	}
}

// note makes a step of an event, or ends the one that it belongs to, and returns a
// copy of it.
func (op *operation) note(e Event) *api.Step {
	op.members[e.TID] = op.members[e.TID] || e.Action == actLock || e.Action == actCheckpoint
	i, open := op.open[e.TID]
	if !open || op.Steps[i].Action != tpuwire.ActionName(e.Action) {
		if len(op.Steps) == maxSteps {
			op.StepsLost++
			return nil
		}
		i = len(op.Steps)
		op.Steps = append(op.Steps, api.Step{
			Runtime: api.Runtime{Container: e.Container, PID: e.PID, TID: e.TID, Command: validText(e.Command)},
			Action:  tpuwire.ActionName(e.Action),
			Start:   e.Time.Add(-e.Elapsed),
			Limit:   e.Limit,
		})
		op.open[e.TID] = i
	}
	step := &op.Steps[i]
	step.Result = e.Result
	if e.Result != sent.String() {
		delete(op.open, e.TID)
		step.End = e.Time
		step.Error = oneLine(e.Err)
		step.Topology = topologyOf(e.Topology)
		if e.State != controlpb.RuntimeState_STATE_UNSPECIFIED {
			step.State = tpuwire.StateName(e.State)
		}
	}
	clone := *step
	return &clone
}

func validText(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func topologyOf(t *controlpb.TpuTopology) *api.Topology {
	if t == nil {
		return nil
	}
	return &api.Topology{
		ChipArchitecture: validText(t.GetChipArchitecture()), NumChips: t.GetNumChips(),
		MeshShape: validText(t.GetMeshShape()), PJRTVersion: validText(t.GetPjrtVersion()),
	}
}

// clone returns a copy for an answer, with all steps or with those under way.
func (op *operation) clone(allSteps bool) api.Operation {
	c := op.Operation
	c.Phases = slices.Clone(op.Phases)
	if op.members != nil {
		c.Runtimes = len(op.members)
	}
	c.Steps = nil
	for _, s := range op.Steps {
		if allSteps || s.End.IsZero() {
			c.Steps = append(c.Steps, s)
		}
	}
	return c
}

// An eventLog is the latest events, and who has read them.
type eventLog struct {
	events   []api.Event
	sequence uint64    // of the latest
	told     uint64    // of the latest that was sent to a watcher
	seen     uint64    // of the latest that has arrived at a watcher
	watched  time.Time // when a watcher last asked
	watchers int       // that are being answered

	beforeSave uint64 // of the latest before the sandbox began to be saved
	askers     int    // that wait for the answers of the runtimes
}

// emit adds an event. d.mu is held.
func (d *Desk) emit(op *operation, e api.Event) {
	l := &d.log
	l.sequence++
	e.Sequence, e.Time, e.Operation, e.Kind = l.sequence, time.Now(), op.ID, op.Kind
	if len(l.events) == maxEvents {
		// Half of them at once, so that this is not done for each.
		l.events = append(l.events[:0:0], l.events[maxEvents/2:]...)
	}
	l.events = append(l.events, e)
	if e.Step == nil || l.watchers > 0 {
		d.wake() // nobody else waits for a step
	}
}

// after returns the events after a sequence number.
func (l *eventLog) after(n uint64) []api.Event {
	i, _ := slices.BinarySearchFunc(l.events, n+1, func(e api.Event, n uint64) int {
		switch {
		case e.Sequence < n:
			return -1
		case e.Sequence > n:
			return 1
		}
		return 0
	})
	return slices.Clone(l.events[i:])
}

// watching reports whether somebody watches, or is about to ask again.
func (l *eventLog) watching() bool {
	return l.watchers > 0 || time.Since(l.watched) < watcherTime
}

// watcherTime is how long the end of a save waits for a watcher at the most.
const watcherTime = time.Second

// awaitWatcher lets a command see how the runtimes have answered: a sandbox that is
// saved and then ends could not tell it any more. The command has had the time of the
// save to ask.
func (d *Desk) awaitWatcher(k *kernel.Kernel) {
	d.mu.Lock()
	l := &d.log
	watched := l.watching()
	d.mu.Unlock()
	d.await(k, watcherTime, func() bool {
		return l.askers == 0 && (!watched || l.seen >= l.beforeSave)
	})
}

// readerTime is how long a sandbox that is lost stays for someone to read why.
const readerTime = 500 * time.Millisecond

func (d *Desk) awaitReader(k *kernel.Kernel) {
	d.mu.Lock()
	before := d.read
	upTo := d.log.sequence
	d.mu.Unlock()
	d.await(k, readerTime, func() bool {
		return d.read > before && d.readers == 0 && (!d.log.watching() || d.log.told >= upTo)
	})
}
