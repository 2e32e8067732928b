package faults

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tpuvisor.dev/tpuvisor/test/libtpusim"
)

var update = flag.Bool("update", false, "write the document anew")

const (
	begin = "<!-- the table: written by go test ./test/faults -update -->\n"
	end   = "\n<!-- end of the table -->"
)

// TestDocument holds docs/faults.md and the table together.
func TestDocument(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "faults.md")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, begins := strings.Cut(string(content), begin)
	old, tail, ends := strings.Cut(rest, end)
	if !begins || !ends {
		t.Fatalf("%s has no place for the table", path)
	}
	if *update {
		if err := os.WriteFile(path, []byte(head+begin+Document()+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if old != Document() {
		t.Errorf("%s is not what the table says; write it anew with: go test ./test/faults -update", path)
	}
}

func TestTable(t *testing.T) {
	seen := map[string]bool{}
	kinds := map[string]Runners{}
	for _, r := range Table {
		if seen[r.ID] {
			t.Errorf("there are two rows %q", r.ID)
		}
		seen[r.ID] = true
		kinds[r.Kind()] |= r.In
		if about[r.Kind()] == "" {
			t.Errorf("%s: nothing is said about its kind", r.ID)
		}
		if r.Detach == nil && r.Attach == nil || r.In == 0 || r.What == "" {
			t.Errorf("%s says too little", r.ID)
		}
		for _, phase := range Phases {
			if _, err := libtpusim.ParseFaults(r.FaultAt(phase, time.Minute, 0, 2)); err != nil {
				t.Errorf("%s: %v", r.ID, err)
			}
		}
	}
	for kind, in := range kinds {
		if in&Sandboxed == 0 {
			t.Errorf("no row of kind %q is run in a sandbox", kind)
		}
	}
}

func TestFaultAt(t *testing.T) {
	r := Row{Fault: "late=1.01L@ACTION:rank=RANK"}
	if got, want := r.FaultAt(Resume, 10*time.Second, 0, 7), "late=10.1s@RESTORE:rank=0;late=10.1s@RESTORE:rank=7"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
