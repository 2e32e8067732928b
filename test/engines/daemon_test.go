//go:build engines

package engines

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"tpuvisor.dev/tpuvisor/test/sandbox"
)

// daemon is an engine's process at a place.
type daemon struct {
	cmd   *exec.Cmd
	log   string
	ended chan struct{} // closed when it has
	err   error         // how it ended
}

// daemon starts an engine, and waits until it answers: until the script ready
// succeeds. It is ended with the test, and its log is shown if the test has failed.
func (p *place) daemon(ready, name string, args ...string) {
	p.t.Helper()
	d := &daemon{log: filepath.Join(p.dir, name+".log"), ended: make(chan struct{})}
	log, err := os.Create(d.log)
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()
	d.cmd = p.command(context.WithoutCancel(p.t.Context()), name, args...)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	if err := d.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() {
		d.err = d.cmd.Wait()
		close(d.ended)
	}()
	p.t.Cleanup(func() {
		d.end()
		if p.t.Failed() {
			p.t.Logf("what %s said:\n%s", name, lastLines(d.log, 25))
		}
	})
	err = sandbox.Poll(p.t.Context(), name+" to answer", func() (bool, error) {
		select {
		case <-d.ended:
			return false, errors.Join(errors.New("it has ended"), d.err)
		default:
			_, err := p.try(p.t.Context(), ready)
			return err == nil, nil
		}
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

// end asks the daemon to end, and ends it if it does not.
func (d *daemon) end() {
	d.cmd.Process.Signal(syscall.SIGTERM) // fails if it has ended, which is well
	patience := time.NewTimer(20 * time.Second)
	defer patience.Stop()
	select {
	case <-d.ended:
	case <-patience.C:
		d.cmd.Process.Kill()
		<-d.ended
	}
}

// atEnd runs a script when the test is over, before what was started earlier ends.
func (p *place) atEnd(script string) {
	ctx := context.WithoutCancel(p.t.Context())
	p.t.Cleanup(func() {
		if _, err := p.try(ctx, script); err != nil {
			p.t.Error(err)
		}
	})
}

func lastLines(path string, n int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
