package libtpusim

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

const (
	running   = controlpb.RuntimeState_STATE_RUNNING
	locked    = controlpb.RuntimeState_STATE_LOCKED
	detached  = controlpb.RuntimeState_STATE_DETACHED
	restoring = controlpb.RuntimeState_STATE_RESTORING
	faulted   = controlpb.RuntimeState_STATE_FAULTED

	lock       = controlpb.ControlAction_ACTION_LOCK
	checkpoint = controlpb.ControlAction_ACTION_CHECKPOINT
	restore    = controlpb.ControlAction_ACTION_RESTORE
	unlock     = controlpb.ControlAction_ACTION_UNLOCK
	getState   = controlpb.ControlAction_ACTION_GETSTATE
)

// What Do says of an operation that the TPU did not do. A real runtime aborts the
// process in both cases.
var (
	ErrDetached  = errors.New("TPU operation while the TPU is detached")
	ErrCancelled = errors.New("TPU operation cancelled: the TPU was detached meanwhile")
)

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
	// Abort ends the process, as runtimes do in a fault. If it returns, the
	// control thread ends with ErrAborted.
	Abort func(reason string)
	// FillRequests writes to the runtime's own request pipe until it is full.
	FillRequests func() error
}

// Runtime is one simulated TPU runtime. Make one with New; it starts RUNNING.
type Runtime struct {
	Config

	mu       sync.Mutex
	changed  *sync.Cond // signalled when anything below changes
	state    controlpb.RuntimeState
	relock   bool // RESTORE leads back to LOCKED
	wedged   bool // a second RESTORE came: nothing is answered any more
	held     bool // operations wait
	inFlight int  // operations
	epoch    int  // counts the CHECKPOINTs, to tell operations cut by one
	seen     map[controlpb.ControlAction]int
	foreseen [2]int // the last request that a fault came ahead of: action and number
}

// New returns a runtime whose TPU is attached.
func New(c Config) *Runtime {
	if c.Mesh == nil {
		c.Mesh = NewMesh()
	}
	if c.Hold == "" {
		c.Hold = HoldSelf
	}
	r := &Runtime{Config: c, state: running, seen: make(map[controlpb.ControlAction]int)}
	r.changed = sync.NewCond(&r.mu)
	return r
}

// State is the state that GETSTATE would tell. It may be called at any time.
func (r *Runtime) State() controlpb.RuntimeState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

// Wedged reports whether a RESTORE came that must never come.
func (r *Runtime) Wedged() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wedged
}

// Do runs one operation on the TPU. It waits while operations are held, and then
// returns what op returns, or ErrDetached or ErrCancelled; or the context's error
// if that ends first. It may be called from any goroutine.
func (r *Runtime) Do(ctx context.Context, op func() error) error {
	stop := context.AfterFunc(ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.changed.Broadcast()
	})
	defer stop()
	epoch, err := r.begin(ctx)
	if err != nil {
		return err
	}
	err = op()
	if r.end() != epoch {
		return ErrCancelled
	}
	return err
}

func (r *Runtime) begin(ctx context.Context) (epoch int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.held && ctx.Err() == nil {
		r.changed.Wait()
	}
	if r.held {
		return 0, context.Cause(ctx)
	}
	if r.state != running {
		return 0, fmt.Errorf("%w: the runtime is %s", ErrDetached, tpuwire.StateName(r.state))
	}
	r.inFlight++
	return r.epoch, nil
}

func (r *Runtime) end() (epoch int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inFlight--
	r.changed.Broadcast()
	return r.epoch
}

// drain holds operations back and waits for those in flight.
func (r *Runtime) drain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = true
	for r.inFlight > 0 {
		r.changed.Wait()
	}
}

func (r *Runtime) become(state controlpb.RuntimeState, held bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state, r.held = state, held
	if state == detached {
		r.epoch++
	}
	r.changed.Broadcast()
}

// act does what a request asks, and returns the answer.
func (r *Runtime) act(ctx context.Context, req *controlpb.ControlRequest) *controlpb.ControlResponse {
	switch req.GetAction() {
	case getState:
		return r.done(nil)
	case lock:
		return r.lock()
	case unlock:
		return r.unlock()
	case checkpoint:
		return r.checkpoint()
	case restore:
		return r.restore(ctx, req.GetExpectedTopology())
	default:
		return r.done(fmt.Errorf("unknown action %s", tpuwire.ActionName(req.GetAction())))
	}
}

// done is the answer at the end of an action.
func (r *Runtime) done(err error) *controlpb.ControlResponse {
	answer := &controlpb.ControlResponse{
		Success:        proto.Bool(err == nil),
		CurrentState:   r.State().Enum(),
		ActiveTopology: r.TPU.Topology(),
	}
	if err != nil {
		answer.ErrorMessage = proto.String(err.Error())
	}
	return answer
}

func (r *Runtime) wrongState(a controlpb.ControlAction) *controlpb.ControlResponse {
	return r.done(fmt.Errorf("%s in state %s", tpuwire.ActionName(a), tpuwire.StateName(r.State())))
}

func (r *Runtime) lock() *controlpb.ControlResponse {
	if r.State() != running {
		return r.wrongState(lock)
	}
	r.drain()
	r.become(locked, true)
	return r.done(nil)
}

func (r *Runtime) unlock() *controlpb.ControlResponse {
	if s := r.State(); s != running && s != locked {
		return r.wrongState(unlock)
	}
	r.become(running, false)
	return r.done(nil)
}

func (r *Runtime) checkpoint() *controlpb.ControlResponse {
	before := r.State()
	if before != running && before != locked {
		r.become(faulted, false)
		return r.wrongState(checkpoint)
	}
	self := r.Hold == HoldSelf
	if self {
		r.drain()
	}
	r.become(detached, self) // from here on, an operation waits or is an error
	if err := r.TPU.Detach(); err != nil {
		r.become(before, before == locked)
		return r.done(err)
	}
	r.relock = before == locked
	r.Mesh.Detached(r.Rank)
	answer := r.done(nil)
	answer.Telemetry = &controlpb.ControlResponse_CheckpointStats{CheckpointStats: &controlpb.CheckpointStats{}}
	return answer
}

func (r *Runtime) restore(ctx context.Context, expected *controlpb.TpuTopology) *controlpb.ControlResponse {
	if err := compare(expected, r.TPU.Topology()); err != nil {
		return r.done(err)
	}
	self := r.Hold == HoldSelf
	r.become(restoring, self)
	if err := r.Mesh.Restore(ctx, r.Rank); err != nil {
		r.become(faulted, false)
		return r.done(err)
	}
	if err := r.TPU.Attach(); err != nil {
		r.become(faulted, false)
		return r.done(err)
	}
	if r.relock {
		r.become(locked, true)
	} else {
		r.become(running, false)
	}
	answer := r.done(nil)
	answer.Telemetry = &controlpb.ControlResponse_RestoreStats{RestoreStats: &controlpb.RestoreStats{}}
	return answer
}

// wedgedBy reports whether the runtime is of no use any more: a RESTORE when there
// is nothing to restore makes it so. It answers nothing from then on, and whoever
// uses the TPU waits for ever.
func (r *Runtime) wedgedBy(a controlpb.ControlAction) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a == restore && r.state != detached {
		r.wedged, r.held = true, true
	}
	return r.wedged
}

// compare checks the fields of the topology that are expected at all.
func compare(want, have *controlpb.TpuTopology) error {
	switch {
	case want == nil:
		return nil
	case want.ChipArchitecture != nil && want.GetChipArchitecture() != have.GetChipArchitecture():
		return fmt.Errorf("chip architecture is %q here, not %q", have.GetChipArchitecture(), want.GetChipArchitecture())
	case want.NumChips != nil && want.GetNumChips() != have.GetNumChips():
		return fmt.Errorf("there are %d chips here, not %d", have.GetNumChips(), want.GetNumChips())
	case want.MeshShape != nil && want.GetMeshShape() != have.GetMeshShape():
		return fmt.Errorf("mesh shape is %q here, not %q", have.GetMeshShape(), want.GetMeshShape())
	case want.PjrtVersion != nil && want.GetPjrtVersion() != have.GetPjrtVersion():
		return fmt.Errorf("PjRT version is %q here, not %q", have.GetPjrtVersion(), want.GetPjrtVersion())
	}
	return nil
}
