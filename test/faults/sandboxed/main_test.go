//go:build faults

package sandboxed

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"tpuvisor.dev/tpuvisor/test/enclosure"
	"tpuvisor.dev/tpuvisor/test/trial"
)

// What TestMain has found or made for all tests.
var (
	runscBinary   string
	trainerBinary string
	misfitBinary  string
)

func TestMain(m *testing.M) {
	os.Exit(enclosure.Run(func() int { return run(m) }))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "faults-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = prepare(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		return 1
	}
	status := m.Run()
	all := flag.Lookup("test.run").Value.String() == ""
	if bad := results.print(all); status == 0 && bad > 0 {
		return 1
	}
	return status
}

func prepare(dir string) (err error) {
	if runscBinary = os.Getenv("TPUVISOR_RUNSC"); runscBinary == "" {
		return errors.New("TPUVISOR_RUNSC names no runsc; run this by `make faults`")
	}
	if trainerBinary, err = trial.BuildTrainer(context.Background(), dir); err != nil {
		return err
	}
	misfitBinary = filepath.Join(dir, "misfit")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", misfitBinary, "tpuvisor.dev/tpuvisor/test/faults/cmd/misfit")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the misfit: %w\n%s", err, out)
	}
	return nil
}
