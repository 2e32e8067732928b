package progress

import (
	"strings"
	"testing"
	"time"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/api"
)

func step(pid int32, command string, end time.Duration) *api.Step {
	s := &api.Step{
		Runtime: api.Runtime{Container: "c", PID: pid, TID: pid, Command: command},
		Action:  "CHECKPOINT", Start: time.Unix(100, 0), Limit: time.Minute, Result: "sent",
	}
	if end > 0 {
		s.End, s.Result, s.State = s.Start.Add(end), "acknowledged", "DETACHED"
	}
	return s
}

func TestLines(t *testing.T) {
	var out strings.Builder
	l := &lines{out: &out}
	for _, e := range []api.Event{
		{Kind: "checkpoint"},
		{Kind: "checkpoint", Phase: "detach"},
		{Kind: "checkpoint", Phase: "detach", Step: step(7, "a\x1b[31m", 0)},
		{Kind: "checkpoint", Phase: "detach", Step: step(7, "a\x1b[31m", 1500*time.Millisecond), Ended: true},
		{Kind: "checkpoint", Phase: "detach", Ended: true},
		{Kind: "checkpoint", Ended: true},
		{Kind: "restore", Ended: true, Error: "x"},
	} {
		l.event(e)
	}
	want := `tpu: checkpoint: detach
tpu: pid 7 ("a\x1b[31m") in container "c": CHECKPOINT sent, limit 1m0s
tpu: pid 7 ("a\x1b[31m") in container "c": CHECKPOINT acknowledged after 1.5s, DETACHED
tpu: checkpoint: done
tpu: restore: failed
`
	if got := out.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestBlock(t *testing.T) {
	b := newBlock(&strings.Builder{})
	b.event(api.Event{Kind: "checkpoint", Phase: "detach", Time: time.Unix(100, 0)})
	for pid := range int32(maxShown + 3) {
		b.event(api.Event{Kind: "checkpoint", Phase: "detach", Step: step(pid, "a", 0)})
	}
	b.event(api.Event{Kind: "checkpoint", Phase: "detach", Step: step(0, "a", time.Second), Ended: true})
	got := b.lines(time.Unix(130, 0))
	if len(got) != maxShown+2 {
		t.Fatalf("%d lines: %q", len(got), got)
	}
	for i, want := range map[int]string{
		0:            "checkpoint: detach 30s",
		1:            `  pid 0 ("a") in container "c": CHECKPOINT acknowledged after 1s DETACHED`,
		2:            `  pid 1 ("a") in container "c": CHECKPOINT 30s of 1m0s`,
		maxShown + 1: "  and 3 more",
	} {
		if got[i] != want {
			t.Errorf("line %d is %q, want %q", i, got[i], want)
		}
	}
}
