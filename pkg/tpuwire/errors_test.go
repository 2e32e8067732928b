package tpuwire

import (
	"fmt"
	"strings"
	"testing"

	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

func TestRefusedError(t *testing.T) {
	for _, tc := range []struct {
		err  RefusedError
		want string
	}{
		{RefusedError{}, "runtime refused UNSPECIFIED"},
		{
			RefusedError{
				Action: controlpb.ControlAction_ACTION_CHECKPOINT,
				State:  controlpb.RuntimeState_STATE_FAULTED,
				Words:  "device \x1b[31mlost",
			},
			`runtime refused CHECKPOINT, state FAULTED: "device \x1b[31mlost"`,
		},
		{RefusedError{Action: 77, State: 99}, "runtime refused 77, state 99"},
	} {
		wrapped := fmt.Errorf("guest 17: %w", &tc.err)
		wantKind(t, wrapped, ErrRefused)
		if got := tc.err.Error(); got != tc.want {
			t.Errorf("got  %s\nwant %s", got, tc.want)
		}
	}
}

func TestRefusedError_CutsLongWords(t *testing.T) {
	err := RefusedError{Words: strings.Repeat("w", 1<<20)}
	if n := len(err.Error()); n > 2*maxWords {
		t.Errorf("an error of %d bytes", n)
	}
}
