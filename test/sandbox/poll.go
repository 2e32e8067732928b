package sandbox

import (
	"context"
	"fmt"
	"time"
)

// Poll waits until done says so, or fails, or Patience is over. The error then
// says what was waited for.
func Poll(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := done()
		if err != nil {
			return fmt.Errorf("sandbox: wait for %s: %w", what, err)
		}
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("sandbox: wait for %s: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
}
