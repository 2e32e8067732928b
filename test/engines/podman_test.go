//go:build engines

package engines

import (
	"strings"
	"testing"
)

// startPodman configures Podman at a new place. It has no daemon.
func startPodman(t *testing.T) *place {
	t.Helper()
	need(t, "podman criu", "podman", "conmon", "criu")
	p := newPlace(t, 2, built(t, "runsc"))
	p.follow("podman-configuration")
	p.atEnd("podman rm --all --force --time=0")
	p.do("podman load --quiet --input " + p.archive("localhost/trainer:latest"))
	return p
}

// podmanJob is the words that the document has a JOB for.
func podmanJob(j *job, more ...string) string {
	words := []string{"--network=none", "--volume=" + j.hbm() + ":/hbm", "--volume=" + j.log() + ":/log", "localhost/trainer"}
	return "JOB=" + strings.Join(append(words, j.arguments(more...)...), " ")
}

func TestPodman(t *testing.T) {
	p := startPodman(t)
	j := newJob(t, 2)
	p.follow("podman-run", podmanJob(j))
	j.goesOn()

	p.do("podman pause job")
	j.stands(func() {
		if status := p.do("podman ps --all --format '{{.Status}}'"); !strings.Contains(strings.ToLower(status), "paused") {
			t.Errorf("podman ps says %q of a paused job", status)
		}
	})
	p.do("podman unpause job")
	j.goesOn()
	j.received()

	p.follow("podman-leave-running")
	j.goesOn()
	j.received("CHECKPOINT", "RESTORE")

	p.follow("podman-checkpoint")
	j.wipe()
	p.follow("podman-restore")
	j.goesOn()
	j.received("CHECKPOINT", "RESTORE", "CHECKPOINT", "RESTORE")
}
