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

// print prints the table. It returns how many rows have not been done, if all should
// have been.
func (r *report) print(all bool) int {
	if r.done == nil {
		return 0
	}
	fmt.Printf("\n%-36s %-16s %-16s %-16s\n", "fault", "checkpoint", "resume", "restore")
	failed := 0
	for _, row := range faults.Table {
		done := r.done[row.ID]
		if done == nil {
			continue
		}
		line := fmt.Sprintf("%-36s", row.ID)
		var why []string
		for _, phase := range faults.Phases {
			res, ok := done[phase]
			switch {
			case !ok:
				line += fmt.Sprintf(" %-16s", "")
			case res.err != nil:
				line += fmt.Sprintf(" %-16s", fmt.Sprintf("FAILED %5.1fs", res.took.Seconds()))
				why = append(why, firstLine(res.err))
			default:
				line += fmt.Sprintf(" %-16s", fmt.Sprintf("ok     %5.1fs", res.took.Seconds()))
			}
		}
		if len(why) > 0 {
			failed++
		}
		fmt.Println(strings.TrimRight(line, " "))
		for _, text := range why {
			fmt.Println("        " + text)
		}
	}
	fmt.Printf("%d rows, %d failed\n", len(r.done), failed)
	missing := rows(func(row faults.Row) bool { return all && r.done[row.ID] == nil })
	for _, row := range missing {
		fmt.Printf("not done: %s\n", row.ID)
	}
	return len(missing)
}

func firstLine(err error) string {
	text, _, _ := strings.Cut(strings.TrimSpace(err.Error()), "\n")
	if len(text) > 300 {
		text = strings.ToValidUTF8(text[:300], "") + "..."
	}
	return text
}
