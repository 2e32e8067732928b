package inprocess

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/proto"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"
	"gvisor.dev/gvisor/pkg/waiter"

	"tpuvisor.dev/tpuvisor/internal/kerneltest"
	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
	"tpuvisor.dev/tpuvisor/test/libtpusim"
)

// The FDs that guests use.
const (
	requestFD, responseFD       int32 = 4, 5
	ownRequestFD, ownResponseFD int32 = 6, 7
	deviceFD                    int32 = 9
)

// A member is a process with a TPU, and a runtime that a goroutine plays. The runtime
// outlives its kernel: after a load it serves the pipes of the new one.
type member struct {
	w       *world
	rank    int
	command string
	pid     kernel.ThreadID
	tg      *kernel.ThreadGroup
	thread  *kernel.Task // the control thread
	tpu     *tpu
	faults  libtpusim.Faults
	runtime *libtpusim.Runtime

	requests, answers *end
	hung              bool        // the control thread is alive, and does nothing any more
	ended             atomic.Bool // the control thread has ended
	dead              atomic.Bool // the process has ended
	serving           atomic.Bool

	mu  sync.Mutex
	log []libtpusim.Request
}

// tpu is the simulated hardware: an open device in the process's FD table.
type tpu struct {
	m      *member
	fd     int32
	detach func() // a test's own, before the device is closed
}

func (t *tpu) table() *kernel.FDTable { return kerneltest.TableOf(t.m.thread) }

func (t *tpu) Detach() error {
	if t.detach != nil {
		t.detach()
	}
	if file := t.table().Remove(t.m.w.k.Ctx, t.fd); file != nil {
		file.DecRef(t.m.w.k.Ctx)
	}
	return nil
}

func (t *tpu) Attach() error {
	file := t.m.w.k.Device(t.m.w.t, uint32(t.m.rank))
	defer file.DecRef(t.m.w.k.Ctx)
	_, err := t.table().NewFDAt(t.m.w.k.Ctx, t.fd, file, kernel.FDFlags{})
	return err
}

func (t *tpu) isOpen() bool {
	file, _ := t.table().Get(t.fd)
	if file == nil {
		return false
	}
	file.DecRef(t.m.w.k.Ctx)
	return true
}

func (*tpu) Topology() *controlpb.TpuTopology {
	return &controlpb.TpuTopology{ChipArchitecture: proto.String("v5e"), NumChips: proto.Int32(1), MeshShape: proto.String("1x1x1")}
}

// newMember makes a process with a runtime. faults are of the whole job.
func (w *world) newMember(t *testing.T, container, faults string) *member {
	t.Helper()
	m := &member{w: w, rank: len(w.members), command: fmt.Sprintf("rank%d", len(w.members))}
	m.tg = w.k.Process(t, m.command, container)
	m.pid = w.k.RootPIDNamespace().IDOfThreadGroup(m.tg)
	leader := m.tg.Leader()
	requests, sendRequests := w.k.Pipe(t)
	receiveAnswers, answers := w.k.Pipe(t)
	for fd, file := range map[int32]kerneltest.File{
		requestFD: sendRequests, responseFD: receiveAnswers, ownRequestFD: requests, ownResponseFD: answers,
		deviceFD: w.k.Device(t, uint32(m.rank)),
	} {
		w.k.Install(t, leader, fd, file)
	}
	name := tpuwire.ThreadName{RequestFD: requestFD, ResponseFD: responseFD}
	m.thread = w.k.Thread(t, m.tg, name.String(), nil)
	m.tpu = &tpu{m: m, fd: deviceFD}
	parsed, err := libtpusim.ParseFaults(faults)
	if err != nil {
		t.Fatal(err)
	}
	m.faults = parsed
	m.takeEnds()
	w.members = append(w.members, m)
	return m
}

// begin makes the runtime, in the bubble in which it is used.
func (m *member) begin() {
	m.runtime = libtpusim.New(libtpusim.Config{
		Rank: m.rank, TPU: m.tpu, Mesh: m.w.mesh, Faults: m.faults,
		Log:          m.note,
		Abort:        func(string) { m.die() },
		FillRequests: m.fill,
	})
}

func (m *member) note(q libtpusim.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.log = append(m.log, q)
}

// takeEnds takes references to the guest's own ends of the pipes; one that the guest
// has closed is left out.
func (m *member) takeEnds() {
	take := func(fd int32, mask waiter.EventMask) *end {
		file, _ := kerneltest.TableOf(m.thread).Get(fd)
		e := &end{k: m.w.k, file: file, mask: mask}
		e.shut = func() { m.w.k.Close(m.w.t, m.thread, fd) }
		return e
	}
	m.requests, m.answers = take(ownRequestFD, waiter.ReadableEvents), take(ownResponseFD, waiter.WritableEvents)
}

func (m *member) dropEnds() {
	m.requests.drop()
	m.answers.drop()
}

// serve is the control thread, until the world closes.
func (m *member) serve() {
	if m.hung || m.ended.Load() || m.dead.Load() {
		return
	}
	ctx := m.w.ctx
	m.requests.ctx, m.answers.ctx = ctx, ctx
	m.serving.Store(true)
	m.w.done.Go(func() {
		defer m.serving.Store(false)
		err := m.runtime.Serve(ctx, m.requests, m.answers)
		switch {
		case errors.Is(err, libtpusim.ErrThreadExit):
			m.ended.Store(true)
			m.dropEnds()
			m.w.k.Exit(m.w.t, m.thread)
		case errors.Is(err, libtpusim.ErrAborted): // die has done it
		case !errors.Is(err, errIdle):
			m.hung = true
		}
	})
}

// die ends the process, as a runtime that aborts does.
func (m *member) die() {
	m.dead.Store(true)
	m.dropEnds()
	if err := m.tg.SendSignal(&linux.SignalInfo{Signo: int32(linux.SIGKILL)}); err != nil {
		m.w.t.Errorf("rank %d: kill: %v", m.rank, err)
	}
}

// fill fills the guest's own request pipe.
func (m *member) fill() error {
	file, _ := kerneltest.TableOf(m.thread).Get(requestFD)
	if file == nil {
		return errors.New("the request pipe is closed")
	}
	defer file.DecRef(m.w.k.Ctx)
	for size := 4096; size > 0; {
		n, _ := file.Write(m.w.k.Ctx, usermem.BytesIOSequence(make([]byte, size)), vfs.WriteOptions{})
		if n == 0 {
			size /= 2
		}
	}
	return nil
}

// moveTo makes the member one of a loaded kernel.
func (m *member) moveTo(k *kerneltest.Kernel) error {
	m.tg = k.RootPIDNamespace().ThreadGroupWithID(m.pid)
	if m.tg == nil {
		return fmt.Errorf("pid %d is not in the loaded kernel", m.pid)
	}
	m.thread = nil
	m.tg.ForEachTask(func(t *kernel.Task) bool {
		if _, ok := tpuwire.ParseThreadName(t.Name()); ok {
			m.thread = t
		}
		return true
	})
	if m.thread == nil {
		return fmt.Errorf("pid %d has no control thread in the loaded kernel", m.pid)
	}
	m.takeEnds()
	return nil
}

// verbs counts what was asked, what lies unread in the request pipe included.
func (m *member) verbs(t *testing.T) map[controlpb.ControlAction]int {
	t.Helper()
	count := map[controlpb.ControlAction]int{}
	m.mu.Lock()
	for _, q := range m.log {
		count[q.Action]++
	}
	m.mu.Unlock()
	if m.dead.Load() {
		return count
	}
	file := m.requests.peek()
	if file == nil {
		return count
	}
	defer file.DecRef(m.w.k.Ctx)
	for _, action := range m.unread(t, file) {
		count[action]++
	}
	return count
}

// unread reads the requests that nobody has read. What the guest itself has filled its
// pipe with must be unchanged.
func (m *member) unread(t *testing.T, file *vfs.FileDescription) (actions []controlpb.ControlAction) {
	t.Helper()
	bytes := left(m.w.k, file)
	if len(bytes) == 1<<16 && bytes[0] == 0 {
		for _, b := range bytes {
			if b != 0 {
				t.Errorf("rank %d: something was written to its full pipe", m.rank)
				return nil
			}
		}
		return nil
	}
	for len(bytes) > 0 {
		if len(bytes) < 4 {
			t.Errorf("rank %d: a part of a header is in its request pipe: %x", m.rank, bytes)
			return actions
		}
		size := int(bytes[0])<<24 | int(bytes[1])<<16 | int(bytes[2])<<8 | int(bytes[3])
		req := &controlpb.ControlRequest{}
		if size > len(bytes)-4 || proto.Unmarshal(bytes[4:4+size], req) != nil || req.GetAction() == 0 {
			t.Errorf("rank %d: something that is no request is in its request pipe: %x", m.rank, bytes)
			return actions
		}
		actions = append(actions, req.GetAction())
		bytes = bytes[4+size:]
	}
	return actions
}
