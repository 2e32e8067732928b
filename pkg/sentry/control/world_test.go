package control

import (
	gocontext "context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/waiter"

	"tpuvisor.dev/tpuvisor/internal/kerneltest"
	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// A world is a kernel with a plane, and guests that are goroutines.
type world struct {
	k     *kerneltest.Kernel
	plane *Plane
	specs specMap

	stop gocontext.CancelFunc
	done sync.WaitGroup
	ctx  gocontext.Context
}

// specMap is a Saver that knows containers' specs, as gVisor's loader does. The
// test kernel has no container names, so that every container is named "".
type specMap map[string]*specs.Spec

func (specMap) SaveAsync() error                                      { return errors.New("not in tests") }
func (specMap) SpecEnviron(string) []string                           { return nil }
func (specMap) FSSave() error                                         { return errors.New("not in tests") }
func (m specMap) GetContainerSpecs() map[string]*specs.Spec           { return m }
func (m specMap) annotate(key, value string)                          { m[""].Annotations[key] = value }
func newSpecs() specMap                                               { return specMap{"": {Annotations: map[string]string{}}} }
func alwaysOpen(*vfs.VirtualFilesystem) bool                          { return true }
func actions(of ...controlpb.ControlAction) []controlpb.ControlAction { return of }

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{k: kerneltest.Boot(t), plane: &Plane{Devices: Devices{MayBeOpen: alwaysOpen}}, specs: newSpecs()}
	w.k.SetSaver(w.specs)
	return w
}

// open starts the time in which guests act; close ends it. Between the two the
// guests' goroutines belong to the caller's bubble, if it is in one.
func (w *world) open() {
	w.ctx, w.stop = gocontext.WithCancel(gocontext.Background())
}

func (w *world) close() {
	w.stop()
	w.done.Wait()
}

// A guest is a process with a TPU and a control thread, played by a goroutine.
type guest struct {
	w                 *world
	tg                *kernel.ThreadGroup
	thread            *kernel.Task
	requests, answers *vfs.FileDescription // the guest's own ends
	device            *vfs.FileDescription

	mu   sync.Mutex
	seen []controlpb.ControlAction
	last *controlpb.ControlRequest
}

// The FDs that guests use.
const (
	requestFD, responseFD             = 4, 5
	ownRequestFD, ownResponseFD       = 6, 7
	deviceFD                    int32 = 9
)

func (w *world) guest(t testing.TB, command string) *guest {
	t.Helper()
	g := &guest{w: w, tg: w.k.Process(t, command, "c1")}
	leader := g.tg.Leader()
	g.device = w.k.Device(t, 0)
	g.device.IncRef()
	w.k.Install(t, leader, deviceFD, g.device)
	t.Cleanup(func() { g.device.DecRef(w.k.Ctx) })
	var reqW, rspR *vfs.FileDescription
	g.requests, reqW = w.k.Pipe(t)
	rspR, g.answers = w.k.Pipe(t)
	w.k.Install(t, leader, requestFD, reqW)
	w.k.Install(t, leader, responseFD, rspR)
	w.k.Install(t, leader, ownRequestFD, g.requests)
	w.k.Install(t, leader, ownResponseFD, g.answers)
	name := tpuwire.ThreadName{RequestFD: requestFD, ResponseFD: responseFD}
	g.thread = w.k.Thread(t, g.tg, name.String(), nil)
	return g
}

// play answers every request with what script says, until the world closes. A nil
// answer is no answer.
func (g *guest) play(script func(*controlpb.ControlRequest) *controlpb.ControlResponse) {
	g.playRaw(func(req *controlpb.ControlRequest, out *stream) {
		answer := script(req)
		g.driveDevice(req.GetAction(), answer)
		if answer != nil {
			_ = tpuwire.WriteMessage(out, answer)
		}
	})
}

// driveDevice closes the device when the guest says that it has, and opens it when
// it says so.
func (g *guest) driveDevice(action controlpb.ControlAction, answer *controlpb.ControlResponse) {
	table := kerneltest.TableOf(g.tg.Leader())
	switch {
	case action == actCheckpoint && answer.GetSuccess() && answer.GetCurrentState() == controlpb.RuntimeState_STATE_DETACHED:
		if file := table.Remove(g.w.k.Ctx, deviceFD); file != nil {
			file.DecRef(g.w.k.Ctx)
		}
	case action == actRestore && answer.GetSuccess():
		_, _ = table.NewFDAt(g.w.k.Ctx, deviceFD, g.device, kernel.FDFlags{})
	}
}

func (g *guest) playRaw(script func(req *controlpb.ControlRequest, out *stream)) {
	in := &stream{sctx: g.w.k.Ctx, file: g.requests, mask: waiter.ReadableEvents, wait: g.w.ctx}
	out := &stream{sctx: g.w.k.Ctx, file: g.answers, mask: waiter.WritableEvents, wait: g.w.ctx}
	g.w.done.Go(func() {
		for {
			req := &controlpb.ControlRequest{}
			if err := tpuwire.ReadMessage(in, req); err != nil {
				return
			}
			// A paused guest does nothing.
			for g.w.k.IsPaused() && g.w.ctx.Err() == nil {
				time.Sleep(10 * time.Millisecond)
			}
			g.mu.Lock()
			g.seen = append(g.seen, req.GetAction())
			g.last = req
			g.mu.Unlock()
			script(req, out)
		}
	})
}

func (g *guest) expect(t *testing.T, want ...controlpb.ControlAction) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if !slices.Equal(g.seen, want) {
		t.Errorf("pid %d was asked %v, want %v", g.w.k.RootPIDNamespace().IDOfThreadGroup(g.tg), g.seen, want)
	}
}

// ok is what a runtime that does as it is told answers.
func ok(req *controlpb.ControlRequest) *controlpb.ControlResponse {
	state := map[controlpb.ControlAction]controlpb.RuntimeState{
		actLock:       controlpb.RuntimeState_STATE_LOCKED,
		actCheckpoint: controlpb.RuntimeState_STATE_DETACHED,
		actRestore:    controlpb.RuntimeState_STATE_RUNNING,
		actUnlock:     controlpb.RuntimeState_STATE_RUNNING,
		actGetState:   controlpb.RuntimeState_STATE_RUNNING,
	}[req.GetAction()]
	return &controlpb.ControlResponse{
		Success:      proto.Bool(true),
		CurrentState: state.Enum(),
		ActiveTopology: &controlpb.TpuTopology{
			ChipArchitecture: proto.String("v5e"), NumChips: proto.Int32(4), MeshShape: proto.String("2x2x1"),
		},
	}
}

// instead answers one action with something else.
func instead(action controlpb.ControlAction, answer *controlpb.ControlResponse) func(*controlpb.ControlRequest) *controlpb.ControlResponse {
	return func(req *controlpb.ControlRequest) *controlpb.ControlResponse {
		if req.GetAction() == action {
			return answer
		}
		return ok(req)
	}
}

func refuse(state controlpb.RuntimeState, words string) *controlpb.ControlResponse {
	return &controlpb.ControlResponse{Success: proto.Bool(false), CurrentState: state.Enum(), ErrorMessage: proto.String(words)}
}

func wantKind(t *testing.T, err, kind error) *RuntimeError {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("got error %v, want kind %v", err, kind)
	}
	var failure *RuntimeError
	errors.As(err, &failure)
	return failure
}
