//go:build engines

package engines

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tpuvisor.dev/tpuvisor/test/enclosure"
	"tpuvisor.dev/tpuvisor/test/trial"
)

// What TestMain has found or made for all tests.
var (
	module  string // the project's folder
	trainer string // the program of the simulated job
	guide   document
)

func TestMain(m *testing.M) {
	os.Exit(enclosure.Run(func() int { return run(m) }))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "engines-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = prepare(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "engines:", err)
		return 1
	}
	status := m.Run()
	if status == 0 && wholeRun() {
		if left := guide.unused(); len(left) > 0 {
			fmt.Fprintf(os.Stderr, "engines: no test does what these blocks of docs/engines.md say: %q\n", left)
			return 1
		}
	}
	return status
}

// wholeRun reports whether all tests have been run.
func wholeRun() bool {
	return flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.skip").Value.String() == ""
}

func prepare(dir string) (err error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "tpuvisor.dev/tpuvisor").Output()
	if err != nil {
		return fmt.Errorf("find the project's folder: %w", err)
	}
	module = strings.TrimSpace(string(out))
	if guide, err = readDocument(filepath.Join(module, "docs/engines.md")); err != nil {
		return err
	}
	trainer, err = trial.BuildTrainer(context.Background(), dir)
	return err
}

// built returns the path of a binary of this project.
func built(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(module, "bin", name)
	if named := os.Getenv("TPUVISOR_RUNSC"); named != "" {
		path = filepath.Join(filepath.Dir(named), name)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("no %s to test; `make test-engines` builds it: %v", name, err)
	}
	return path
}

// need fails the test if a program of the engine is not there.
func need(t *testing.T, pkg string, programs ...string) {
	t.Helper()
	for _, name := range programs {
		found := false
		for _, dir := range filepath.SplitList(searchPath) {
			_, err := os.Stat(filepath.Join(dir, name))
			found = found || err == nil
		}
		if !found {
			t.Fatalf("no %s on this machine: apt-get install --no-install-recommends %s", name, pkg)
		}
	}
}
