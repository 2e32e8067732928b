package guest

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// A driver is the other side: what it writes to, what it reads from, and what Serve
// returned.
type driver struct {
	requests io.WriteCloser
	answers  io.Reader
	served   <-chan error
}

// serving starts Serve on pipes of either kind.
func serving(t *testing.T, ctx context.Context, kind string, m *Machine) driver {
	t.Helper()
	var requests, answers io.ReadCloser
	var toRequests, toAnswers io.WriteCloser
	if kind == "os.Pipe" {
		requests, toRequests = osPipe(t)
		answers, toAnswers = osPipe(t)
	} else {
		requests, toRequests = io.Pipe()
		answers, toAnswers = io.Pipe()
	}
	t.Cleanup(func() {
		for _, c := range []io.Closer{requests, toRequests, answers, toAnswers} {
			c.Close()
		}
	})
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, requests, toAnswers, m) }()
	return driver{toRequests, answers, served}
}

func osPipe(t *testing.T) (*os.File, *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return r, w
}

func (d driver) ask(t *testing.T, a controlpb.ControlAction) *controlpb.ControlResponse {
	t.Helper()
	if err := tpuwire.WriteMessage(d.requests, ask(a)); err != nil {
		t.Fatal(err)
	}
	return d.answer(t)
}

func (d driver) answer(t *testing.T) *controlpb.ControlResponse {
	t.Helper()
	var got controlpb.ControlResponse
	if err := tpuwire.ReadMessage(d.answers, &got); err != nil {
		t.Fatal(err)
	}
	return &got
}

var pipeKinds = []string{"io.Pipe", "os.Pipe"}

func TestServe_WholeWay(t *testing.T) {
	for _, kind := range pipeKinds {
		t.Run(kind, func(t *testing.T) {
			m, _ := into(t, running)
			d := serving(t, t.Context(), kind, m)
			wantAnswer(t, d.ask(t, getState), true, running)
			wantAnswer(t, d.ask(t, lock), true, locked)
			wantAnswer(t, d.ask(t, checkpoint), true, detached)
			wantAnswer(t, d.ask(t, getState), true, detached)
			wantAnswer(t, d.ask(t, restore), true, locked)
			wantAnswer(t, d.ask(t, unlock), true, running)
			d.requests.Close()
			if err := <-d.served; err != nil {
				t.Errorf("Serve: %v", err)
			}
		})
	}
}

func TestServe_AnswersGarbage(t *testing.T) {
	m, _ := into(t, running)
	d := serving(t, t.Context(), "os.Pipe", m)
	if _, err := d.requests.Write([]byte{0, 0, 0, 2, 0xff, 0xff}); err != nil {
		t.Fatal(err)
	}
	wantAnswer(t, d.answer(t), false, running)
	wantAnswer(t, d.ask(t, getState), true, running)
}

func TestServe_LostStreams(t *testing.T) {
	for name, tc := range map[string]struct {
		bytes []byte
		kind  error
	}{
		"too large": {[]byte{0xff, 0xff, 0xff, 0xff}, tpuwire.ErrTooLarge},
		"truncated": {[]byte{0, 0, 0, 9, 1}, tpuwire.ErrTruncated},
	} {
		m, _ := into(t, running)
		d := serving(t, t.Context(), "os.Pipe", m)
		if _, err := d.requests.Write(tc.bytes); err != nil {
			t.Fatal(err)
		}
		d.requests.Close()
		if err := <-d.served; !errors.Is(err, tc.kind) {
			t.Errorf("%s: Serve: %v, want %v", name, err, tc.kind)
		}
	}
}

func TestServe_EndsWithItsContext(t *testing.T) {
	why := errors.New("shut down")
	for _, kind := range pipeKinds {
		t.Run(kind+", waiting for a request", func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			m, _ := into(t, running)
			d := serving(t, ctx, kind, m)
			wantAnswer(t, d.ask(t, getState), true, running)
			cancel(why)
			if err := <-d.served; !errors.Is(err, why) {
				t.Errorf("Serve: %v, want the context's cause", err)
			}
		})
		t.Run(kind+", in the middle of an action", func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			m, b := into(t, running)
			b.detach = func(ctx context.Context) error {
				cancel(why)
				<-ctx.Done()
				return ctx.Err()
			}
			d := serving(t, ctx, kind, m)
			if err := tpuwire.WriteMessage(d.requests, ask(checkpoint)); err != nil {
				t.Fatal(err)
			}
			if err := <-d.served; !errors.Is(err, why) {
				t.Errorf("Serve: %v, want the context's cause", err)
			}
		})
	}
}
