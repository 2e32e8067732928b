// Package api has what a command on the host and the sentry say to each other: the
// names of the operations of the control-socket method State.TPU, their arguments
// and their results.
//
// It imports the standard library only. Fields are only ever added: the sandbox and
// the command may be of different versions. Texts of a guest are as the guest gave
// them, but for errors, which are safe for a terminal.
package api

import "time"

// The operations. Each is answered while a checkpoint, a resume or a restore is
// under way, unless it says so.
const (
	// OpWatch takes a Watch and returns Events: what has happened since, or an
	// empty list after a while.
	OpWatch = "watch"
	// OpAnswered takes nothing and returns an Operation with all its steps: the
	// checkpoint under way, or the next, when its runtimes have answered; or one
	// without an ID after a while.
	OpAnswered = "answered"
	// OpStatus takes nothing and returns a Status.
	OpStatus = "status"
	// OpTrace takes nothing and returns a Trace: the last operations with all
	// their steps.
	OpTrace = "trace"
	// OpPS takes nothing and returns a []Process.
	OpPS = "ps"
	// OpState takes a StateArgs, asks each runtime for its state, and returns a
	// []RuntimeState. It is refused while an operation is under way.
	OpState = "state"
	// OpWait takes a Wait and returns an Outcome.
	OpWait = "wait"
	// OpSettle takes nothing and returns a Settled, once the undo of a checkpoint
	// that has failed is done, or after a while.
	OpSettle = "settle"
	// OpCancel takes a Cancel and returns a Canceled: it makes a checkpoint end
	// with an error, if it has not gone too far.
	OpCancel = "cancel"
	// OpGate takes a Gate and returns a Gated: nothing begins from then on until
	// OpOpen, or until the gate has not been taken anew for GateTime. It is
	// refused while an operation is under way.
	OpGate = "gate"
	// OpOpen takes a Gated and returns nothing.
	OpOpen = "open"
	// OpLock takes a Lock and returns a Locked. It is refused while another
	// operation is under way.
	OpLock = "lock"
	// OpUnlock takes nothing and returns a Locked. It is refused while another
	// operation is under way.
	OpUnlock = "unlock"
)

// Limits of the operations that wait. A command that wants to wait longer asks again.
const (
	WaitTime = 10 * time.Second
	GateTime = 10 * time.Second
)

// The kinds of Operation.
const (
	KindCheckpoint = "checkpoint"
	KindResume     = "resume"
	KindRestore    = "restore"
	KindState      = "state"
	KindLock       = "lock"
	KindUnlock     = "unlock"
)

// The phases of an Operation.
const (
	PhaseDetach = "detach" // the runtimes are asked to let go of their TPUs
	PhaseSave   = "save"   // the sandbox is saved
	PhaseLoad   = "load"   // the sandbox is loaded from an image
	PhaseAttach = "attach" // the runtimes are asked to take their TPUs back
	PhaseUndo   = "undo"   // a failed checkpoint is undone
	PhaseAsk    = "ask"    // the runtimes are asked anything else
)

// A Runtime says which one it is.
type Runtime struct {
	Container string `json:"container"`
	PID       int32  `json:"pid"` // in the sandbox's root PID namespace, as TID is
	TID       int32  `json:"tid"`
	Command   string `json:"command"`
}

// A Topology is what a runtime says about its TPUs; what it leaves out is zero.
type Topology struct {
	ChipArchitecture string `json:"chipArchitecture,omitempty"`
	NumChips         int32  `json:"numChips,omitempty"`
	MeshShape        string `json:"meshShape,omitempty"`
	PJRTVersion      string `json:"pjrtVersion,omitempty"`
}

// A Step is one request to one runtime.
type Step struct {
	Runtime
	Action   string        `json:"action"` // "CHECKPOINT"
	Start    time.Time     `json:"start"`
	End      time.Time     `json:"end,omitzero"` // zero while it is under way
	Limit    time.Duration `json:"limitNanoseconds"`
	Result   string        `json:"result"`          // sent, acknowledged, refused, unknown or gone
	State    string        `json:"state,omitempty"` // as the runtime said: "DETACHED"
	Topology *Topology     `json:"topology,omitempty"`
	Error    string        `json:"error,omitempty"`
}

// A Phase is a part of an operation.
type Phase struct {
	Name  string    `json:"name"`
	Start time.Time `json:"start"`
	End   time.Time `json:"end,omitzero"`
}

// An Operation is one checkpoint, resume, restore, state, lock or unlock.
type Operation struct {
	ID     uint64    `json:"id"` // counts up from 1, in each sandbox
	Kind   string    `json:"kind"`
	Start  time.Time `json:"start"`
	End    time.Time `json:"end,omitzero"`
	Phases []Phase   `json:"phases"`

	// Runtimes is how many have taken part. A runtime that has let go of its TPU
	// and not got it back is Detached.
	Runtimes int `json:"runtimes"`

	Error string `json:"error,omitempty"`
	// Undone says how an undo ended.
	Undone string `json:"undone,omitempty"`

	// Steps are all requests in a Trace, and those under way in a Status. StepsLost
	// is how many more there were.
	Steps     []Step `json:"steps,omitempty"`
	StepsLost int    `json:"stepsLost,omitempty"`
}

// A Lease is what holds the runtimes locked.
type Lease struct {
	Until    time.Time     `json:"until"`
	Duration time.Duration `json:"durationNanoseconds"`
	Keep     bool          `json:"keep"` // over a checkpoint and a restore
	Runtimes int           `json:"runtimes"`
}

// A Status is what goes on in the sandbox.
type Status struct {
	Now      time.Time   `json:"now"`
	Current  *Operation  `json:"current,omitempty"`
	Last     []Operation `json:"last,omitempty"` // those that ended, the latest first
	Lease    *Lease      `json:"lease,omitempty"`
	Sequence uint64      `json:"sequence"` // of the latest Event
}

// A Trace is the last operations, the latest first.
type Trace struct {
	Operations []Operation `json:"operations"`
}

// A Watch asks for the events after one. Since a command that asks for those after
// N has seen all up to N, the sandbox knows what has arrived.
type Watch struct {
	After uint64 `json:"after"`
	// Begin says that the command is about to watch: it gets no events, and what to
	// ask after.
	Begin bool `json:"begin,omitempty"`
}

// Events are what has happened, in order.
type Events struct {
	Events   []Event   `json:"events,omitempty"`
	Now      time.Time `json:"now"`
	Sequence uint64    `json:"sequence"` // what to ask after next
}

// An Event is the beginning or the end of an operation, a phase or a step.
type Event struct {
	Sequence  uint64    `json:"sequence"`
	Time      time.Time `json:"time"`
	Operation uint64    `json:"operation"`
	Kind      string    `json:"kind"`
	Phase     string    `json:"phase,omitempty"`
	Step      *Step     `json:"step,omitempty"` // none: of the operation or phase
	Ended     bool      `json:"ended,omitempty"`
	Error     string    `json:"error,omitempty"`
}

// A Process is one that holds a TPU.
type Process struct {
	Container string `json:"container"`
	PID       int32  `json:"pid"`
	Command   string `json:"command"`
	// Devices are the paths of its open TPUs.
	Devices []string `json:"devices"`
	Threads []Thread `json:"controlThreads,omitempty"`
	// Problem says why nobody can be asked to let go of its TPUs.
	Problem string `json:"problem,omitempty"`
	// Inherited says that all its open TPUs are those of a process with a runtime.
	Inherited bool `json:"inherited,omitempty"`
}

// A Thread is a runtime's control thread.
type Thread struct {
	TID          int32     `json:"tid"`
	RequestFD    int32     `json:"requestFD"`
	ResponseFD   int32     `json:"responseFD"`
	RequestPipe  uint64    `json:"requestPipe"` // inode numbers
	ResponsePipe uint64    `json:"responsePipe"`
	State        string    `json:"state,omitempty"` // as it last said
	StateTime    time.Time `json:"stateTime,omitzero"`
	Topology     *Topology `json:"topology,omitempty"`
}

// StateArgs limit the time for the answers; zero is 5 seconds.
type StateArgs struct {
	Limit time.Duration `json:"limitNanoseconds"`
}

// A RuntimeState is what one runtime answered.
type RuntimeState struct {
	Runtime
	State    string        `json:"state,omitempty"`
	Topology *Topology     `json:"topology,omitempty"`
	Elapsed  time.Duration `json:"elapsedNanoseconds"`
	Error    string        `json:"error,omitempty"`
}

// A Wait asks for the end of what gives TPUs back. With After it is about
// operations with a larger ID only.
type Wait struct {
	After uint64 `json:"after,omitempty"`
}

// An Outcome says whether the TPUs are back. One that is not Done may be asked
// for again.
type Outcome struct {
	Done  bool   `json:"done"`
	Error string `json:"error,omitempty"`
	// Waiting says what is waited for.
	Waiting string `json:"waiting,omitempty"`
	// Paused says that it is for somebody to resume the sandbox.
	Paused bool `json:"paused,omitempty"`
}

// Settled says how a checkpoint that failed was undone.
type Settled struct {
	Done   bool   `json:"done"`
	Undone string `json:"undone,omitempty"`
}

// Cancel is about the checkpoint under way, if that has not begun before Since.
type Cancel struct {
	Since time.Time `json:"since,omitzero"`
}

// Canceled says whether the checkpoint will end with an error; if not, it has not
// begun, or it has gone too far, which Phase tells.
type Canceled struct {
	Canceled bool   `json:"canceled"`
	Phase    string `json:"phase,omitempty"`
}

// A Gate is to be taken for a pause or a resume. Token is that of a gate that is
// held already, to hold it longer.
type Gate struct {
	For   string `json:"for"` // ForPause or ForResume
	Token uint64 `json:"token,omitempty"`
}

// What a Gate is for.
const (
	ForPause  = "pause"
	ForResume = "resume"
)

// Gated is a gate that was taken.
type Gated struct {
	Token uint64 `json:"token"`
	// Last is the ID of the last operation so far.
	Last uint64 `json:"last"`
}

// A Lock is to hold all runtimes.
type Lock struct {
	Lease time.Duration `json:"leaseNanoseconds"`
	Keep  bool          `json:"keep"`
}

// Locked lists the runtimes that were locked or unlocked.
type Locked struct {
	Runtimes []Runtime `json:"runtimes"`
	Lease    *Lease    `json:"lease,omitempty"`
}
