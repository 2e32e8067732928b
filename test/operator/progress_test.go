package operator

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tpuvisor.dev/tpuvisor/test/trial"
)

// TestProgress wants lines where they are asked for, and none elsewhere.
func TestProgress(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Processes: 2})
	quiet := r.runsc("checkpoint", "-leave-running", "-image-path="+r.Image(), r.Container.ID).wants(t, yes)
	if quiet.stdout+quiet.stderr != "" {
		t.Errorf("off a terminal, it says %q", quiet.stdout+quiet.stderr)
	}
	image := r.Image()
	s := r.runsc("checkpoint", "-tpu-progress", "-image-path="+image, r.Container.ID).wants(t, yes)
	if s.stdout != "" {
		t.Errorf("on stdout, it says %q", s.stdout)
	}
	order := []string{"tpu: checkpoint: detach\n", "CHECKPOINT sent, limit 3m0s\n", "CHECKPOINT acknowledged after", "tpu: checkpoint: save\n"}
	at := 0
	for _, word := range order {
		i := strings.Index(s.stderr[at:], word)
		if i < 0 {
			t.Fatalf("it does not say %q after the first %d bytes of:\n%s", word, at, s.stderr)
		}
		at += i
	}
	if got := strings.Count(s.stderr, `("trainer") in container "`); got != 4 {
		t.Errorf("%d lines about runtimes, want 4:\n%s", got, s.stderr)
	}
	r.must(r.Wipe())
	c := r.beginOn(host(t, 0, 1), "restore", "-detach", "-tpu-progress", "-bundle="+r.bundle(1), "-image-path="+image, "again")
	c.end().wants(t, yes, "tpu: restore: attach", "RESTORE acknowledged", "tpu: restore: done")
	r.runsc("tpu", "wait", "again").wants(t, yes)
	r.runsc("delete", "-force", "again").wants(t, yes)
}

// TestProgressOnATerminal wants a block of lines that changes.
func TestProgressOnATerminal(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Fault: "late=1s@CHECKPOINT"})
	master, terminal := openTerminal(t)
	seen := make(chan string, 1)
	go func() {
		var all strings.Builder
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			all.Write(buf[:n])
			if err != nil {
				seen <- all.String()
				return
			}
		}
	}()
	c := r.beginWith(terminal, "checkpoint", "-leave-running", "-image-path="+r.Image(), r.Container.ID)
	r.must(terminal.Close())
	c.end().wants(t, yes)
	text := <-seen
	for _, want := range []string{"checkpoint: detach", "CHECKPOINT", "of 3m0s", "checkpoint: attach", "\x1b[2A", "RESTORE acknowledged after", "RUNNING"} {
		if !strings.Contains(text, want) {
			t.Errorf("the terminal does not show %q:\n%q", want, text)
		}
	}
}

// openTerminal makes a terminal. Reading from master ends when nobody has the
// terminal open any more.
func openTerminal(t *testing.T) (master, terminal *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return master, terminal
}
