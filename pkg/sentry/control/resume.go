package control

import (
	"fmt"

	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// PostResume gives the TPUs back after a save that leaves the sandbox running, or
// after a resume of a sandbox that was saved while it was paused. With nothing
// detached it sends nothing.
func (p *Plane) PostResume(k *kernel.Kernel) error { return p.attach(k, false) }

// PostRestore gives the TPUs back after a restore.
func (p *Plane) PostRestore(k *kernel.Kernel) error { return p.attach(k, true) }

func (p *Plane) attach(k *kernel.Kernel, restored bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.detached = nil
	record, tasks, err := takeRecord(k)
	if err != nil {
		return fmt.Errorf("tpu: %w", err)
	}
	if record == nil {
		return nil
	}
	members, findErr := p.findAgain(k, record, tasks, restored)
	defer p.letGo(members)
	if err := p.pause.begin(k); err != nil {
		return fmt.Errorf("tpu: %w", err)
	}
	defer p.pause.end(k)
	_, errs := p.giveBack(k, members)
	if err := join(findErr, join(errs...)); err != nil {
		return fmt.Errorf("tpu: %w", err)
	}
	log.Infof("tpu: %d runtimes have their TPUs back", len(members))
	return nil
}

// letGo ends the use of the members' channels, and remembers of them what has to
// be.
func (p *Plane) letGo(members []*member) {
	runtimes := runtimesOf(members)
	p.memory.keep(runtimes)
	release(runtimes)
}
