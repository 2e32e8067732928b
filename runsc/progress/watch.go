// Package progress shows what the TPU runtimes of a sandbox do, while a command waits
// for them.
package progress

import (
	"context"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/runsc/container"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/api"
	"tpuvisor.dev/tpuvisor/runsc/client"
)

// Options say what is shown, and where.
type Options struct {
	Out *os.File // a terminal gets a block of lines that changes
	// Always shows a line for each event where Out is no terminal; else nothing is.
	Always bool
	// Plain shows lines on a terminal too, where others write to it.
	Plain bool
	// Ends: the sandbox ends with the operation, and does not answer for long.
	Ends bool
	// FromStart shows what has happened in the sandbox before, too.
	FromStart bool
}

// Shows reports whether anything will be shown.
func (o Options) Shows() bool { return o.display() != nothing{} }

// A Watcher follows what happens in a sandbox.
type Watcher struct {
	c      *container.Container
	show   display
	ends   bool
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu    sync.Mutex
	op    *api.Operation // the one that was watched, as it was last seen
	after uint64         // the latest event that has come
}

// A display shows events.
type display interface {
	event(api.Event)
	tick(now time.Time)
	end()
}

// Watch begins to follow what happens from now on. Trouble with it is no trouble for
// the command.
func Watch(c *container.Container, o Options) *Watcher {
	ctx, cancel := context.WithCancel(context.Background())
	w := &Watcher{c: c, show: o.display(), ends: o.Ends, cancel: cancel}
	if !o.Shows() {
		w.ask(ctx)
		return w
	}
	var from api.Events
	if err := client.Call(c, api.OpWatch, api.Watch{Begin: true}, &from); err != nil {
		log.Infof("Watching the sandbox: %v", err)
		return w
	}
	if o.FromStart {
		from.Sequence = 0
	}
	w.after = from.Sequence
	events := make(chan api.Event)
	w.done.Go(func() { defer close(events); w.follow(ctx, from.Sequence, events) })
	w.done.Go(func() { w.draw(events) })
	return w
}

func (o Options) display() display {
	_, err := unix.IoctlGetTermios(int(o.Out.Fd()), unix.TCGETS)
	switch terminal := err == nil; {
	case terminal && !o.Plain:
		return newBlock(o.Out)
	case terminal, o.Always:
		return &lines{out: o.Out}
	}
	return nothing{}
}

// Stop ends the watching, and returns what was last seen of the operation that was
// watched, with all its steps; nil if there was none, or no Watcher.
func (w *Watcher) Stop() *api.Operation {
	if w == nil {
		return nil
	}
	if !w.ends {
		w.look() // while the sandbox is still there, this is the end of it
	}
	w.finish()
	w.show.end()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.op
}

// endTime is how long the end of the operation is waited for, which is on its way
// when the command is done. A call that is cut off is a line in the sandbox's log.
const endTime = 500 * time.Millisecond

func (w *Watcher) finish() {
	done := make(chan struct{})
	go func() { w.done.Wait(); close(done) }()
	late := time.NewTimer(endTime)
	defer late.Stop()
	if w.behind() {
		select {
		case <-done:
		case <-late.C:
		}
	}
	w.cancel()
	<-done
}

// behind reports whether there is more to come.
func (w *Watcher) behind() bool {
	w.mu.Lock()
	begun, after := w.op != nil, w.after
	w.mu.Unlock()
	if begun || w.show == (nothing{}) {
		return begun
	}
	var s api.Status
	err := client.Call(w.c, api.OpStatus, nil, &s)
	return err != nil || s.Sequence > after
}

// ask begins to wait for the answers of the runtimes to a checkpoint, which are all
// there is to know where nothing is shown.
func (w *Watcher) ask(ctx context.Context) {
	op := new(api.Operation)
	wait, err := client.Begin(w.c, api.OpAnswered, nil, op)
	if err != nil {
		log.Infof("Watching the sandbox: %v", err)
		return
	}
	w.done.Go(func() {
		for wait(ctx) == nil {
			if op.ID > 0 {
				w.mu.Lock()
				w.op = op
				w.mu.Unlock()
				return
			}
			if wait, err = client.Begin(w.c, api.OpAnswered, nil, op); err != nil {
				return
			}
		}
	})
}

// follow passes events on. The sandbox does not end before it was asked again after
// the answers of the runtimes.
func (w *Watcher) follow(ctx context.Context, after uint64, to chan<- api.Event) {
	for {
		var got api.Events
		if err := client.CallContext(ctx, w.c, api.OpWatch, api.Watch{After: after}, &got); err != nil {
			return
		}
		after = got.Sequence
		w.mu.Lock()
		w.after = after
		w.mu.Unlock()
		for _, e := range got.Events {
			if e.Phase == api.PhaseSave && !e.Ended {
				w.look()
			}
			if e.Step == nil {
				w.note(e)
			}
			to <- e
			if w.ended(e) {
				return
			}
		}
	}
}

// ended reports whether an event is the end of the operation that is watched.
func (w *Watcher) ended(e api.Event) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.op != nil && e.Operation == w.op.ID && e.Phase == "" && e.Ended
}

// note makes the operation that begins the one that is watched.
func (w *Watcher) note(e api.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.op == nil && e.Phase == "" && !e.Ended {
		w.op = &api.Operation{ID: e.Operation, Kind: e.Kind, Start: e.Time}
	}
}

// look asks for all there is about the operation.
func (w *Watcher) look() {
	w.mu.Lock()
	watched := w.op
	w.mu.Unlock()
	if watched == nil {
		return
	}
	var t api.Trace
	if err := client.Call(w.c, api.OpTrace, nil, &t); err != nil {
		return // it has ended, and was looked at before
	}
	for i := range t.Operations {
		if t.Operations[i].ID == watched.ID {
			w.mu.Lock()
			w.op = &t.Operations[i]
			w.mu.Unlock()
		}
	}
}

// redraw is how often times are brought up to date.
const redraw = 200 * time.Millisecond

func (w *Watcher) draw(events <-chan api.Event) {
	tick := time.NewTicker(redraw)
	defer tick.Stop()
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return
			}
			w.show.event(e)
		case now := <-tick.C:
			w.show.tick(now)
		}
	}
}
