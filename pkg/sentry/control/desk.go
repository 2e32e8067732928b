package control

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/kernel"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/api"
	"tpuvisor.dev/tpuvisor/pkg/sentry/savehook"
)

// A Desk stands between a Plane and the operator: it keeps a report of what the
// plane does, answers the calls of commands on the host, and lets one operation at
// a time begin.
//
// All its methods may be called from any goroutine.
type Desk struct {
	plane *Plane

	mu      sync.Mutex
	changed chan struct{} // made by who waits, closed by wake
	current *operation
	past    []*operation // the latest last
	lastID  uint64
	log     eventLog
	known   map[int32]knownState // by thread ID
	gate    gate
	lease   lease
	readers int // calls that wait for an outcome
	read    int // outcomes that were read
}

// NewDesk returns a desk for a plane that is to be called through it only.
func NewDesk(p *Plane) *Desk {
	d := &Desk{plane: p, known: map[int32]knownState{}}
	p.Observe = d.observe
	p.leased = d.leased
	p.attaching = d.attaching
	return d
}

// Hooks returns the callbacks, for savehook.Register.
func (d *Desk) Hooks() savehook.Hooks {
	return savehook.Hooks{
		Name:        "tpu",
		PreSave:     d.preSave,
		Abort:       d.abort,
		Saved:       d.saved,
		PostResume:  d.postResume,
		PostRestore: d.postRestore,
	}
}

// wake tells everyone who waits that something has changed. d.mu is held.
func (d *Desk) wake() {
	if d.changed != nil {
		close(d.changed)
		d.changed = nil
	}
}

// await waits until done says so, which is called with d.mu held. It gives up, and
// returns false, when the time is over or the sandbox ends.
func (d *Desk) await(k *kernel.Kernel, limit time.Duration, done func() bool) bool {
	end := time.NewTimer(limit)
	defer end.Stop()
	look := time.NewTicker(lookEvery) // the end of a sandbox, or of a gate, wakes nobody
	defer look.Stop()
	for {
		d.mu.Lock()
		if done() {
			d.mu.Unlock()
			return true
		}
		if d.changed == nil {
			d.changed = make(chan struct{})
		}
		changed := d.changed
		d.mu.Unlock()
		select {
		case <-changed:
		case <-look.C:
			if k.TaskSet().IsExiting() {
				return false
			}
		case <-end.C:
			return false
		}
	}
}

// forever is longer than anything that is waited for.
const forever = 1000 * time.Hour

// begin makes a new operation the one under way, after the one that is, and when
// the gate is open. Nobody is told of it yet.
func (d *Desk) begin(k *kernel.Kernel, kind, phase string) (*operation, error) {
	var op *operation
	d.await(k, forever, func() bool {
		if d.current == nil && !d.gate.shut() {
			op = d.hold(kind, phase)
		}
		return op != nil
	})
	if op == nil {
		return nil, ErrSandboxExiting
	}
	return op, nil
}

// tell tells of an operation that has begun.
func (d *Desk) tell(op *operation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.announce(op)
}

// tryBegin is begin for what can be refused at once.
func (d *Desk) tryBegin(kind, phase string) (*operation, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.busy(); err != nil {
		return nil, err
	}
	if d.gate.shut() {
		return nil, errGateShut
	}
	return d.start(kind, phase), nil
}

// busy says what is under way, or nil. d.mu is held.
func (d *Desk) busy() error {
	if d.current == nil {
		return nil
	}
	return fmt.Errorf("%w: a %s (phase %s), for %v; wait for it to end and try again",
		ErrBusy, d.current.Kind, d.current.phase(), roundElapsed(time.Since(d.current.Start)))
}

func (d *Desk) preSave(k *kernel.Kernel) error {
	if !d.plane.tpuMayBeOpen(k) {
		return d.plane.PreSave(k)
	}
	op, err := d.begin(k, api.KindCheckpoint, api.PhaseDetach)
	if err != nil {
		return fmt.Errorf("tpu: %w", err)
	}
	d.tell(op)
	err = d.plane.PreSave(k)
	if err == nil && !d.enterSave(op) {
		err = join(fmt.Errorf("tpu: %w", ErrCanceled), d.plane.Abort(k, ErrCanceled))
	}
	if err != nil {
		d.end(op, err)
		return err
	}
	d.saveLease(k)
	return nil
}

// enterSave makes the checkpoint one that cannot be canceled any more, and returns
// false if it has been before.
func (d *Desk) enterSave(op *operation) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.plane.canceled.Load() {
		return false
	}
	d.enter(op, api.PhaseSave)
	d.log.beforeSave = d.log.sequence
	return true
}

func (d *Desk) abort(k *kernel.Kernel, cause error) error {
	op := d.underWay(api.KindCheckpoint)
	dropLease(k)
	err := d.plane.Abort(k, cause)
	if op != nil {
		d.mu.Lock()
		op.Undone = op.describeUndone(err)
		d.mu.Unlock()
		d.end(op, cause)
	}
	return err
}

func (d *Desk) saved(k *kernel.Kernel) {
	if op := d.underWay(api.KindCheckpoint); op != nil {
		d.end(op, nil)
		d.awaitWatcher(k)
	}
}

// postResume is called after a save that leaves the sandbox running, while that
// checkpoint is still under way, and after a resume. A resume that runsc's own
// command makes goes on in the background, so that the command does not hold the
// container's lock for as long as it takes.
func (d *Desk) postResume(k *kernel.Kernel) error {
	if op := d.underWay(api.KindCheckpoint); op != nil {
		d.mu.Lock()
		d.enter(op, api.PhaseAttach)
		d.mu.Unlock()
		dropLease(k)
		err := d.plane.PostResume(k)
		d.mu.Lock()
		op.fail(err)
		d.mu.Unlock()
		return err
	}
	op, background, err := d.beginResume(k)
	if err != nil {
		return fmt.Errorf("tpu: %w", err)
	}
	if !d.plane.pending(k) {
		d.forget(op)
		return nil
	}
	d.tell(op)
	dropLease(k)
	attach := func() error {
		err := d.plane.PostResume(k)
		d.end(op, err)
		return err
	}
	if background {
		go func() { _ = attach() }() // its outcome is in the report
		return nil
	}
	return attach()
}

// beginResume is begin for a resume; one that holds the gate itself goes through it.
func (d *Desk) beginResume(k *kernel.Kernel) (op *operation, background bool, err error) {
	d.mu.Lock()
	if d.gate.shut() && d.gate.purpose == api.ForResume && d.current == nil {
		op = d.hold(api.KindResume, api.PhaseAttach)
	}
	d.mu.Unlock()
	if op != nil {
		return op, true, nil
	}
	op, err = d.begin(k, api.KindResume, api.PhaseAttach)
	return op, false, err
}

func (d *Desk) postRestore(k *kernel.Kernel) error {
	op, err := d.begin(k, api.KindRestore, api.PhaseAttach)
	if err != nil {
		return fmt.Errorf("tpu: %w", err)
	}
	if !d.plane.pending(k) {
		defer d.forget(op)
		return d.plane.PostRestore(k)
	}
	d.tell(op)
	d.noteLoad(op)
	d.takeLease(k)
	err = d.plane.PostRestore(k)
	d.end(op, err)
	if err != nil {
		// gVisor ends the sandbox now. Whoever waits for the TPUs is told first.
		d.awaitReader(k)
	}
	return err
}

// noteLoad puts the time in which the image was loaded before the operation.
func (d *Desk) noteLoad(op *operation) {
	began := savehook.LoadBegan()
	if began.IsZero() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	op.Phases = append([]api.Phase{{Name: api.PhaseLoad, Start: began, End: op.Start}}, op.Phases...)
	op.Start = began
	countPhase(api.PhaseLoad, op.Phases[1].Start.Sub(began))
}

// underWay returns the operation under way, if it is of that kind.
func (d *Desk) underWay(kind string) *operation {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.current == nil || d.current.Kind != kind {
		return nil
	}
	return d.current
}

// end ends the operation under way, and writes the one line that the log has of it.
func (d *Desk) end(op *operation, err error) {
	d.mu.Lock()
	op.fail(err)
	d.finish(op)
	line := op.summary()
	d.mu.Unlock()
	log.Infof("tpu: %s", line)
	d.checkLease()
}

// forget ends an operation that turned out to have nothing to do.
func (d *Desk) forget(op *operation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.current == op {
		d.current = nil
		d.wake()
	}
}

// oneLine makes one line of an error's text, and one of a bearable size.
func oneLine(err error) string {
	if err == nil {
		return ""
	}
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	if len(text) > maxErrorText {
		text = strings.ToValidUTF8(text[:maxErrorText], "") + "..."
	}
	return text
}

// maxErrorText is more than the longest error that lists maxListed failures.
const maxErrorText = 16 << 10
