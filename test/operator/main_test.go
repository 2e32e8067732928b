// Package operator holds the tests of what an operator sees and sets: the built
// runsc's own commands, with real sandboxes, a TPU host without hardware and the
// simulated runtime. They take root, and the runsc that the environment variable
// TPUVISOR_RUNSC names, or bin/runsc of the project; without either they fail.
package operator

import (
	"context"
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
	projectDir    string
	runscBinary   string
	trainerBinary string
)

func TestMain(m *testing.M) {
	os.Exit(enclosure.Run(func() int { return run(m) }))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "operator-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = prepare(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "operator:", err)
		return 1
	}
	return m.Run()
}

func prepare(dir string) (err error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "tpuvisor.dev/tpuvisor").Output()
	if err != nil {
		return fmt.Errorf("find the project's folder: %w", err)
	}
	projectDir = strings.TrimSpace(string(out))
	if runscBinary = os.Getenv("TPUVISOR_RUNSC"); runscBinary == "" {
		runscBinary = filepath.Join(projectDir, "bin", "runsc")
	}
	if _, err := os.Stat(runscBinary); err != nil {
		return fmt.Errorf("no runsc to test (make one with `make runsc`): %w", err)
	}
	trainerBinary, err = trial.BuildTrainer(context.Background(), dir)
	return err
}
