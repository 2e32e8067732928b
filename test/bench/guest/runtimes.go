package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

const device = "/dev/vfio/0"

// host is a process with a TPU and its runtimes, which answer at once.
type host struct {
	load
	processes int
	number    int
	drip      bool
	names     string
	first     string // name of the first runtime

	mu    sync.Mutex
	tpu   int // descriptor, or -1
	turns map[controlpb.ControlAction]*turn
}

// turn is one action, asked of all runtimes.
type turn struct {
	first, last time.Time
	asked       atomic.Int32
	answered    atomic.Int32
}

func runtimes(fs *flag.FlagSet) func() error {
	h := &host{tpu: -1, turns: map[controlpb.ControlAction]*turn{
		controlpb.ControlAction_ACTION_CHECKPOINT: {},
		controlpb.ControlAction_ACTION_RESTORE:    {},
	}}
	h.flags(fs)
	fs.IntVar(&h.processes, "processes", 1, "how many such processes there are; with more than one, nobody writes down the times")
	fs.IntVar(&h.number, "number", 1, "how many runtimes there are in each")
	fs.BoolVar(&h.drip, "drip", false, "answer with the largest frame, byte by byte")
	fs.StringVar(&h.names, "names", "", "what the other threads' names claim: same, a runtime's own pipes; or distinct, pipes of their own")
	return h.run
}

func (h *host) run() error {
	if err := h.attach(); err != nil {
		return err
	}
	for range h.number {
		if err := h.startRuntime(); err != nil {
			return err
		}
	}
	if err := h.pretend(); err != nil {
		return err
	}
	if err := h.take(); err != nil {
		return err
	}
	return h.others(h.processes)
}

func (h *host) attach() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tpu >= 0 {
		return nil
	}
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", device, err)
	}
	h.tpu = fd
	return nil
}

func (h *host) detach() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tpu < 0 {
		return nil
	}
	fd := h.tpu
	h.tpu = -1
	return unix.Close(fd)
}

// startRuntime starts a runtime's control thread.
func (h *host) startRuntime() error {
	var requests, answers [2]int
	if err := errors.Join(unix.Pipe2(requests[:], unix.O_CLOEXEC), unix.Pipe2(answers[:], unix.O_CLOEXEC)); err != nil {
		return fmt.Errorf("pipes: %w", err)
	}
	name := tpuwire.ThreadName{RequestFD: int32(requests[1]), ResponseFD: int32(answers[0])}
	if h.first == "" {
		h.first = name.String()
	}
	startThread(name.String(), func() { fail(h.serve(fd(requests[0]), fd(answers[1]))) })
	return nil
}

// pretend starts threads that are named like runtimes. Only the two ends that a name
// tells are left open.
func (h *host) pretend() error {
	if h.names == "" {
		return nil
	}
	name := h.first
	for range h.threads {
		if h.names == "distinct" {
			var requests, answers [2]int
			if err := errors.Join(unix.Pipe2(requests[:], unix.O_CLOEXEC), unix.Pipe2(answers[:], unix.O_CLOEXEC)); err != nil {
				return fmt.Errorf("pipes: %w", err)
			}
			unix.Close(requests[0])
			unix.Close(answers[1])
			name = tpuwire.ThreadName{RequestFD: int32(requests[1]), ResponseFD: int32(answers[0])}.String()
		}
		startThread(name, func() {})
	}
	return nil
}

// serve answers requests until it fails.
func (h *host) serve(requests, answers fd) error {
	reader := tpuwire.NewReader(requests)
	for {
		var request controlpb.ControlRequest
		if err := reader.ReadMessage(&request); err != nil {
			return err
		}
		if err := h.answer(&request, answers); err != nil {
			return err
		}
	}
}

func (h *host) answer(request *controlpb.ControlRequest, answers fd) error {
	t := h.turns[request.GetAction()]
	if t == nil {
		return fmt.Errorf("nobody should ask for %v", request.GetAction())
	}
	if t.asked.Add(1) == 1 {
		t.first = time.Now()
	}
	if h.drip {
		return drip(answers)
	}
	state := controlpb.RuntimeState_STATE_DETACHED
	act := h.detach
	if request.GetAction() == controlpb.ControlAction_ACTION_RESTORE {
		state, act = controlpb.RuntimeState_STATE_RUNNING, h.attach
	}
	if err := act(); err != nil {
		return err
	}
	// Afterwards it may be too late: a sandbox whose last answer has been read is saved.
	last := int(t.answered.Add(1)) == h.number
	if last {
		t.last = time.Now()
	}
	err := tpuwire.WriteMessage(answers, &controlpb.ControlResponse{
		Success: proto.Bool(true), CurrentState: state.Enum(),
		ActiveTopology: &controlpb.TpuTopology{
			ChipArchitecture: proto.String("v5e"), NumChips: proto.Int32(1), MeshShape: proto.String("1x1x1"),
		},
	})
	if err == nil && last {
		err = h.endOf(request.GetAction())
	}
	return err
}

// endOf writes down when what happened, when everybody is back.
func (h *host) endOf(action controlpb.ControlAction) error {
	if action != controlpb.ControlAction_ACTION_RESTORE || h.processes != 1 {
		return nil
	}
	all := map[string]any{}
	for action, t := range h.turns {
		all[tpuwire.ActionName(action)] = map[string]any{
			"first": t.first.UnixNano(), "last": t.last.UnixNano(), "took": t.last.Sub(t.first).Nanoseconds(),
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	name := filepath.Join(h.log, "turns")
	if err := os.WriteFile(name+".new", text, 0o644); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// drip writes a frame of the largest size, one byte at a time.
func drip(answers fd) error {
	frame := make([]byte, 4+tpuwire.MaxMessage)
	frame[1] = tpuwire.MaxMessage >> 16
	for i := range frame {
		if _, err := answers.Write(frame[i : i+1]); err != nil {
			return err
		}
	}
	return nil
}

// fd reads and writes in the calling thread, as a C program would.
type fd int

func (f fd) Read(p []byte) (int, error) {
	for {
		n, err := unix.Read(int(f), p)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

func (f fd) Write(p []byte) (int, error) {
	for {
		n, err := unix.Write(int(f), p)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func setName(name string) error {
	if name == "" {
		return nil
	}
	b, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(b)), 0, 0, 0)
}
