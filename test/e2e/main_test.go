// Package e2e holds the end-to-end tests: the built runsc, real sandboxes and
// images, a TPU host without hardware, and the simulated runtime. They take root,
// and the runsc that the environment variable TPUVISOR_RUNSC names, or bin/runsc of
// the project; without either they fail.
package e2e

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
	runscBinary   string
	trainerBinary string
)

func TestMain(m *testing.M) {
	os.Exit(enclosure.Run(func() int { return run(m) }))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "e2e-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = prepare(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	return m.Run()
}

func prepare(dir string) (err error) {
	if runscBinary, err = findRunsc(); err != nil {
		return err
	}
	trainerBinary, err = trial.BuildTrainer(context.Background(), dir)
	return err
}

func findRunsc() (string, error) {
	path := os.Getenv("TPUVISOR_RUNSC")
	if path == "" {
		root, err := moduleRoot()
		if err != nil {
			return "", err
		}
		path = filepath.Join(root, "bin", "runsc")
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("no runsc to test (make one with `make runsc`): %w", err)
	}
	return path, nil
}

func moduleRoot() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "tpuvisor.dev/tpuvisor").Output()
	if err != nil {
		return "", fmt.Errorf("find the project's folder: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}
