package libtpusim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/proto"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// How a control thread ends that a Fault ends.
var (
	ErrAborted    = errors.New("libtpusim: the runtime has aborted the process")
	ErrThreadExit = errors.New("libtpusim: the control thread has exited")
)

// Serve is the control thread: it reads requests and answers them, until requests
// ends (nil), a fault ends it (ErrAborted, ErrThreadExit), or the context does.
// The context ends what waits inside; to end a Read, close requests. A fault may
// close requests or answers if they are io.Closers.
func (r *Runtime) Serve(ctx context.Context, requests io.Reader, answers io.Writer) error {
	reader := tpuwire.NewReader(requests)
	for {
		if err := r.lookAhead(ctx, requests, answers); err != nil {
			return err
		}
		req := &controlpb.ControlRequest{}
		err := reader.ReadMessage(req)
		switch {
		case errors.Is(err, tpuwire.ErrClosed):
			return nil
		case errors.Is(err, tpuwire.ErrNotMessage):
			err = tpuwire.WriteMessage(answers, r.refusal(err.Error()))
		case err == nil:
			err = r.serveOne(ctx, req, requests, answers)
		}
		if err != nil {
			return err
		}
	}
}

// serveOne deals with one request, as the contract or a fault has it.
func (r *Runtime) serveOne(ctx context.Context, req *controlpb.ControlRequest, requests io.Reader, answers io.Writer) error {
	nth := r.count(req.GetAction())
	if r.Log != nil {
		r.Log(Request{
			Time:    time.Now(),
			Rank:    r.Rank,
			Action:  req.GetAction(),
			Timeout: time.Duration(req.GetTimeoutSecs()) * time.Second,
			State:   r.State(),
		})
	}
	if r.wedgedBy(req.GetAction()) {
		return nil
	}
	t := &turn{r: r, ctx: ctx, req: req, requests: requests, answers: answers}
	var bad bool
	if t.fault, bad = r.Faults.find(r.Rank, req.GetAction(), nth, false); bad {
		return kinds[t.fault.Kind].do(t)
	}
	return t.answerAndLookAhead(r.machine.Answer(ctx, req))
}

// answerAndLookAhead answers. What has to be closed before the next request is closed
// first: that may come as soon as the answer is written.
func (t *turn) answerAndLookAhead(resp *controlpb.ControlResponse) error {
	next, nth := t.r.upcoming()
	f, ok := t.r.Faults.find(t.r.Rank, next, nth, true)
	if !ok || f.Kind != "closeread" {
		return t.answer(resp)
	}
	if err := shut(t.requests); err != nil {
		return err
	}
	if err := t.answer(resp); err != nil {
		return err
	}
	return t.hang()
}

// upcoming is the request that comes next: CHECKPOINT to an attached runtime, RESTORE
// to a detached one.
func (r *Runtime) upcoming() (next controlpb.ControlAction, nth int) {
	next = checkpoint
	if r.State() == detached {
		next = restore
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return next, r.seen[next] + 1
}

func (r *Runtime) count(a controlpb.ControlAction) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[a]++
	return r.seen[a]
}

// lookAhead does what a fault does before the request that it belongs to has come.
func (r *Runtime) lookAhead(ctx context.Context, requests io.Reader, answers io.Writer) error {
	next, nth := r.upcoming()
	r.mu.Lock()
	foreseen := [2]int{int(next), nth}
	again := r.foreseen == foreseen
	r.foreseen = foreseen
	r.mu.Unlock()
	f, ok := r.Faults.find(r.Rank, next, nth, true)
	if !ok || again {
		return nil
	}
	t := &turn{
		r: r, ctx: ctx, fault: f, requests: requests, answers: answers,
		req: &controlpb.ControlRequest{Action: next.Enum()},
	}
	return kinds[f.Kind].do(t)
}

// turn is one request and what is done about it.
type turn struct {
	r        *Runtime
	ctx      context.Context
	req      *controlpb.ControlRequest
	fault    Fault
	requests io.Reader
	answers  io.Writer
}

// act does what was asked, unless the fault says no; then the answer is a lie.
func (t *turn) act() *controlpb.ControlResponse {
	if t.fault.Act != nil && !*t.fault.Act {
		return t.pretended()
	}
	return t.r.machine.Answer(t.ctx, t.req)
}

// actIfTold does what was asked if the fault says so.
func (t *turn) actIfTold() {
	if t.fault.Act != nil && *t.fault.Act {
		t.act()
	}
}

// pretended is the answer of a runtime that has done what was asked.
func (t *turn) pretended() *controlpb.ControlResponse {
	state := map[controlpb.ControlAction]controlpb.RuntimeState{
		lock: locked, checkpoint: detached, restore: running, unlock: running,
	}[t.req.GetAction()]
	if state == controlpb.RuntimeState_STATE_UNSPECIFIED {
		state = t.r.State()
	}
	return &controlpb.ControlResponse{
		Success:        proto.Bool(true),
		CurrentState:   state.Enum(),
		ActiveTopology: t.r.TPU.Topology(),
	}
}

// refusal is the answer of a runtime that does not do what was asked.
func (r *Runtime) refusal(words string) *controlpb.ControlResponse {
	return &controlpb.ControlResponse{
		Success:      proto.Bool(false),
		CurrentState: r.State().Enum(),
		ErrorMessage: proto.String(words),
	}
}

// refusal is the same with the words and the state that the fault has.
func (t *turn) refusal(words string) *controlpb.ControlResponse {
	if t.fault.Text != "" {
		words = t.fault.Text
	}
	answer := t.r.refusal(words)
	if t.fault.State != nil {
		answer.CurrentState = t.fault.State
	}
	return answer
}

func (t *turn) answer(answer *controlpb.ControlResponse) error {
	return tpuwire.WriteMessage(t.answers, answer)
}

// send writes bytes that need be no frame.
func (t *turn) send(b []byte) error {
	if _, err := t.answers.Write(b); err != nil {
		return fmt.Errorf("libtpusim: write answer: %w", err)
	}
	return nil
}

// hang ends the control thread's usefulness, but not the thread.
func (t *turn) hang() error {
	<-t.ctx.Done()
	return context.Cause(t.ctx)
}

func (t *turn) sleep(d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-t.ctx.Done():
		return context.Cause(t.ctx)
	}
}
