package guest

import (
	"os"
	"slices"
	"strings"
	"testing"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// TestProtocolDoc_States compares the table under "States" in docs/protocol.md with
// the one in the code, row by row and in order.
func TestProtocolDoc_States(t *testing.T) {
	text, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## States\n")
	section, _, end := strings.Cut(section, "\n## ")
	if !found || !end {
		t.Fatal("docs/protocol.md has no section States")
	}
	var got []string
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| from ") {
			got = append(got, line)
		}
	}
	var want []string
	for _, row := range Transitions() {
		cells := []string{
			tpuwire.StateName(row.From), tpuwire.ActionName(row.Action),
			docState(row.During), docState(row.Success), docState(row.Failure),
		}
		want = append(want, "| "+strings.Join(cells, " | ")+" |")
	}
	if !slices.Equal(got, want) {
		t.Errorf("the table must be\n%s\nand is\n%s", strings.Join(want, "\n"), strings.Join(got, "\n"))
	}
}

func docState(s controlpb.RuntimeState) string {
	switch s {
	case AsBefore:
		return "as before"
	case Refused:
		return "refused"
	default:
		return tpuwire.StateName(s)
	}
}
