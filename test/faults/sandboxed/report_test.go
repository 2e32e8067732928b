//go:build faults

package sandboxed

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"tpuvisor.dev/tpuvisor/test/faults"
)

// results are what has become of the rows, for the table that is printed at the end.
var results report

type report struct {
	mu   sync.Mutex
	done map[string]map[faults.Phase]result
}

type result struct {
	err  error
	took time.Duration
}

// record notes the result of a row in a phase. The test fails with it, and goes on.
func (r *report) record(t *testing.T, row faults.Row, phase faults.Phase, begun time.Time, err error) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done == nil {
		r.done = map[string]map[faults.Phase]result{}
	}
	if r.done[row.ID] == nil {
		r.done[row.ID] = map[faults.Phase]result{}
	}
	r.done[row.ID][phase] = result{err, time.Since(begun)}
	fmt.Printf("%-36s %-12s %5.1fs %s\n", row.ID, phase, time.Since(begun).Seconds(), outcome(err))
	if err != nil {
		t.Errorf("%s at %s: %v", row.ID, phase, err)
	}
}

func outcome(err error) string {
	if err != nil {
		return "FAILED: " + firstLine(err)
	}
	return "ok"
}

// print prints the table, with what the runner in process has left. It returns how many
// rows have not been done or have failed there, if all should have been done.
func (r *report) print(all bool) int {
	if r.done == nil {
		return 0
	}
	inProcess, err := faults.Left()
	if err != nil {
		fmt.Println("what was done in process is not known:", err)
		return 1
	}
	fmt.Printf("\n%-36s %-12s %-16s %-16s %-16s\n", "fault", "in process", "checkpoint", "resume", "restore")
	n, failed, missing := 0, 0, 0
	for _, row := range faults.Table {
		text, bad, lacks := r.line(row, inProcess)
		if text == "" && !(lacks && all) {
			continue
		}
		n++
		if bad {
			failed++
		}
		if lacks && all {
			missing++
			text = fmt.Sprintf("%-36s NOT DONE", row.ID)
		}
		fmt.Println(text)
	}
	fmt.Printf("%d rows, %d failed, %d not done\n", n, failed, missing)
	return failed + missing
}

// line is a row of the table, or "" if nobody has done it.
func (r *report) line(row faults.Row, inProcess faults.Results) (text string, failed, lacks bool) {
	ok, there := inProcess[row.ID]
	done := r.done[row.ID]
	lacks = inProcess != nil && row.In&faults.InProcess != 0 && !there || row.In&faults.Sandboxed != 0 && done == nil
	if !there && done == nil {
		return "", false, lacks
	}
	failed = there && !ok
	text = fmt.Sprintf("%-36s %-12s", row.ID, cell(there, failed))
	for _, phase := range faults.Phases {
		res, there := done[phase]
		text += fmt.Sprintf(" %-6s", cell(there, res.err != nil))
		if there {
			text += fmt.Sprintf(" %5.1fs   ", res.took.Seconds())
		} else {
			text += fmt.Sprintf("%10s", "")
		}
		failed = failed || res.err != nil
	}
	text = strings.TrimRight(text, " ")
	for _, phase := range faults.Phases {
		if err := done[phase].err; err != nil {
			text += "\n        " + firstLine(err)
		}
	}
	return text, failed, lacks
}

func cell(done, failed bool) string {
	switch {
	case failed:
		return "FAILED"
	case done:
		return "ok"
	}
	return ""
}

func firstLine(err error) string {
	text, _, _ := strings.Cut(strings.TrimSpace(err.Error()), "\n")
	if len(text) > 300 {
		text = strings.ToValidUTF8(text[:300], "") + "..."
	}
	return text
}
