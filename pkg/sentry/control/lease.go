package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/pipe"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/api"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// The time for which runtimes may be locked.
const (
	MinLease = time.Second
	MaxLease = 24 * time.Hour
)

// leaseKey is where a lease is kept in the kernel's checkpoint state: []byte, a
// savedLease as JSON.
const leaseKey = "tpuvisor-lease"

// A lease is the order to keep the runtimes locked for a time. The desk's mu guards
// it.
type lease struct {
	k        *kernel.Kernel
	runtimes map[*pipe.Pipe]api.Runtime // by response pipe; empty without a lease
	duration time.Duration
	until    time.Time
	keep     bool
	timer    *time.Timer
}

type savedLease struct {
	Duration time.Duration `json:"duration"`
	Keep     bool          `json:"keep"`
}

func (l *lease) held() bool { return len(l.runtimes) > 0 }

func (l *lease) describe() *api.Lease {
	if !l.held() {
		return nil
	}
	return &api.Lease{Until: l.until, Duration: l.duration, Keep: l.keep, Runtimes: len(l.runtimes)}
}

// leased reports whether a runtime was locked by order of the operator.
func (d *Desk) leased(response *pipe.Pipe) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.lease.runtimes[response]
	return ok
}

// lock locks every runtime that is not locked already, and begins the lease anew.
func (d *Desk) lock(k *kernel.Kernel, args api.Lock) (api.Locked, error) {
	if args.Lease < MinLease || args.Lease > MaxLease {
		return api.Locked{}, fmt.Errorf("the lease is %v; allowed is %v to %v", args.Lease, MinLease, MaxLease)
	}
	op, err := d.tryBegin(api.KindLock, api.PhaseAsk)
	if err != nil {
		return api.Locked{}, err
	}
	members, err := d.plane.lockAll(k)
	if err == nil {
		d.extend(k, members, args)
	}
	d.end(op, err)
	d.mu.Lock()
	defer d.mu.Unlock()
	return api.Locked{Runtimes: d.lease.list(), Lease: d.lease.describe()}, err
}

// extend makes members part of the lease, which begins anew.
func (d *Desk) extend(k *kernel.Kernel, members []lockedRuntime, args api.Lock) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := &d.lease
	l.stop()
	if len(members) == 0 {
		*l = lease{}
		return
	}
	l.k, l.duration, l.keep = k, args.Lease, args.Keep
	l.runtimes = map[*pipe.Pipe]api.Runtime{}
	for _, m := range members {
		l.runtimes[m.response] = m.who
	}
	l.until = time.Now().Add(l.duration)
	l.timer = time.AfterFunc(l.duration, d.checkLease)
}

func (l *lease) stop() {
	if l.timer != nil {
		l.timer.Stop()
	}
}

func (l *lease) list() []api.Runtime {
	all := make([]api.Runtime, 0, len(l.runtimes))
	for _, who := range l.runtimes {
		all = append(all, who)
	}
	return sortedRuntimes(all)
}

// unlock ends the lease: those that were locked for it are unlocked.
func (d *Desk) unlock(k *kernel.Kernel) (api.Locked, error) {
	op, err := d.tryBegin(api.KindUnlock, api.PhaseAsk)
	if err != nil {
		return api.Locked{}, err
	}
	d.mu.Lock()
	was := d.lease.list()
	d.mu.Unlock()
	err = d.plane.unlockAll(k)
	if !errors.Is(err, errPaused) && !errors.Is(err, errDetached) {
		d.mu.Lock()
		d.lease.stop()
		d.lease = lease{}
		d.mu.Unlock()
	}
	d.end(op, err)
	return api.Locked{Runtimes: was}, err
}

// leaseRetry is how long a lease that has run out waits for the sandbox to be fit
// to be asked.
const leaseRetry = time.Second

// checkLease unlocks the runtimes if the lease has run out. During a checkpoint,
// and while the sandbox is paused, that waits.
func (d *Desk) checkLease() {
	d.mu.Lock()
	l := &d.lease
	k := l.k
	over := l.held() && !time.Now().Before(l.until)
	d.mu.Unlock()
	if !over || k.TaskSet().IsExiting() {
		return
	}
	if k.IsPaused() || d.plane.pending(k) {
		d.retryLease()
		return
	}
	go func() {
		log.Infof("tpu: the lease has run out; the runtimes are unlocked")
		if _, err := d.unlock(k); err != nil {
			log.Warningf("tpu: unlocking at the end of the lease: %v", err)
			d.retryLease()
		}
	}()
}

func (d *Desk) retryLease() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lease.held() {
		d.lease.stop()
		d.lease.timer = time.AfterFunc(leaseRetry, d.checkLease)
	}
}

// saveLease puts the lease into the image.
func (d *Desk) saveLease(k *kernel.Kernel) {
	d.mu.Lock()
	saved, held := savedLease{Duration: d.lease.duration, Keep: d.lease.keep}, d.lease.held()
	d.mu.Unlock()
	if !held {
		return
	}
	data, err := json.Marshal(saved)
	if err != nil {
		log.Warningf("tpu: keeping the lease: %v", err)
		return
	}
	k.AddStateToCheckpoint(leaseKey, data)
}

func dropLease(k *kernel.Kernel) { k.PopCheckpointState(leaseKey) }

// takeLease finds in a restored sandbox what it was locked with. attaching makes
// use of it.
func (d *Desk) takeLease(k *kernel.Kernel) {
	data, _ := k.PopCheckpointState(leaseKey).([]byte)
	var saved savedLease
	if len(data) == 0 {
		return
	}
	if err := json.Unmarshal(data, &saved); err != nil {
		log.Warningf("tpu: the image's lease: %v", err)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lease = lease{k: k, duration: max(MinLease, min(saved.Duration, MaxLease)), keep: saved.Keep}
}

// attaching is told who is given back its TPU. After a restore, runtimes that were
// locked by order of the operator are unlocked then, or the lease begins anew.
func (d *Desk) attaching(members []*member, restored bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := &d.lease
	if !restored || l.duration == 0 {
		return
	}
	l.runtimes = map[*pipe.Pipe]api.Runtime{}
	for _, m := range members {
		switch {
		case m.found != controlpb.RuntimeState_STATE_LOCKED:
		case l.keep:
			l.runtimes[m.channel.responsePipe] = m.who()
		case m.standing == detached:
			m.standing = lockedDetached
		}
	}
	if !l.held() {
		*l = lease{}
		return
	}
	l.until = time.Now().Add(l.duration)
	l.timer = time.AfterFunc(l.duration, d.checkLease)
}
