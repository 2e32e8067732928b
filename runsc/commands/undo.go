package commands

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/runsc/container"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/api"
	"tpuvisor.dev/tpuvisor/pkg/sentry/savehook"
	"tpuvisor.dev/tpuvisor/runsc/client"
)

// settleTime is how long a command waits for a failed checkpoint to be undone. The
// longest limit that a runtime can have is an hour.
const settleTime = 65 * time.Minute

// explain adds to the error of a checkpoint how it was undone.
func explain(cont *container.Container, err error) error {
	if strings.Contains(err.Error(), savehook.ErrBusy.Error()) {
		return err // what there is to settle is another's
	}
	end := time.Now().Add(settleTime)
	for {
		var s api.Settled
		call := client.Call(cont, api.OpSettle, nil, &s)
		switch {
		case errors.Is(call, client.ErrGone):
			return fmt.Errorf("the sandbox has ended before it was saved: %w", err)
		case call != nil:
			log.Infof("Asking the sandbox how the checkpoint was undone: %v", call)
			return err
		case s.Done && s.Undone != "":
			return fmt.Errorf("%w; %s", err, s.Undone)
		case s.Done:
			return err
		case time.Now().After(end):
			return fmt.Errorf("%w; its undo is still under way", err)
		}
	}
}

// cancelTry is how often a checkpoint is looked for that has not begun yet.
const cancelTry = 100 * time.Millisecond

// cancelOnSignal makes an interrupt cancel the checkpoint instead of ending the
// command, which would leave the sandbox to go on alone. The returned function ends
// that, and tells whether there was a signal.
func cancelOnSignal(cont *container.Container) (stop func() bool) {
	since := time.Now()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	ctx, cancel := context.WithCancel(context.Background())
	var canceled bool
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case s := <-signals:
			canceled = true
			requestCancel(ctx, cont, since, s)
		case <-ctx.Done():
		}
	})
	return func() bool {
		cancel()
		wg.Wait()
		signal.Stop(signals)
		return canceled
	}
}

func requestCancel(ctx context.Context, cont *container.Container, since time.Time, s os.Signal) {
	switch c := cancelCheckpoint(ctx, cont, since); {
	case c.Canceled:
		fmt.Fprintf(os.Stderr, "%v: the checkpoint is given up as soon as the TPU runtimes have answered\n", s)
	case c.Phase != "":
		fmt.Fprintf(os.Stderr, "%v: too late to give up the checkpoint: the sandbox is being saved\n", s)
	}
}

// cancelCheckpoint cancels the checkpoint under way, or the next to begin until ctx
// ends, but none that has begun before since: that is another command's. It returns
// nothing if there was none, or if the sandbox has ended.
func cancelCheckpoint(ctx context.Context, cont *container.Container, since time.Time) api.Canceled {
	tick := time.NewTicker(cancelTry)
	defer tick.Stop()
	for {
		var c api.Canceled
		if err := client.CallContext(ctx, cont, api.OpCancel, api.Cancel{Since: since}, &c); err != nil {
			return api.Canceled{}
		}
		if c.Canceled || c.Phase != "" {
			return c
		}
		select {
		case <-ctx.Done():
			return api.Canceled{}
		case <-tick.C:
		}
	}
}
