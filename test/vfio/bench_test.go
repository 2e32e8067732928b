//go:build vfio

package vfio

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tpuvisor.dev/tpuvisor/test/vfio/model"
)

// margin is what is left of the time for the test, which is go's -timeout, to say how
// far the machine has come.
const margin = 10 * time.Second

// used says which TPUs a scenario must have used, by DMA.
var used = map[string][]int{
	"first-use":          {0},
	"leave-running":      {0},
	"held-open":          {0},
	"same-group":         {0},
	"other-group":        {0, 1},
	"busy-group":         {0, 1},
	"held-and-busy":      {0},
	"busy-for-good":      {0},
	"overlapping-groups": {0, 1, 2},
	"permuted-groups":    {0},
	"refusals":           {0},
}

func TestVFIO(t *testing.T) {
	b := getBench(t)
	runsc := os.Getenv("TPUVISOR_RUNSC")
	if runsc == "" {
		runsc = filepath.Join(moduleRoot(t), "bin", "runsc")
	}
	if _, err := os.Stat(runsc); err != nil {
		t.Fatalf("no runsc to test (make one with `make runsc`): %v", err)
	}
	ctx := t.Context()
	if end, ok := t.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end.Add(-margin))
		defer cancel()
	}
	only := os.Getenv("TPUVISOR_VFIO_SCENARIOS")
	m := b.boot(t, ctx, t.TempDir(), runsc, only)
	seen := 0
	for {
		switch e := m.next(t); e.Event {
		case "note":
			t.Log(e.Text)
		case "begin":
			seen++
			t.Run(e.Scenario, func(t *testing.T) { m.scenario(t, e) })
		case "failed":
			t.Fatal(e.Error)
		case "off":
			want := len(used)
			if only != "" {
				want = 1 + strings.Count(only, ",")
			}
			if seen != want {
				t.Errorf("%d scenarios were carried out, and not %d", seen, want)
			}
			return
		}
	}
}

// scenario follows one to its end.
func (m *machine) scenario(t *testing.T, begin event) {
	before := m.counts()
	m.goOn(t)
	for {
		e := m.next(t)
		switch e.Event {
		case "note":
			t.Log(e.Text)
		case "failed", "off":
			t.Fatalf("the machine has ended: %s", e.Error)
		case "end":
			after := m.counts()
			m.goOn(t)
			t.Logf("%.1f s", e.Seconds-begin.Seconds)
			if e.Error != "" {
				t.Error(e.Error)
			}
			for i := range after {
				m.judge(t, begin.Scenario, i, after[i].Sub(before[i]))
			}
			return
		}
	}
}

// judge tells what a device saw, and whether it should have.
func (m *machine) judge(t *testing.T, scenario string, n int, c model.Counts) {
	t.Helper()
	t.Logf("TPU %d saw %s", n, tell(c))
	if _, complaint := m.tpus[n].Counts(); c.Violations > 0 {
		t.Errorf("TPU %d: %d accesses that make no sense, the first of all: %s", n, c.Violations, complaint)
	}
	if c.Faults > 0 {
		t.Errorf("TPU %d: %d DMAs to memory that it cannot reach", n, c.Faults)
	}
	if c.Lost > 0 {
		t.Errorf("TPU %d: %d interrupts that nobody waited for", n, c.Lost)
	}
	for _, want := range used[scenario] {
		if want == n && c.In+c.Out == 0 && !t.Failed() {
			t.Errorf("TPU %d was not used", n)
		}
	}
}

func tell(c model.Counts) string {
	return fmt.Sprintf("%d mappings come and %d go (%d there), %d DMAs in and %d out, %d faults, %d interrupts, %d resets",
		c.Maps, c.Unmaps, c.Live, c.In, c.Out, c.Faults, c.Interrupts, c.Resets)
}
