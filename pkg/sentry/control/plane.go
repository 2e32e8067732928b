package control

import (
	gocontext "context"
	"sync"
	"sync/atomic"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/pipe"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/settings"
	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy"
	"tpuvisor.dev/tpuvisor/pkg/sentry/savehook"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// A Plane drives the TPU runtimes of one sandbox. The zero value is ready. One
// operation runs at a time; another that comes meanwhile waits.
type Plane struct {
	// Observe, if set, gets what happens, in order for each runtime. It is called
	// from several goroutines and must not block.
	Observe func(Event)

	// Devices is the device side. What is nil is left out, but for MayBeOpen,
	// which is tpuproxy.MayBeOpen then.
	Devices Devices

	// canceled makes the checkpoint under way fail at its next step.
	canceled atomic.Bool

	// leased, if set, reports whether the runtime with this response pipe is locked
	// by order of the operator.
	leased func(*pipe.Pipe) bool

	// attaching, if set, is told who will be given back what is owed to them, and
	// may add to that.
	attaching func(members []*member, restored bool)

	mu     sync.Mutex // held for the length of an operation
	memory memory
	pause  pauseGuard

	// detached is what the last pre-save detached, until the record is taken out
	// of the kernel or the attempt has failed.
	detached *detachment
}

// Devices are the functions of the device side that a Plane calls.
type Devices struct {
	// MayBeOpen reports, at next to no cost, whether any TPU may be open.
	MayBeOpen func(*vfs.VirtualFilesystem) bool

	// AfterRestore shows a restored sandbox the TPUs that it has now. It is called
	// once, before anything is sent.
	AfterRestore func(*kernel.Kernel) error

	// WaitFree returns when the TPUs' groups can be opened, or with an error at
	// the end of ctx. It is called once before all RESTOREs of a resume or restore.
	WaitFree func(ctx gocontext.Context, k *kernel.Kernel) error
}

// An Event is something that happened to a runtime.
type Event struct {
	Time      time.Time
	Container string
	PID, TID  int32
	Command   string
	Action    controlpb.ControlAction
	Limit     time.Duration
	Result    string // sent, acknowledged, refused, unknown or gone
	Elapsed   time.Duration
	State     controlpb.RuntimeState // as it last said
	Topology  *controlpb.TpuTopology // as it last said, or nil
	Err       error                  // nil, or a *RuntimeError
}

// Hooks returns the plane's callbacks, for savehook.Register.
func (p *Plane) Hooks() savehook.Hooks {
	return savehook.Hooks{
		Name:        "tpu",
		PreSave:     p.PreSave,
		Abort:       p.Abort,
		PostResume:  p.PostResume,
		PostRestore: p.PostRestore,
	}
}

func (p *Plane) tpuMayBeOpen(k *kernel.Kernel) bool {
	if p.Devices.MayBeOpen != nil {
		return p.Devices.MayBeOpen(k.VFS())
	}
	return tpuproxy.MayBeOpen(k.VFS())
}

func (p *Plane) note(m *member, action controlpb.ControlAction, r result, elapsed time.Duration, err error) {
	if p.Observe == nil {
		return
	}
	p.Observe(Event{
		Time: time.Now(), Container: m.process.container, PID: m.process.pid, TID: m.tid, Command: m.process.command,
		Action: action, Limit: m.limitFor(action), Result: r.String(), Elapsed: elapsed,
		State: m.state, Topology: m.active, Err: err,
	})
}

// pending reports whether something is owed to runtimes.
func (p *Plane) pending(k *kernel.Kernel) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return recordPending(k)
}

// mayBePending is pending for who must not wait for an operation: while there is
// one, something may be owed.
//
// +checklocksignore
func (p *Plane) mayBePending(k *kernel.Kernel) bool {
	if !p.mu.TryLock() {
		return true
	}
	defer p.mu.Unlock()
	return recordPending(k)
}

// specSource is what gVisor's loader is, as the kernel's Saver.
type specSource interface {
	GetContainerSpecs() map[string]*specs.Spec
}

// settingsOf returns the settings of a container, from its annotations.
func settingsOf(k *kernel.Kernel, containerID string) (settings.Settings, error) {
	source, ok := k.Saver().(specSource)
	if !ok {
		return settings.Default(), nil
	}
	spec := source.GetContainerSpecs()[k.ContainerName(containerID)]
	if spec == nil {
		return settings.Default(), nil
	}
	return settings.Parse(spec.Annotations)
}
