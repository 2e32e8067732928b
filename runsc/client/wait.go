package client

import (
	"context"
	"errors"

	"gvisor.dev/gvisor/runsc/container"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/api"
)

// ErrPaused: the sandbox is paused, so that its TPUs do not come back.
var ErrPaused = errors.New("the sandbox is paused; its TPUs come back when it is resumed")

// AwaitTPUs returns when a sandbox has its TPUs, or with an error that says why it
// does not get them back. It is about what began after the operation after; 0 is
// everything. It does not wait for a resume that nobody has asked for.
func AwaitTPUs(ctx context.Context, c *container.Container, after uint64) error {
	for {
		var o api.Outcome
		if err := CallContext(ctx, c, api.OpWait, api.Wait{After: after}, &o); err != nil {
			return err
		}
		if !o.Done && o.Paused {
			return ErrPaused
		}
		if !o.Done {
			continue
		}
		if o.Error != "" {
			return errors.New(o.Error)
		}
		return nil
	}
}
