package control

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

var update = flag.Bool("update", false, "write the table into docs/exchange.md")

const (
	exchangeDoc = "../../../docs/exchange.md"
	tableBegin  = "<!-- the table of transitions: written by go test ./pkg/sentry/control -run TestDocumentedMoves -update -->\n"
	tableEnd    = "<!-- end of the table -->\n"
)

// TestDocumentedMoves compares the table in the code with the one in the docs.
func TestDocumentedMoves(t *testing.T) {
	doc, err := os.ReadFile(exchangeDoc)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok1 := strings.Cut(string(doc), tableBegin)
	got, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok1 || !ok2 {
		t.Fatalf("%s has no table between its two marks", exchangeDoc)
	}
	want := movesAsMarkdown()
	if *update {
		if err := os.WriteFile(exchangeDoc, []byte(before+tableBegin+want+tableEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got != want {
		t.Errorf("the table in %s is not the code's; run this test with -update. It has\n%s\nand should have\n%s", exchangeDoc, got, want)
	}
}

func movesAsMarkdown() string {
	var b strings.Builder
	b.WriteString("\n| standing | owed | action | result | next standing |\n|---|---|---|---|---|\n")
	for s := range numStandings {
		owed := "nothing"
		if a := s.owed(); a != controlpb.ControlAction_ACTION_UNSPECIFIED {
			owed = tpuwire.ActionName(a)
		}
		any := false
		for _, m := range moves {
			if m.from == s {
				fmt.Fprintf(&b, "| %v | %s | %s | %v | %v |\n", s, owed, tpuwire.ActionName(m.action), m.result, m.to)
				any = true
			}
		}
		if !any {
			fmt.Fprintf(&b, "| %v | %s | | | |\n", s, owed)
		}
	}
	b.WriteString("\n")
	return b.String()
}

// TestMoves checks what must hold for any table.
func TestMoves(t *testing.T) {
	type key struct {
		from   standing
		action controlpb.ControlAction
		result result
	}
	seen := map[key]bool{}
	for _, m := range moves {
		k := key{m.from, m.action, m.result}
		if seen[k] {
			t.Errorf("two moves from %v with %v %v", m.from, tpuwire.ActionName(m.action), m.result)
		}
		seen[k] = true
		if m.result == sent && m.to.owed() == m.action {
			t.Errorf("%s would be sent a second time in %v", tpuwire.ActionName(m.action), m.to)
		}
	}
	for s := range numStandings {
		if s.String() == "" {
			t.Errorf("standing %d has no name", s)
		}
		for _, a := range []controlpb.ControlAction{actLock, actCheckpoint, actRestore, actUnlock} {
			if got := s.after(a, gone); got != lost {
				t.Errorf("%v, and gone, is %v", s, got)
			}
			if got := s.after(a, unknown); got != s {
				t.Errorf("%v, and not knowing, is %v", s, got)
			}
		}
	}
	// What is owed leads back, if all goes well.
	for s := range numStandings {
		end := s
		for range 3 {
			if a := end.owed(); a != controlpb.ControlAction_ACTION_UNSPECIFIED {
				end = end.after(a, sent).after(a, acked)
			}
		}
		switch s {
		case restoring, lockedRestoring, unlocking, stranded, lost:
		default:
			if end != attached {
				t.Errorf("what is owed to %v leads to %v", s, end)
			}
		}
	}
}
