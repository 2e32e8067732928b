//go:build engines

package engines

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// pauseImage is the image of a pod's sandbox: containerd's own default, whose name is
// asked for, so that no registry is named here.
func (p *place) pauseImage() string {
	p.t.Helper()
	for line := range strings.Lines(p.do("containerd config default")) {
		name, value, ok := strings.Cut(line, "=")
		if ok && strings.TrimSpace(name) == "sandbox_image" {
			return strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	p.t.Fatal("containerd has no default for sandbox_image")
	return ""
}

// file writes something as JSON to a file of the test, and returns its path.
func (p *place) file(name string, v any) string {
	p.t.Helper()
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		p.t.Fatal(err)
	}
	path := filepath.Join(p.dir, name)
	p.write(path, string(b))
	return path
}

type object = map[string]any

// startCRI starts containerd as a kubelet uses it.
func startCRI(t *testing.T) *place {
	t.Helper()
	need(t, "containerd", "containerd", "ctr")
	p := newPlace(t, 2, built(t, "runsc"), built(t, "containerd-shim-runsc-v1"), built(t, "crictl"))
	b := guide.block(t, "cri-configuration")
	// The test's machine may not protect processes from being killed.
	p.write(b.path, b.text+"\n[plugins.\"io.containerd.grpc.v1.cri\"]\nrestrict_oom_score_adj = true\n")
	p.follow("crictl-configuration")
	p.daemon("crictl version", "containerd")
	p.do("ctr --namespace=k8s.io image import " + p.archive("docker.io/library/trainer:latest"))
	p.do("ctr --namespace=k8s.io image import " + p.archive(p.pauseImage(), "-cpu", "-pace=1h", "-log=/tmp"))
	p.atEnd("timeout 60 crictl rmp --all --force")
	return p
}

// podOf describes a pod with the job, which has one TPU, and a container without. It
// returns the paths of the descriptions: of the pod, the job and the other.
func (p *place) podOf(j *job, annotations map[string]string) (pod, trainer, side string) {
	p.t.Helper()
	pod = p.file("pod.json", object{
		"metadata":    object{"name": "job", "namespace": "default", "uid": "1", "attempt": 1},
		"annotations": annotations,
		"linux":       object{"security_context": object{"namespace_options": object{"network": 2}}}, // the host's
	})
	image := object{"image": "docker.io/library/trainer:latest"}
	trainer = p.file("trainer.json", object{
		"metadata": object{"name": "trainer"},
		"image":    image,
		"args":     j.arguments(),
		"envs":     []object{{"key": "LIBTPU_CHECKPOINTING_ENABLED", "value": "true"}},
		"devices": []object{
			{"container_path": "/dev/vfio/vfio", "host_path": "/dev/vfio/vfio", "permissions": "rw"},
			{"container_path": "/dev/vfio/0", "host_path": "/dev/vfio/0", "permissions": "rw"},
		},
		"mounts": []object{
			{"container_path": "/hbm", "host_path": j.hbm()},
			{"container_path": "/log", "host_path": j.log()},
		},
	})
	side = p.file("side.json", object{
		"metadata": object{"name": "side"},
		"image":    image,
		"args":     []string{"-cpu", "-pace=1s", "-log=/tmp"},
	})
	return pod, trainer, side
}

// TestCRI runs a pod of two containers, one of which has a TPU, as a kubelet would.
func TestCRI(t *testing.T) {
	p := startCRI(t)
	j := newJob(t, 1)
	pod, trainer, side := p.podOf(j, map[string]string{
		"dev.gvisor.internal.tpuproxy":    "true",
		"dev.gvisor.internal.tpu.timeout": "10m",
	})
	p.follow("cri-run", "POD="+pod, "TRAINER="+trainer, "SIDE="+side)
	j.goesOn()
	if n := len(strings.Fields(p.do("crictl ps --quiet"))); n != 2 {
		t.Errorf("crictl lists %d running containers, want 2", n)
	}
	id := strings.TrimSpace(p.do("crictl pods --quiet"))
	if spec := p.do("ctr --namespace=k8s.io container info " + id); !strings.Contains(spec, "dev.gvisor.internal.tpu.timeout") {
		t.Error("the sandbox's spec has not got the pod's annotation")
	}

	_, err := p.try(t.Context(), "crictl checkpoint --export=/var/tmp/image.tar $(crictl ps --quiet --name=trainer)")
	if err == nil {
		t.Error("containerd has learnt to checkpoint containers for Kubernetes: docs/engines.md says that it cannot")
	} else {
		says(t, err.Error(), "CheckpointContainer not implemented")
	}
	j.received()

	p.follow("cri-checkpoint")
	j.goesOn()
	j.received("CHECKPOINT", "RESTORE")
	p.do("test -s /var/lib/checkpoints/pod/checkpoint.img")
}

// TestCRIWithoutTPUs wants a pod that has not said that it has TPUs to be told so.
func TestCRIWithoutTPUs(t *testing.T) {
	p := startCRI(t)
	j := newJob(t, 1)
	pod, trainer, side := p.podOf(j, nil)
	_, err := p.try(t.Context(), guide.block(t, "cri-run").text, "POD="+pod, "TRAINER="+trainer, "SIDE="+side)
	if err == nil {
		t.Fatal("a container with TPUs was started in a sandbox without")
	}
	says(t, err.Error(), "dev.gvisor.internal.tpuproxy")
}
