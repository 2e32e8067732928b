//go:build engines

package engines

import (
	"strings"
	"testing"
)

// startDocker starts dockerd at a new place, with the daemon.json that is there.
func startDocker(t *testing.T, configure func(*place)) *place {
	t.Helper()
	need(t, "docker.io", "dockerd", "docker", "containerd", "containerd-shim-runc-v2")
	p := newPlace(t, 2, built(t, "runsc"))
	configure(p)
	// What is not given in the file: the test's machine needs no network for
	// containers, and its processes may not be protected from being killed.
	p.daemon("docker version", "dockerd", "--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false",
		"--oom-score-adjust=0", "--storage-driver=overlay2")
	p.atEnd("docker ps --all --quiet | xargs --no-run-if-empty docker rm --force")
	p.do("docker load --input " + p.archive("trainer:latest"))
	return p
}

// dockerJob is the words that the document has a JOB for.
func dockerJob(j *job, more ...string) string {
	words := []string{"--network=none", "--volume=" + j.hbm() + ":/hbm", "--volume=" + j.log() + ":/log", "trainer"}
	return "JOB=" + strings.Join(append(words, j.arguments(more...)...), " ")
}

func TestDocker(t *testing.T) {
	p := startDocker(t, func(p *place) { p.follow("docker-configuration") })
	j := newJob(t, 2)
	p.follow("docker-run", dockerJob(j))
	j.goesOn()

	p.do("docker pause job")
	j.stands(func() {
		if status := p.do("docker ps --format '{{.Status}}'"); !strings.Contains(status, "(Paused)") {
			t.Errorf("docker ps says %q of a paused job", status)
		}
	})
	p.do("docker unpause job")
	j.goesOn()
	j.received()

	p.follow("docker-leave-running")
	j.goesOn()
	j.received("CHECKPOINT", "RESTORE")

	p.follow("docker-checkpoint")
	p.stopped("job")
	j.wipe()
	p.follow("docker-restore")
	j.goesOn()
	j.received("CHECKPOINT", "RESTORE", "CHECKPOINT", "RESTORE")
}

// stopped waits until a container has stopped.
func (p *place) stopped(name string) {
	p.t.Helper()
	p.poll(`test "$(docker inspect --format '{{.State.Running}}' ` + name + `)" = false`)
}

// TestDockerInstall wants `runsc install` to be all there is to set up.
func TestDockerInstall(t *testing.T) {
	p := startDocker(t, func(p *place) { p.follow("docker-install") })
	j := newJob(t, 1)
	p.follow("docker-run-one", dockerJob(j))
	j.goesOn()
	p.follow("docker-checkpoint")
	p.stopped("job")
	j.wipe()
	p.follow("docker-restore")
	j.goesOn()
}

// TestDockerRefused wants Docker to print what runsc says, and the job to go on.
func TestDockerRefused(t *testing.T) {
	p := startDocker(t, func(p *place) { p.follow("docker-configuration") })
	t.Run("no control thread", func(t *testing.T) {
		j := newJob(t, 1)
		p.do("docker run --detach --name=deaf --runtime=runsc --device=/dev/vfio/vfio --device=/dev/vfio/0 $JOB", dockerJob(j))
		j.goesOn()
		_, err := p.try(t.Context(), "docker checkpoint create deaf c1")
		if err == nil {
			t.Fatal("a job without a control thread was checkpointed")
		}
		says(t, err.Error(), "Error response from daemon", "LIBTPU_CHECKPOINTING_ENABLED", "trainer")
		j.goesOn()
		j.received()
	})
	t.Run("runtime refuses", func(t *testing.T) {
		j := newJob(t, 1)
		p.do("docker run --detach --name=busy --runtime=runsc --device=/dev/vfio/vfio --device=/dev/vfio/1 "+
			"--env=LIBTPU_CHECKPOINTING_ENABLED=true $JOB", dockerJob(j, "-fault", "refuse@CHECKPOINT"))
		j.goesOn()
		_, err := p.try(t.Context(), "docker checkpoint create busy c1")
		if err == nil {
			t.Fatal("a checkpoint succeeded that the runtime had refused")
		}
		says(t, err.Error(), "Error response from daemon", "CHECKPOINT", "trainer")
		j.goesOn()
	})
}
