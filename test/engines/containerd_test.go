//go:build engines

package engines

import (
	"strings"
	"testing"
)

// startContainerd starts containerd at a new place, as it comes.
func startContainerd(t *testing.T, programs ...string) *place {
	t.Helper()
	need(t, "containerd", "containerd", "ctr", "containerd-shim-runc-v2")
	p := newPlace(t, 2, programs...)
	p.daemon("ctr version", "containerd")
	p.atEnd("for id in $(ctr task ls --quiet); do timeout 30 ctr task delete --force $id; done")
	p.do("ctr image import " + p.archive("docker.io/library/trainer:latest"))
	return p
}

// ctrJob is the words that the document has a JOB for.
func ctrJob(j *job, id string, more ...string) string {
	words := []string{
		"--mount=type=bind,src=" + j.hbm() + ",dst=/hbm,options=rbind:rw",
		"--mount=type=bind,src=" + j.log() + ",dst=/log,options=rbind:rw",
		"docker.io/library/trainer:latest", id, "/trainer",
	}
	return "JOB=" + strings.Join(append(words, j.arguments(more...)...), " ")
}

// status wants ctr to say so of a task.
func (p *place) status(id, want string) {
	p.t.Helper()
	for line := range strings.Lines(p.do("ctr task ls")) {
		if words := strings.Fields(line); len(words) == 3 && words[0] == id {
			if words[2] != want {
				p.t.Errorf("ctr says that %s is %s, want %s", id, words[2], want)
			}
			return
		}
	}
	p.t.Errorf("ctr knows no task %s", id)
}

// TestContainerdRuncShim has containerd's shim for runc drive runsc.
func TestContainerdRuncShim(t *testing.T) {
	p := startContainerd(t, built(t, "runsc"))
	j := newJob(t, 2)
	p.follow("containerd-run", ctrJob(j, "job"))
	p.checkpointWithCtr(j)

	p.follow("containerd-folder", "ID=job")
	j.goesOn()
}

// TestContainerdOwnShim has gVisor's shim do the same.
func TestContainerdOwnShim(t *testing.T) {
	p := startContainerd(t, built(t, "runsc"), built(t, "containerd-shim-runsc-v1"))
	j := newJob(t, 2)
	p.follow("containerd-run-shim", ctrJob(j, "job"))
	p.checkpointWithCtr(j)
}

// checkpointWithCtr pauses the job, checkpoints it, and restores it under its name.
func (p *place) checkpointWithCtr(j *job) {
	p.t.Helper()
	j.goesOn()

	p.do("ctr task pause job")
	j.stands(func() { p.status("job", "PAUSED") })
	p.do("ctr task resume job")
	j.goesOn()
	j.received()

	p.follow("containerd-checkpoint")
	j.goesOn()
	j.received("CHECKPOINT", "RESTORE")
	p.follow("containerd-stop")
	j.wipe()
	j.rewind()
	p.follow("containerd-restore")
	j.goesOn()
	j.received("CHECKPOINT", "RESTORE", "RESTORE")
}
