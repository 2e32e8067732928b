package control

import (
	"errors"
	"math/rand/v2"
	"time"

	"gvisor.dev/gvisor/pkg/sentry/kernel"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/api"
)

var (
	// ErrBusy: something else is under way in the sandbox.
	ErrBusy = errors.New("an operation on the sandbox's TPUs is under way")
	// ErrCanceled: whoever wanted the checkpoint does not want it any more.
	ErrCanceled = errors.New("the checkpoint was canceled")

	errGateShut = errors.New("a pause or resume of the sandbox is under way; wait for it to end and try again")
	errGateLost = errors.New("the sandbox has waited too long for this pause or resume")
)

// A gate keeps operations from beginning while the sandbox is paused or resumed
// from outside: during an exchange it runs although it counts as paused, and a
// resume then is more than gVisor survives.
//
// It is held for api.GateTime at a time, so that the death of the command that
// holds it does not keep it shut.
type gate struct {
	token   uint64 // 0 for an open gate
	purpose string
	until   time.Time
	paused  bool // by the gate itself
}

func (g *gate) shut() bool { return g.token != 0 && time.Now().Before(g.until) }

// shutGate takes the gate, or holds it longer.
func (d *Desk) shutGate(k *kernel.Kernel, args api.Gate) (api.Gated, error) {
	d.mu.Lock()
	g := &d.gate
	if args.Token != 0 {
		defer d.mu.Unlock()
		if g.token != args.Token {
			return api.Gated{}, errGateLost
		}
		g.until = time.Now().Add(api.GateTime)
		return api.Gated{Token: g.token, Last: d.lastID}, nil
	}
	err := d.busy()
	if err == nil && g.shut() {
		err = errGateShut
	}
	if err != nil {
		d.mu.Unlock()
		return api.Gated{}, err
	}
	*g = gate{token: rand.Uint64() | 1, purpose: args.For, until: time.Now().Add(api.GateTime)}
	gated := api.Gated{Token: g.token, Last: d.lastID}
	d.mu.Unlock()
	if args.For == api.ForResume && !k.IsPaused() {
		// The last resume got as far as letting the sandbox run, and failed then,
		// so that it still counts as paused on the host. Another resume, which
		// brings the TPUs back, has to find it paused.
		k.Pause()
		d.mu.Lock()
		g.paused = true
		d.mu.Unlock()
	}
	return gated, nil
}

// openGate gives the gate back.
func (d *Desk) openGate(k *kernel.Kernel, args api.Gated) {
	d.mu.Lock()
	mine := args.Token != 0 && d.gate.token == args.Token
	paused := mine && d.gate.paused
	if mine {
		d.gate = gate{}
		d.wake()
	}
	d.mu.Unlock()
	if paused && k.IsPaused() {
		k.Unpause() // the resume was not made
	}
}
