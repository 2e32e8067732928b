//go:build engines

package engines

import (
	"errors"
	"testing"

	"tpuvisor.dev/tpuvisor/test/sandbox"
)

// slow makes a checkpoint take longer than anything that is done meanwhile.
const slow = "late=170s@CHECKPOINT"

// background is a script that runs beside the test.
type background struct {
	t      *testing.T
	script string
	ended  chan struct{} // closed when it has
	err    error         // how
}

func (p *place) background(t *testing.T, script string) *background {
	b := &background{t: t, script: script, ended: make(chan struct{})}
	go func() {
		_, b.err = p.try(t.Context(), script)
		close(b.ended)
	}()
	return b
}

// runs wants the script not to have ended.
func (b *background) runs() {
	b.t.Helper()
	select {
	case <-b.ended:
		b.t.Fatalf("it has ended already: %s: %v", b.script, b.err)
	default:
	}
}

// ends waits for the script to end.
func (b *background) ends() error {
	b.t.Helper()
	err := sandbox.Poll(b.t.Context(), "the end of: "+b.script, func() (bool, error) {
		select {
		case <-b.ended:
			return true, nil
		default:
			return false, nil
		}
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return b.err
}

// checkpoint starts a script that makes a checkpoint, and returns when the job's first
// runtime is asked.
func (p *place) checkpoint(j *job, script string) *background {
	j.t.Helper()
	b := p.background(j.t, script)
	err := sandbox.Poll(j.t.Context(), "CHECKPOINT to arrive", func() (bool, error) {
		requests, err := j.Requests(0)
		return len(requests) > 0, errors.Join(err, p.t.Context().Err())
	})
	if err != nil {
		j.t.Fatal(err)
	}
	return b
}

// TestDockerDuring looks at a job while it is being checkpointed, and removes it.
func TestDockerDuring(t *testing.T) {
	p := startDocker(t, func(p *place) { p.follow("docker-configuration") })
	j := newJob(t, 1)
	p.follow("docker-run-one", dockerJob(j, "-fault", slow))
	j.goesOn()
	saving := p.checkpoint(j, "docker checkpoint create job c1")
	p.do("docker ps")
	p.do("docker inspect job")
	p.do("docker stats --no-stream job")
	p.do("docker top job")
	saving.runs()

	// The shim that Docker uses lets the removal wait for the checkpoint.
	removal := p.background(t, "docker rm --force job")
	p.follow("docker-kill-now")
	if err := saving.ends(); err == nil {
		t.Error("a job was checkpointed that was killed meanwhile")
	}
	if err := removal.ends(); err != nil {
		t.Error(err)
	}
	if left := p.do("docker ps --all --quiet"); left != "" {
		t.Errorf("there is still a container %s", left)
	}
}

// TestContainerdDuring kills a job while it is being checkpointed, and the client
// that wanted it, which has paused the job, is gone.
func TestContainerdDuring(t *testing.T) {
	p := startContainerd(t, built(t, "runsc"), built(t, "containerd-shim-runsc-v1"))
	t.Run("runc shim", func(t *testing.T) {
		j := newJob(t, 2)
		p.follow("containerd-run", ctrJob(j, "job", "-fault", slow))
		j.goesOn()
		saving := p.checkpoint(j, "ctr task checkpoint --image-path=/var/tmp/image job & echo $! >/run/client; wait $!")
		p.do("ctr task ls")
		p.do("ctr task metrics job")
		p.do("ctr task ps job")
		saving.runs()
		p.do("kill -KILL $(cat /run/client)")
		saving.ends()

		kill := p.background(t, "ctr task kill --signal=KILL job")
		p.follow("containerd-kill-now")
		kill.ends() // well, or because the task has ended
		p.poll("ctr task delete job")
		p.do("ctr container delete job")
	})
	t.Run("own shim", func(t *testing.T) {
		j := newJob(t, 2)
		p.follow("containerd-run-shim", ctrJob(j, "job", "-fault", slow))
		j.goesOn()
		saving := p.checkpoint(j, "ctr task checkpoint job & echo $! >/run/client; wait $!")
		p.status("job", "PAUSED")
		p.do("ctr task metrics job")
		p.do("ctr task ps job")
		saving.runs()
		p.do("kill -KILL $(cat /run/client)")
		saving.ends()

		p.do("ctr task kill --signal=KILL job")
		p.poll("ctr task delete job")
		p.do("ctr container delete job")
	})
}
