package control

import (
	gocontext "context"
	"fmt"
	"time"

	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// PostResume gives the TPUs back after a save that leaves the sandbox running, or
// after a resume of a sandbox that was saved while it was paused. With nothing
// detached it sends nothing.
func (p *Plane) PostResume(k *kernel.Kernel) error { return p.attach(k, false) }

// PostRestore gives the TPUs back after a restore.
func (p *Plane) PostRestore(k *kernel.Kernel) error {
	if p.Devices.AfterRestore != nil {
		if err := p.Devices.AfterRestore(k); err != nil {
			return fmt.Errorf("tpu: showing the sandbox its TPUs: %w", err)
		}
	}
	return p.attach(k, true)
}

func (p *Plane) attach(k *kernel.Kernel, restored bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.detached = nil
	d, err := takeRecord(k)
	if err != nil {
		return fmt.Errorf("tpu: %w", err)
	}
	if d == nil {
		return nil
	}
	if err := p.reattach(k, d, restored); err != nil {
		return fmt.Errorf("tpu: %w", err)
	}
	return nil
}

func (p *Plane) reattach(k *kernel.Kernel, d *detachment, restored bool) error {
	members, findErr := p.findAgain(k, d, restored)
	if p.attaching != nil {
		p.attaching(members, restored)
	}
	defer p.letGo(members)
	if err := p.pause.begin(k); err != nil {
		return err
	}
	defer p.pause.end(k)
	c := startClock()
	if err := p.waitFree(k, c, members); err != nil {
		// Nothing was sent, so that another resume can try again.
		return join(findErr, err, d.put(k))
	}
	_, errs := p.giveBack(k, c, members)
	if err := join(findErr, join(errs...)); err != nil {
		return err
	}
	return nil
}

// waitFree waits until the groups can be opened: RESTORE into one that is still
// held fails, and leaves the runtime unusable. It ends with the shortest of the
// members' limits.
func (p *Plane) waitFree(k *kernel.Kernel, c clock, members []*member) error {
	if p.Devices.WaitFree == nil || len(members) == 0 {
		return nil
	}
	limit := members[0].limitFor(actRestore)
	for _, m := range members {
		limit = min(limit, m.limitFor(actRestore))
	}
	ctx, stop := gocontext.WithDeadline(gocontext.Background(), c.start.Add(limit))
	defer stop()
	err := p.Devices.WaitFree(ctx, k)
	if err != nil {
		return fmt.Errorf("nobody was asked to RESTORE: %w", err)
	}
	if waited := time.Since(c.start); waited > time.Second {
		log.Infof("tpu: waited %v for the TPUs' groups to be free", waited.Round(time.Millisecond))
	}
	return nil
}

// letGo ends the use of the members' channels, and remembers of them what has to
// be.
func (p *Plane) letGo(members []*member) {
	runtimes := runtimesOf(members)
	p.memory.keep(runtimes)
	release(runtimes)
}
