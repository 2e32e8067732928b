package control

import (
	gocontext "context"
	"fmt"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/sentry/kernel"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// lookEvery is how often the sentry looks whether those that it waits for are
// still there, and whether somebody has paused the sandbox meanwhile: neither
// wakes up a waiter.
const lookEvery = 100 * time.Millisecond

// A clock gives every member one deadline over all the rounds of one way, there or
// back.
type clock struct{ start time.Time }

func startClock() clock { return clock{time.Now()} }

// round sends one action to all members at the same time and waits for all of
// their answers, each within its own limit, counted from the clock's start. It
// returns each one's error, by index.
func (p *Plane) round(k *kernel.Kernel, c clock, action controlpb.ControlAction, members []*member) []error {
	errs := make([]error, len(members))
	if len(members) == 0 {
		return errs
	}
	cancels := make([]gocontext.CancelCauseFunc, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		limit := m.limitFor(action)
		cause := fmt.Errorf("%w (the limit is %v)", tpuwire.ErrNoAnswer, limit)
		ctx, cancel := gocontext.WithCancelCause(gocontext.Background())
		timed, stop := gocontext.WithDeadlineCause(ctx, c.start.Add(limit+grace(limit)), cause)
		cancels[i] = cancel
		left := max(time.Second, limit-time.Since(c.start))
		wg.Go(func() {
			defer stop()
			errs[i] = m.ask(timed, action, left)
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	p.attend(k, members, cancels, done)
	for _, cancel := range cancels {
		cancel(nil)
	}
	return errs
}

// attend watches over a round until it is done.
func (p *Plane) attend(k *kernel.Kernel, members []*member, cancels []gocontext.CancelCauseFunc, done <-chan struct{}) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		exiting := k.TaskSet().IsExiting()
		for i, m := range members {
			switch {
			case exiting:
				cancels[i](ErrSandboxExiting)
			case m.exited():
				cancels[i](ErrExited)
			}
		}
		p.pause.hold(k)
	}
}

// failed returns the errors that are not nil, and the members they belong to.
func failed(members []*member, errs []error) (bad []*member, all []error) {
	for i, err := range errs {
		if err != nil {
			bad = append(bad, members[i])
			all = append(all, err)
		}
	}
	return bad, all
}

// owing returns the members to which an action is owed.
func owing(members []*member, action controlpb.ControlAction) []*member {
	var some []*member
	for _, m := range members {
		if m.standing.owed() == action {
			some = append(some, m)
		}
	}
	return some
}
