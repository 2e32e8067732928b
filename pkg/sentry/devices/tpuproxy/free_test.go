package tpuproxy

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// busyFor is a group that its holder lets go after a while.
func busyFor(d time.Duration) opener {
	until := time.Now().Add(d)
	return func() error {
		if time.Now().Before(until) {
			return unix.EBUSY
		}
		return nil
	}
}

func TestWaitFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		err := waitFree(t.Context(), map[uint32]opener{1: busyFor(0), 2: busyFor(7 * time.Second)})
		if waited := time.Since(start); err != nil || waited < 7*time.Second || waited > 7*time.Second+maxPause {
			t.Errorf("waited %v: %v", waited, err)
		}
	})
}

func TestWaitFreeLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err := waitFree(ctx, map[uint32]opener{9: busyFor(time.Hour), 1: busyFor(0), 4: busyFor(time.Hour)})
		busy := new(BusyError)
		if !errors.As(err, &busy) || !errors.Is(err, ErrBusy) || !slices.Equal(busy.Groups, []uint32{4, 9}) {
			t.Fatalf("got %v", err)
		}
		want := "/dev/vfio/4, /dev/vfio/9 still in use after 5s by somebody outside of this sandbox; `runsc tpu holders` on the host tells by whom"
		if busy.Error() != want {
			t.Errorf("got  %s\nwant %s", busy, want)
		}
	})
}

func TestWaitFreeOtherError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := waitFree(t.Context(), map[uint32]opener{3: func() error { return unix.EACCES }})
		if !errors.Is(err, unix.EACCES) || errors.Is(err, ErrBusy) {
			t.Errorf("got %v", err)
		}
	})
}

func TestWaitFreeNothing(t *testing.T) {
	if err := waitFree(t.Context(), nil); err != nil {
		t.Error(err)
	}
}
