package operator

import (
	"testing"

	"tpuvisor.dev/tpuvisor/test/trial"
)

// TestBadSettings wants them to be refused before there is a sandbox, by every
// command that could make one.
func TestBadSettings(t *testing.T) {
	t.Parallel()
	for _, bad := range []struct{ name, value, allowed string }{
		{"timeout", "3", "a Go duration from 1s to 1h"},
		{"handshake", "firm", `"checkpoint" or "lock"`},
		{"colour", "red", "known are " + annotation + "timeout"},
	} {
		r := prepareRig(t, trial.Job{Annotations: map[string]string{annotation + bad.name: bad.value}})
		if err := r.Start(t.Context()); err == nil {
			t.Fatalf("%s=%s was taken", bad.name, bad.value)
		}
		bundle := "-bundle=" + r.bundle(1)
		for command, more := range map[string][]string{"create": nil, "run": {"-detach"}, "restore": {"-image-path=" + r.dir}} {
			s := r.runsc(command, append(more, bundle, "x")...)
			s.wants(t, failed, annotation+bad.name, bad.allowed).oneLine(t)
		}
		r.runsc("list", "-quiet").wants(t, yes)
		if out := r.runsc("list", "-quiet").stdout; out != "" {
			t.Errorf("there are containers: %s", out)
		}
	}
}

// TestSettingsReachTheSandbox wants a limit to be what was set.
func TestSettingsReachTheSandbox(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{
		Annotations: map[string]string{annotation + "timeout": "90s", annotation + "handshake": "lock"},
	})
	image := r.Image()
	r.runsc("checkpoint", "-tpu-progress", "-image-path="+image, r.Container.ID).wants(t, yes, "LOCK sent, limit 1m30s")
	r.must(r.Wipe())
	r.must(r.Restore(t.Context(), image))
	r.goesOn()
	r.wantRequests(0, "LOCK", "CHECKPOINT", "RESTORE", "UNLOCK")
}
