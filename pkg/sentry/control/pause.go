package control

import (
	"sync"

	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// A pauseGuard lets a paused sandbox run for the length of an exchange, since a
// paused runtime cannot answer, and pauses it again afterwards as often as it was.
type pauseGuard struct {
	mu sync.Mutex
	// +checklocks:mu
	on bool
	// +checklocks:mu
	owed int
}

// begin lets the kernel run, if it was paused once.
func (g *pauseGuard) begin(k *kernel.Kernel) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if k.IsPaused() {
		k.Unpause()
		if k.IsPaused() {
			k.Pause()
			return ErrPausedTwice
		}
		g.owed++
		log.Infof("tpu: the sandbox is paused; it runs while its TPU runtimes are asked")
	}
	g.on = true
	return nil
}

// hold takes back a pause that came in the middle of the exchange: it takes effect
// at the end.
func (g *pauseGuard) hold(k *kernel.Kernel) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.on && k.IsPaused() {
		k.Unpause()
		g.owed++
		log.Infof("tpu: a pause came in the middle of an exchange; it takes effect afterwards")
	}
}

// end pauses the kernel again, as often as it was paused.
func (g *pauseGuard) end(k *kernel.Kernel) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for ; g.owed > 0; g.owed-- {
		k.Pause()
	}
	g.on = false
}
