package libtpusim

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// Fault is one way in which a runtime breaks the contract. As text it is
//
//	kind[=value]@ACTION[:key=value[,key=value…]]
//
// with ACTION a verb of the protocol or *, and the keys
//
//	rank=N    only the member N does it, and not all
//	nth=N     only at the N-th request of that action, and not at each; from 1
//	act=B     whether what was asked is done all the same (true, false)
//	at=WHEN   for the faults that end something: before (the default), acted,
//	          half (with half of the answer written) or after (with all of it)
//	state=S   the state that the answer gives
//	text=T    the words that the answer gives
//
// Values are percent-encoded where they hold one of ",;:@%". Kinds lists the kinds.
type Fault struct {
	Kind   string
	Value  string
	Action controlpb.ControlAction // ACTION_UNSPECIFIED: any
	Rank   int                     // -1: any
	Nth    int                     // 0: each
	Act    *bool                   // nil: as the kind has it
	At     string
	State  *controlpb.RuntimeState
	Text   string
}

// Faults are the faults of a job's runtimes. As text they stand one after the
// other, with semicolons between.
type Faults []Fault

// ParseFaults reads faults from text. An empty text has none.
func ParseFaults(text string) (Faults, error) {
	var faults Faults
	for word := range strings.SplitSeq(text, ";") {
		if word = strings.TrimSpace(word); word == "" {
			continue
		}
		f, err := parseFault(word)
		if err != nil {
			return nil, fmt.Errorf("libtpusim: fault %q: %w", word, err)
		}
		faults = append(faults, f)
	}
	return faults, nil
}

func parseFault(text string) (Fault, error) {
	f := Fault{Rank: -1}
	head, keys, _ := strings.Cut(text, ":")
	what, action, ok := strings.Cut(head, "@")
	if !ok {
		return f, fmt.Errorf("no @ACTION in it")
	}
	if action != "*" {
		if f.Action, ok = parseAction(action); !ok {
			return f, fmt.Errorf("unknown action %q", action)
		}
	}
	var err error
	f.Kind, f.Value, _ = strings.Cut(what, "=")
	if f.Value, err = url.PathUnescape(f.Value); err != nil {
		return f, err
	}
	for pair := range strings.SplitSeq(keys, ",") {
		if pair == "" {
			continue
		}
		if err := f.set(pair); err != nil {
			return f, err
		}
	}
	return f, f.check()
}

func (f *Fault) set(pair string) error {
	key, value, _ := strings.Cut(pair, "=")
	value, err := url.PathUnescape(value)
	if err != nil {
		return err
	}
	switch key {
	case "rank":
		f.Rank, err = strconv.Atoi(value)
	case "nth":
		f.Nth, err = strconv.Atoi(value)
	case "act":
		var act bool
		act, err = strconv.ParseBool(value)
		f.Act = &act
	case "at":
		f.At = value
	case "state":
		f.State, err = parseAnyState(value)
	case "text":
		f.Text = value
	default:
		err = fmt.Errorf("unknown key %q", key)
	}
	return err
}

// parseAnyState takes a state of the protocol, or the number of one that is none.
func parseAnyState(name string) (*controlpb.RuntimeState, error) {
	if s, ok := parseState(name); ok {
		return &s, nil
	}
	n, err := strconv.ParseInt(name, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("unknown state %q", name)
	}
	return controlpb.RuntimeState(n).Enum(), nil
}

func (f *Fault) check() error {
	kind, ok := kinds[f.Kind]
	switch {
	case !ok:
		return fmt.Errorf("unknown kind %q; known are %s", f.Kind, strings.Join(Kinds(), ", "))
	case kind.value != nil:
		if err := kind.value(f.Value); err != nil {
			return fmt.Errorf("value %q: %w", f.Value, err)
		}
	case f.Value != "":
		return fmt.Errorf("%s takes no value", f.Kind)
	}
	if !slices.Contains([]string{"", atBefore, atActed, atHalf, atAfter}, f.At) {
		return fmt.Errorf("at=%s is none of %s, %s, %s, %s", f.At, atBefore, atActed, atHalf, atAfter)
	}
	return nil
}

// The values of a Fault's At.
const (
	atBefore = "before"
	atActed  = "acted"
	atHalf   = "half"
	atAfter  = "after"
)

func isDuration(s string) error { _, err := time.ParseDuration(s); return err }
func isState(s string) error    { _, err := parseAnyState(s); return err }
func isText(string) error       { return nil }

// String is the fault as text, which ParseFaults reads.
func (f Fault) String() string {
	var b strings.Builder
	b.WriteString(f.Kind)
	if f.Value != "" {
		b.WriteString("=" + escape(f.Value))
	}
	b.WriteString("@" + actionText(f.Action))
	separator := ":"
	add := func(key, value string, is bool) {
		if is {
			b.WriteString(separator + key + "=" + escape(value))
			separator = ","
		}
	}
	add("rank", strconv.Itoa(f.Rank), f.Rank >= 0)
	add("nth", strconv.Itoa(f.Nth), f.Nth > 0)
	add("act", strconv.FormatBool(f.Act != nil && *f.Act), f.Act != nil)
	add("at", f.At, f.At != "")
	if f.State != nil {
		add("state", tpuwire.StateName(*f.State), true)
	}
	add("text", f.Text, f.Text != "")
	return b.String()
}

func actionText(a controlpb.ControlAction) string {
	if a == controlpb.ControlAction_ACTION_UNSPECIFIED {
		return "*"
	}
	return tpuwire.ActionName(a)
}

// escape encodes what would end a value. PathEscape leaves ":" and "@", which can
// do no harm in a value: what stands before them is cut off first.
func escape(value string) string {
	return strings.NewReplacer(":", "%3A", "@", "%40", "=", "%3D").Replace(url.PathEscape(value))
}

func (fs Faults) String() string {
	words := make([]string, len(fs))
	for i, f := range fs {
		words[i] = f.String()
	}
	return strings.Join(words, ";")
}

// find returns the first fault that is for this request, or comes ahead of it.
func (fs Faults) find(rank int, a controlpb.ControlAction, nth int, ahead bool) (Fault, bool) {
	for _, f := range fs {
		if f.fits(rank, a, nth) && kinds[f.Kind].ahead == ahead {
			return f, true
		}
	}
	return Fault{}, false
}

func (f Fault) fits(rank int, a controlpb.ControlAction, nth int) bool {
	return (f.Rank < 0 || f.Rank == rank) &&
		(f.Action == controlpb.ControlAction_ACTION_UNSPECIFIED || f.Action == a) &&
		(f.Nth == 0 || f.Nth == nth)
}
