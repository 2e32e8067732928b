package libtpusim

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"tpuvisor.dev/tpuvisor/pkg/guest"
	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

const (
	running  = controlpb.RuntimeState_STATE_RUNNING
	locked   = controlpb.RuntimeState_STATE_LOCKED
	detached = controlpb.RuntimeState_STATE_DETACHED

	lock       = controlpb.ControlAction_ACTION_LOCK
	checkpoint = controlpb.ControlAction_ACTION_CHECKPOINT
	restore    = controlpb.ControlAction_ACTION_RESTORE
	unlock     = controlpb.ControlAction_ACTION_UNLOCK
)

// ErrWedged is what became of an operation that never ended: the runtime was sent
// a RESTORE that it must never be sent. Do returns it with its context's end.
var ErrWedged = errors.New("the runtime is wedged by a RESTORE that it was not waiting for")

// TPU is the hardware that a runtime drives. Its methods are called by Serve, one
// at a time.
type TPU interface {
	// Detach copies the TPU's memory into the process, and closes the devices.
	Detach() error
	// Attach opens the devices, and copies the memory back.
	Attach() error
	// Topology describes the devices that are open; while none is, those that
	// would be opened.
	Topology() *controlpb.TpuTopology
}

// Mesh is what the members of a job share: RESTORE is a rendezvous.
type Mesh interface {
	// Detached says that the member will take part in the next rendezvous.
	Detached(rank int)
	// Restore returns when every detached member has called it.
	Restore(ctx context.Context, rank int) error
}

// Hold is what keeps a workload from using the TPU while it is detached.
type Hold string

const (
	// HoldSelf: the runtime lets operations end before CHECKPOINT, and holds
	// further ones back until RESTORE is done.
	HoldSelf Hold = "self"
	// HoldNone: nothing does, as in real runtimes. An operation in flight at
	// CHECKPOINT is cancelled, one begun before RESTORE is done is an error.
	HoldNone Hold = "none"
)

// Config is what a Runtime is made of. Rank and TPU must be set.
type Config struct {
	Rank   int
	TPU    TPU
	Mesh   Mesh // nil: the runtime is the only member
	Hold   Hold // "" is HoldSelf
	Faults Faults

	// Log is told every request, before it is acted upon.
	Log func(Request)
	// Wedged is told that the runtime is of no use any more.
	Wedged func(why error)
	// Abort ends the process, as runtimes do in a fault. If it returns, the
	// control thread ends with ErrAborted.
	Abort func(reason string)
	// FillRequests writes to the runtime's own request pipe until it is full.
	FillRequests func() error
}

// Runtime is one simulated TPU runtime. Make one with New; it starts RUNNING.
type Runtime struct {
	Config
	machine *guest.Machine
	wedged  chan struct{} // closed when the runtime is wedged

	mu       sync.Mutex
	seen     map[controlpb.ControlAction]int
	foreseen [2]int // the last request that a fault came ahead of: action and number
}

// New returns a runtime whose TPU is attached.
func New(c Config) *Runtime {
	if c.Mesh == nil {
		c.Mesh = NewMesh()
	}
	return &Runtime{
		Config: c,
		machine: guest.NewMachine(guest.Config{
			Device: device{c.Rank, c.TPU, c.Mesh},
			Hold:   c.Hold != HoldNone,
		}),
		wedged: make(chan struct{}),
		seen:   make(map[controlpb.ControlAction]int),
	}
}

// device is the TPU as one of a mesh.
type device struct {
	rank int
	tpu  TPU
	mesh Mesh
}

func (d device) Topology() *controlpb.TpuTopology { return d.tpu.Topology() }

func (d device) Detach(context.Context) error {
	if err := d.tpu.Detach(); err != nil {
		return err
	}
	d.mesh.Detached(d.rank)
	return nil
}

func (d device) Attach(ctx context.Context, _ *controlpb.TpuTopology) error {
	if err := d.mesh.Restore(ctx, d.rank); err != nil {
		return err
	}
	return d.tpu.Attach()
}

// State is the state that GETSTATE would tell. It may be called at any time.
func (r *Runtime) State() controlpb.RuntimeState { return r.machine.State() }

// IsWedged reports whether a RESTORE came that must never come.
func (r *Runtime) IsWedged() bool {
	select {
	case <-r.wedged:
		return true
	default:
		return false
	}
}

// Do runs one operation on the TPU. It waits while operations are held, and then
// returns what op returns; or guest.ErrDetached or guest.ErrCancelled, after which
// a real runtime ends the process; or the context's error if that ends first. It
// may be called from any goroutine.
func (r *Runtime) Do(ctx context.Context, op func() error) error {
	if r.IsWedged() {
		<-ctx.Done()
		return errors.Join(ErrWedged, context.Cause(ctx))
	}
	return r.machine.Do(ctx, func(context.Context) error { return op() })
}

// wedgedBy reports whether the runtime is of no use any more: a RESTORE when there
// is nothing to restore makes it so. It answers nothing from then on, and whoever
// uses the TPU waits for ever. Only Serve calls it.
func (r *Runtime) wedgedBy(a controlpb.ControlAction) bool {
	wedged := r.IsWedged()
	if !wedged && a == restore && r.State() != detached {
		close(r.wedged)
		if r.Wedged != nil {
			r.Wedged(fmt.Errorf("%w: it is %s", ErrWedged, tpuwire.StateName(r.State())))
		}
		return true
	}
	return wedged
}
