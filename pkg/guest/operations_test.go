package guest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

func nothing(context.Context) error { return nil }

// begun starts an operation that ends when the returned function is called, or when it
// is cancelled; its outcome is sent on the channel.
func begun(t *testing.T, m *Machine) (finish func(), outcome <-chan error) {
	t.Helper()
	started, end, result := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		result <- m.Do(t.Context(), func(ctx context.Context) error {
			close(started)
			select {
			case <-end:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}()
	<-started
	return func() { close(end) }, result
}

// answered asks in the background.
func answered(t *testing.T, m *Machine, a controlpb.ControlAction) <-chan *controlpb.ControlResponse {
	t.Helper()
	answer := make(chan *controlpb.ControlResponse, 1)
	go func() { answer <- m.Answer(t.Context(), ask(a)) }()
	return answer
}

func wantNone[T any](t *testing.T, c <-chan T) {
	t.Helper()
	synctest.Wait()
	select {
	case got := <-c:
		t.Fatalf("%v came too early", got)
	default:
	}
}

func TestDo_LockWaitsForOperations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := into(t, running)
		finish, first := begun(t, m)
		lockAnswer := answered(t, m, lock)
		wantNone(t, lockAnswer)
		second := make(chan error, 1)
		go func() { second <- m.Do(t.Context(), nothing) }()
		wantNone(t, second)

		finish()
		if err := <-first; err != nil {
			t.Errorf("operation in flight: %v", err)
		}
		wantAnswer(t, <-lockAnswer, true, locked)
		wantNone(t, second)
		mustDo(t, m, checkpoint, restore)
		wantNone(t, second)
		mustDo(t, m, unlock)
		if err := <-second; err != nil {
			t.Errorf("operation that was held back: %v", err)
		}
	})
}

func TestDo_LockGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := into(t, running)
		finish, first := begun(t, m)
		request := ask(lock)
		request.TimeoutSecs = proto.Int32(5)
		wantAnswer(t, m.Answer(t.Context(), request), false, running)
		if err := m.Do(t.Context(), nothing); err != nil {
			t.Errorf("operation after a LOCK that failed: %v", err)
		}
		finish()
		if err := <-first; err != nil {
			t.Errorf("operation in flight: %v", err)
		}
	})
}

func TestDo_CheckpointCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := into(t, running)
		_, outcome := begun(t, m)
		mustDo(t, m, checkpoint)
		if err := <-outcome; !errors.Is(err, ErrCancelled) {
			t.Errorf("operation in flight: %v, want ErrCancelled", err)
		}
		if err := m.Do(t.Context(), nothing); !errors.Is(err, ErrDetached) {
			t.Errorf("operation while detached: %v, want ErrDetached", err)
		}
		mustDo(t, m, restore)
		if err := m.Do(t.Context(), nothing); err != nil {
			t.Errorf("operation after RESTORE: %v", err)
		}
	})
}

func TestDo_Hold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMachine(Config{Device: newBoard(), Hold: true})
		finish, first := begun(t, m)
		answer := answered(t, m, checkpoint)
		wantNone(t, answer)
		finish()
		if err := <-first; err != nil {
			t.Errorf("operation in flight: %v", err)
		}
		wantAnswer(t, <-answer, true, detached)
		second := make(chan error, 1)
		go func() { second <- m.Do(t.Context(), nothing) }()
		wantNone(t, second)
		mustDo(t, m, restore)
		if err := <-second; err != nil {
			t.Errorf("operation that was held back: %v", err)
		}
	})
}

func TestDo_HeldBackEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := into(t, locked)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := m.Do(ctx, nothing); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("operation: %v, want the context's error", err)
		}
		mustDo(t, m, unlock)
	})
}

func TestDo_HeldBackWhenTheDeviceIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := into(t, locked)
		b.attach = func(context.Context) error { return errors.New("group is busy") }
		mustDo(t, m, checkpoint)
		held := make(chan error, 1)
		go func() { held <- m.Do(t.Context(), nothing) }()
		wantNone(t, held)
		wantAnswer(t, m.Answer(t.Context(), ask(restore)), false, faulted)
		if err := <-held; !errors.Is(err, ErrFaulted) {
			t.Errorf("operation: %v, want ErrFaulted", err)
		}
	})
}

func TestDo_ErrorsOfTheOperation(t *testing.T) {
	m, _ := into(t, running)
	broken := errors.New("broken")
	if err := m.Do(t.Context(), func(context.Context) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("got %v, want the operation's error", err)
	}
	mustDo(t, m, lock)
}
