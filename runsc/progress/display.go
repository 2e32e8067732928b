package progress

import (
	"fmt"
	"io"
	"strings"
	"time"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/api"
	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
)

// nothing shows nothing.
type nothing struct{}

func (nothing) event(api.Event) {}
func (nothing) tick(time.Time)  {}
func (nothing) end()            {}

// lines shows a line for each event.
type lines struct{ out io.Writer }

func (l *lines) tick(time.Time) {}
func (l *lines) end()           {}

func (l *lines) event(e api.Event) {
	if text := describe(e); text != "" {
		fmt.Fprintf(l.out, "tpu: %s\n", text)
	}
}

// describe is an event in words, or "" for one that says nothing new.
func describe(e api.Event) string {
	switch {
	case e.Step != nil && e.Ended:
		text := fmt.Sprintf("%s: %s %s after %v", who(e.Step.Runtime), e.Step.Action, e.Step.Result, Round(e.Step.End.Sub(e.Step.Start)))
		if e.Step.State != "" {
			text += ", " + e.Step.State
		}
		if e.Error != "" {
			text += ": " + e.Error
		}
		return text
	case e.Step != nil:
		return fmt.Sprintf("%s: %s sent, limit %v", who(e.Step.Runtime), e.Step.Action, e.Step.Limit)
	case e.Phase != "" && !e.Ended:
		return fmt.Sprintf("%s: %s", e.Kind, e.Phase)
	case e.Phase == "" && e.Ended && e.Error != "":
		return fmt.Sprintf("%s: failed", e.Kind)
	case e.Phase == "" && e.Ended:
		return fmt.Sprintf("%s: done", e.Kind)
	}
	return ""
}

const maxCommand = 32

func who(r api.Runtime) string {
	return fmt.Sprintf("pid %d (%s) in container %q", r.PID, tpuwire.Quote(r.Command, maxCommand), r.Container)
}

// Round makes a duration fit for a person.
func Round(d time.Duration) time.Duration {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond)
	case d < time.Minute:
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Second)
}

// A block is lines on a terminal that change: one for the phase, and one for each
// runtime.
type block struct {
	out   io.Writer
	drawn int // lines on the terminal that are ours to change

	kind, phase string
	began       time.Time
	order       []int32
	steps       map[int32]api.Step // the latest of each runtime, by thread
	over        bool
}

func newBlock(out io.Writer) *block { return &block{out: out, steps: map[int32]api.Step{}} }

func (b *block) event(e api.Event) {
	switch {
	case e.Step != nil:
		if _, known := b.steps[e.Step.TID]; !known {
			b.order = append(b.order, e.Step.TID)
		}
		b.steps[e.Step.TID] = *e.Step
	case e.Phase != "" && !e.Ended:
		b.kind, b.phase, b.began, b.over = e.Kind, e.Phase, e.Time, false
	case e.Phase == "" && e.Ended:
		b.over = true
	}
	b.draw(time.Now())
}

func (b *block) tick(now time.Time) {
	if !b.over {
		b.draw(now)
	}
}

func (b *block) end() { b.drawn = 0 }

// maxShown is how many runtimes fit on most terminals.
const maxShown = 16

func (b *block) draw(now time.Time) {
	if b.kind == "" {
		return
	}
	var text strings.Builder
	if b.drawn > 0 {
		fmt.Fprintf(&text, "\x1b[%dA", b.drawn)
	}
	all := b.lines(now)
	for _, line := range all {
		fmt.Fprintf(&text, "\r\x1b[K%s\n", line)
	}
	b.drawn = len(all)
	_, _ = io.WriteString(b.out, text.String())
}

func (b *block) lines(now time.Time) []string {
	head := fmt.Sprintf("%s: %s", b.kind, b.phase)
	if !b.over {
		head += fmt.Sprintf(" %v", Round(now.Sub(b.began)))
	}
	all := []string{head}
	for i, tid := range b.order {
		if i == maxShown {
			all = append(all, fmt.Sprintf("  and %d more", len(b.order)-maxShown))
			break
		}
		s := b.steps[tid]
		line := fmt.Sprintf("  %s: %s", who(s.Runtime), s.Action)
		if s.End.IsZero() {
			line += fmt.Sprintf(" %v of %v", Round(now.Sub(s.Start)), s.Limit)
		} else {
			line += fmt.Sprintf(" %s after %v %s", s.Result, Round(s.End.Sub(s.Start)), s.State)
		}
		all = append(all, strings.TrimRight(line, " "))
	}
	return all
}
