//go:build faults

package sandboxed

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"tpuvisor.dev/tpuvisor/test/faults"
	"tpuvisor.dev/tpuvisor/test/trial"
)

var (
	cycles = flag.Int("cycles", 8, "how many checkpoints the soak makes")
	seed   = flag.Uint64("seed", 0, "what the soak's chance depends on; 0: another one each time")
)

const (
	stretch = 20       // cycles between two moves to another host
	settled = 4        // cycles after which a sandbox has all that it will ever need
	memory  = 64 << 10 // KiB that it may grow by, for what the collector has not found
)

// TestSoak makes checkpoint after checkpoint of one job, in some of which a runtime
// misbehaves by chance, and wants the sandbox not to grow.
func TestSoak(t *testing.T) {
	s := *seed
	if s == 0 {
		s = rand.Uint64()
	}
	fmt.Printf("soak: %d cycles; again with: -cycles %d -seed %d\n", *cycles, *cycles, s)
	plan := planned(rand.New(rand.NewPCG(s, 0)), *cycles)
	var text []string
	for i, row := range plan {
		if row != nil {
			text = append(text, fmt.Sprintf("%s,nth=%d", row.FaultAt(faults.Checkpoint, limit, bad), i+1))
		}
	}
	r, err := start(t, trial.Job{Processes: members, Fault: strings.Join(text, ";")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	}()
	var early *size
	for i, row := range plan {
		switch i % stretch {
		case settled:
			early = r.size(t)
		case stretch - 1:
			early.wantNoMore(t, r)
			early = nil
		}
		if err := r.cycle(row, i%stretch == stretch-1); err != nil {
			t.Fatalf("cycle %d (%s): %v", i+1, name(row), err)
		}
	}
	if early != nil {
		early.wantNoMore(t, r)
	}
}

// planned has a row for each cycle, or nil for one in which nobody misbehaves.
func planned(chance *rand.Rand, n int) []*faults.Row {
	able := rows(func(r faults.Row) bool { return lasting(r, r.Detach) && r.Detach.Error != faults.None })
	plan := make([]*faults.Row, n)
	for i := range plan {
		// One that moves has to succeed.
		if i%stretch != stretch-1 && chance.IntN(2) == 0 {
			plan[i] = &able[chance.IntN(len(able))]
		}
	}
	return plan
}

func name(row *faults.Row) string {
	if row == nil {
		return "no fault"
	}
	return row.ID
}

func (r *rig) cycle(row *faults.Row, moves bool) error {
	if row != nil {
		return guestRow(r, *row, faults.Checkpoint, bad)
	}
	if !moves {
		image, err := r.save()
		return errors.Join(err, os.RemoveAll(image), r.goesOn())
	}
	image, err := r.Checkpoint(r.ctx)
	if err == nil {
		err = r.Wipe()
	}
	if err == nil {
		err = r.Restore(r.ctx, image)
	}
	if err != nil {
		return err
	}
	state, err := r.Container.State(r.ctx)
	r.pid = state.PID
	return errors.Join(err, os.RemoveAll(image), r.goesOn())
}

// size is what a sandbox has.
type size struct {
	fds        map[string]int
	goroutines int
	memory     int // KiB
}

func (r *rig) size(t *testing.T) *size {
	t.Helper()
	fds, err := r.fds()
	if err != nil {
		t.Fatal(err)
	}
	s := &size{fds: fds}
	stacks, err := r.Runsc.Do(r.ctx, "debug", "-stacks", r.Container.ID)
	if err != nil {
		t.Fatal(err)
	}
	s.goroutines = strings.Count(stacks, "\ngoroutine ")
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rss, _ := strings.Cut(string(status), "RssAnon:")
	if _, err := fmt.Sscan(rss, &s.memory); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *size) wantNoMore(t *testing.T, r *rig) {
	t.Helper()
	if s == nil {
		return
	}
	now := r.size(t)
	fmt.Printf("soak: goroutines %d, and now %d; KiB %d, and now %d\n", s.goroutines, now.goroutines, s.memory, now.memory)
	if err := r.wantFDs(s.fds); err != nil {
		t.Error(err)
	}
	// The platform and the network have some that come and go.
	if now.goroutines > s.goroutines+8 {
		t.Errorf("the sandbox had %d goroutines, and has %d", s.goroutines, now.goroutines)
	}
	if now.memory > s.memory+memory {
		t.Errorf("the sandbox had %d KiB of memory, and has %d", s.memory, now.memory)
	}
}
