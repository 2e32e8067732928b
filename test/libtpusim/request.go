package libtpusim

import (
	"fmt"
	"strings"
	"time"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// Request is one request as a runtime received it.
type Request struct {
	Time    time.Time
	Rank    int
	Action  controlpb.ControlAction
	Timeout time.Duration          // that the driver gave
	State   controlpb.RuntimeState // in which the runtime was
}

// String is the request as a line of a log. ParseRequest reads it.
func (q Request) String() string {
	return fmt.Sprintf("%s rank %d %s timeout %s state %s", q.Time.UTC().Format(time.RFC3339Nano), q.Rank,
		tpuwire.ActionName(q.Action), q.Timeout, tpuwire.StateName(q.State))
}

// ParseRequest reads a line of a log.
func ParseRequest(line string) (Request, error) {
	var q Request
	var when, action, timeout, state string
	_, err := fmt.Sscanf(line, "%s rank %d %s timeout %s state %s", &when, &q.Rank, &action, &timeout, &state)
	if err != nil {
		return Request{}, fmt.Errorf("libtpusim: %q is no logged request: %w", line, err)
	}
	if q.Time, err = time.Parse(time.RFC3339Nano, when); err != nil {
		return Request{}, fmt.Errorf("libtpusim: %q is no logged request: %w", line, err)
	}
	if q.Timeout, err = time.ParseDuration(timeout); err != nil {
		return Request{}, fmt.Errorf("libtpusim: %q is no logged request: %w", line, err)
	}
	q.Action, _ = parseAction(action)
	q.State, _ = parseState(state)
	return q, nil
}

func parseAction(name string) (controlpb.ControlAction, bool) {
	n, ok := controlpb.ControlAction_value["ACTION_"+strings.ToUpper(name)]
	return controlpb.ControlAction(n), ok
}

func parseState(name string) (controlpb.RuntimeState, bool) {
	n, ok := controlpb.RuntimeState_value["STATE_"+strings.ToUpper(name)]
	return controlpb.RuntimeState(n), ok
}
