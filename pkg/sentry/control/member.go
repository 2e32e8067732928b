package control

import (
	gocontext "context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"gvisor.dev/gvisor/pkg/log"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/settings"
	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// A member is a runtime that takes part in an exchange.
type member struct {
	*runtime
	settings settings.Settings
	standing standing
	found    controlpb.RuntimeState // before the exchange; UNSPECIFIED if not asked
	state    controlpb.RuntimeState // as it last said
	topology *controlpb.TpuTopology // as it said when it let go, or nil
	active   *controlpb.TpuTopology // as it last said, or nil
	notes    notes
}

// notes gets what happens to a member, for whoever watches.
type notes func(m *member, action controlpb.ControlAction, r result, elapsed time.Duration, err error)

// grace is how much longer than the runtime's own limit the sentry waits, so that
// the two do not end at the same instant and the runtime's own word can arrive.
func grace(limit time.Duration) time.Duration { return min(limit/10, 10*time.Second) }

// limitFor returns the member's own limit for an action.
func (m *member) limitFor(action controlpb.ControlAction) time.Duration {
	if action == actRestore || action == actUnlock {
		return m.settings.RestoreLimit
	}
	return m.settings.CheckpointLimit
}

// ask sends one request and reads its answer. ctx carries the deadline, and its
// cause says why the waiting ended. The member's standing follows.
func (m *member) ask(ctx gocontext.Context, action controlpb.ControlAction, limit time.Duration) error {
	start := time.Now()
	answer, err := m.converse(ctx, action, limit)
	if closed(err) && m.exitsSoon() {
		err = ErrExited
	}
	r := acked
	if err == nil {
		err = m.check(action, answer)
	}
	if err != nil {
		r = m.resultOf(action, answer, err)
	}
	m.standing = m.standing.after(action, r)
	elapsed := time.Since(start)
	if err != nil {
		failure := m.fail(err)
		failure.Action, failure.Elapsed, failure.State = action, elapsed, m.state
		err = failure
	}
	m.note(action, r, elapsed, err)
	return err
}

func closed(err error) bool {
	return errors.Is(err, tpuwire.ErrClosed) || errors.Is(err, tpuwire.ErrTruncated)
}

// exitGrace is how long a process whose pipes have closed may take until it counts
// as exited: an exiting task closes its files first.
const exitGrace = 500 * time.Millisecond

// exitsSoon reports whether a runtime whose pipes have closed is exiting.
func (m *member) exitsSoon() bool {
	end := time.NewTimer(exitGrace)
	defer end.Stop()
	look := time.NewTicker(exitGrace / 50)
	defer look.Stop()
	for !m.exited() {
		select {
		case <-look.C:
		case <-end.C:
			return false
		}
	}
	return true
}

func (m *member) note(action controlpb.ControlAction, r result, elapsed time.Duration, err error) {
	if m.notes != nil {
		m.notes(m, action, r, elapsed, err)
	}
}

// converse writes the request and returns the answer to it, which is nil if none
// could be read.
func (m *member) converse(ctx gocontext.Context, action controlpb.ControlAction, limit time.Duration) (*controlpb.ControlResponse, error) {
	deaf, err := m.ready(action)
	if err != nil {
		return nil, err
	}
	request := &controlpb.ControlRequest{
		Action:      action.Enum(),
		TimeoutSecs: proto.Int32(int32(limit.Round(time.Second) / time.Second)),
	}
	if action == actRestore {
		request.ExpectedTopology = m.topology
	}
	if err := m.write(ctx, action, request); err != nil {
		return nil, err
	}
	if deaf {
		return nil, fmt.Errorf("sent, but its answer cannot be read: %w", m.channel.line.broken)
	}
	return m.answerTo(ctx, action)
}

// ready says why the runtime cannot be asked. What is owed to it is sent even if it
// is deaf: its answers cannot be read.
func (m *member) ready(action controlpb.ControlAction) (deaf bool, err error) {
	line := m.channel.line
	switch {
	case m.exited():
		return false, ErrExited
	case line.cut != nil:
		return false, fmt.Errorf("not asked, since its request pipe holds a part of a request: %w", line.cut)
	case line.broken == nil && line.unread == 0:
		var dropped int
		dropped, err = m.channel.drain()
		m.warnDropped(dropped)
	case line.broken != nil:
		err = fmt.Errorf("not asked, since its answers cannot be read: %w", line.broken)
	}
	if err != nil && (action == actRestore || action == actUnlock) {
		return true, nil
	}
	return false, err
}

// answerTo reads the answer to the request that was written last. Answers come in
// the order of the requests, but one that was given up on may never come: so an
// earlier one is told by its state where that tells, and else by the count.
func (m *member) answerTo(ctx gocontext.Context, action controlpb.ControlAction) (*controlpb.ControlResponse, error) {
	line := m.channel.line
	dropped := 0
	defer func() { m.warnDropped(dropped) }()
	for dropped <= maxStale {
		answer, err := m.read(ctx)
		if err != nil && !errors.Is(err, tpuwire.ErrNotMessage) {
			return nil, err
		}
		earlier := line.unread > 0
		if err == nil && answer.GetSuccess() && action == actRestore {
			switch answer.GetCurrentState() {
			case controlpb.RuntimeState_STATE_DETACHED: // nobody restores into being detached
				earlier = true
			case controlpb.RuntimeState_STATE_RUNNING: // nobody checkpoints into running
				earlier = false
			}
		}
		if !earlier {
			line.unread = 0
			return answer, err
		}
		dropped++
		line.unread = max(1, line.unread)
	}
	return nil, m.channel.fail(fmt.Errorf("%w: more than %d answers that belong to no request", tpuwire.ErrNotMessage, maxStale))
}

func (m *member) warnDropped(n int) {
	if n > 0 {
		metricDropped.IncrementBy(uint64(n))
		log.Warningf("tpu: pid %d (%s): dropped %d answer(s) to earlier requests", m.process.pid, quoteCommand(m.process.command), n)
	}
}

// write sends a request whole, or says why it could not. The standing moves as soon
// as the runtime may have seen any of it.
func (m *member) write(ctx gocontext.Context, action controlpb.ControlAction, request *controlpb.ControlRequest) error {
	end := m.channel.requestEnd
	end.wait = ctx
	counted := &countingWriter{stream: end}
	err := tpuwire.WriteMessage(counted, request)
	if counted.n > 0 {
		m.standing = m.standing.after(action, sent)
		m.note(action, sent, 0, nil)
	}
	switch {
	case err == nil:
		m.channel.line.unread++
		return nil
	case counted.n > 0:
		m.channel.line.cut = fmt.Errorf("request cut off after %d bytes: %w", counted.n, err)
		return m.channel.line.cut
	case errors.Is(err, tpuwire.ErrNoAnswer):
		return fmt.Errorf("not asked, since it does not read its request pipe: %w", err)
	}
	return err
}

// read reads the next answer.
func (m *member) read(ctx gocontext.Context) (*controlpb.ControlResponse, error) {
	ch := m.channel
	ch.responseEnd.wait = ctx
	answer := &controlpb.ControlResponse{}
	err := ch.line.reader.ReadMessage(answer)
	switch {
	case err == nil:
		ch.line.unread--
		return answer, nil
	case errors.Is(err, tpuwire.ErrNotMessage):
		ch.line.unread--
	case errors.Is(err, tpuwire.ErrTooLarge), errors.Is(err, tpuwire.ErrTruncated), errors.Is(err, tpuwire.ErrClosed):
		return nil, ch.fail(err)
	case ctx.Err() != nil:
		return nil, gocontext.Cause(ctx)
	}
	return nil, err
}

// check says whether an answer is the success that was asked for.
func (m *member) check(action controlpb.ControlAction, answer *controlpb.ControlResponse) error {
	m.state = answer.GetCurrentState()
	if answer.Success == nil {
		return fmt.Errorf("%w: the answer does not say whether it succeeded", tpuwire.ErrNotMessage)
	}
	if !answer.GetSuccess() {
		return &tpuwire.RefusedError{Action: action, State: m.state, Words: answer.GetErrorMessage()}
	}
	held := m.standing == lockedRestoring || m.found == controlpb.RuntimeState_STATE_LOCKED
	if err := wantState(action, held, m.state); err != nil {
		return err
	}
	if err := checkTopologySize(answer.GetActiveTopology()); err != nil {
		return err
	}
	if t := knownTopology(answer.GetActiveTopology()); t != nil {
		m.active = t
	}
	switch action {
	case actCheckpoint:
		m.topology = knownTopology(answer.GetActiveTopology())
	case actRestore:
		return m.compareTopology(answer.GetActiveTopology())
	}
	return nil
}

// resultOf says what an error tells about what the runtime has done.
func (m *member) resultOf(action controlpb.ControlAction, answer *controlpb.ControlResponse, err error) result {
	state := answer.GetCurrentState()
	switch {
	case errors.Is(err, ErrExited), errors.Is(err, ErrSandboxExiting), state == controlpb.RuntimeState_STATE_FAULTED:
		return gone
	case errors.Is(err, ErrTopology):
		return acked
	case action == actCheckpoint && state == controlpb.RuntimeState_STATE_DETACHED:
		return unknown // whatever it says besides
	case errors.Is(err, tpuwire.ErrRefused):
		return refused
	}
	return unknown
}

// inDoubt reports whether a CHECKPOINT may have been carried out, and the runtime
// can be asked for its state.
func (m *member) inDoubt() bool {
	line := m.channel.line
	return (m.standing == detaching || m.standing == lockedDetaching) && line.clean() && !m.exited()
}

// settleDoubt takes the state that the runtime has told for what became of its
// CHECKPOINT.
func (m *member) settleDoubt() {
	switch m.state {
	case controlpb.RuntimeState_STATE_RUNNING, controlpb.RuntimeState_STATE_LOCKED:
		m.standing = m.standing.after(actCheckpoint, refused)
	case controlpb.RuntimeState_STATE_DETACHED:
		m.standing = m.standing.after(actCheckpoint, acked)
	}
}

type countingWriter struct {
	stream *stream
	n      int
}

func (w *countingWriter) Write(p []byte) (int, error) {
	n, err := w.stream.Write(p)
	w.n += n
	return n, err
}
