// Package trial runs the trainer's job in real sandboxes: it starts it on a TPU
// host without hardware, checkpoints it, wipes the TPUs' memory, restores it as if
// on another host, and knows which steps the job has done and whether they are the
// ones that an uninterrupted job would have done.
//
// Tests, the demo and the fault matrix use it. It takes root, and imports what
// lies in test/ and the standard library.
package trial

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"tpuvisor.dev/tpuvisor/test/libtpusim"
	"tpuvisor.dev/tpuvisor/test/sandbox"
	"tpuvisor.dev/tpuvisor/test/tpuhost"
)

// Job is what runs, and on what. The zero value of a field is the usual.
type Job struct {
	Arch        string            // of the chips; "" is v5e
	Groups      []int             // IOMMU group of each chip; nil: 0, 1, … one for each member
	Accel       bool              // the chips are driven through /dev/accelN
	OtherGroups []int             // IOMMU groups of devices that are no TPUs
	Clutter     bool              // the host has a folder /dev/vfio/devices
	Processes   int               // with TPUs; 0 is 1
	Runtimes    int               // in each process; 0 is 1
	Steps       int               // after which the job ends; 0: never
	Pace        time.Duration     // between steps; 0 is 10 ms
	Hold        libtpusim.Hold    // "" is HoldSelf
	Fault       string            // of the runtimes, as libtpusim.ParseFaults has it
	NoControl   bool              // the environment asks for no control threads
	CPU         bool              // the job uses no TPU, and the host has none
	Args        []string          // more arguments of the trainer
	Annotations map[string]string // of the container
}

// size is how many bytes of weights a member has.
const size = 64 << 10

func (j Job) members() int { return max(1, j.Processes) * max(1, j.Runtimes) }

func (j Job) host(groups []int) (tpuhost.Host, error) {
	if j.CPU {
		return tpuhost.Host{}, nil
	}
	arch := j.Arch
	if arch == "" {
		arch = "v5e"
	}
	if groups == nil {
		for i := range j.members() {
			groups = append(groups, i)
		}
	}
	host, err := tpuhost.New(arch, groups...)
	for i := range host.Chips {
		host.Chips[i].Accel = j.Accel
	}
	for i, group := range j.OtherGroups {
		host.Chips = append(host.Chips, tpuhost.OtherDevice(i, group))
	}
	host.Clutter = j.Clutter
	return host, err
}

func (j Job) args() []string {
	args := []string{
		"-processes", strconv.Itoa(max(1, j.Processes)),
		"-runtimes", strconv.Itoa(max(1, j.Runtimes)),
		"-steps", strconv.Itoa(j.Steps),
		"-size", strconv.Itoa(size),
	}
	if j.Pace > 0 {
		args = append(args, "-pace", j.Pace.String())
	}
	if j.Hold != "" {
		args = append(args, "-hold", string(j.Hold))
	}
	if j.Fault != "" {
		args = append(args, "-fault", j.Fault)
	}
	if j.CPU {
		args = append(args, "-cpu")
	}
	return append(args, j.Args...)
}

// Trial is one job and its sandbox. It is for one goroutine at a time.
type Trial struct {
	Job
	Runsc     *sandbox.Runsc
	Container *sandbox.Container // the present one

	trainer string
	dir     string
	now     tpuhost.Host
	bundle  string // of the present container
	hbm     string // folder of the present host's TPU memory
	hosts   int    // how many there have been
	images  int
}

// New prepares a job below the folder dir, with a runsc binary and a trainer that
// BuildTrainer has made. Close it when done.
func New(runsc, trainer, dir string, j Job) (*Trial, error) {
	r, err := sandbox.New(runsc, filepath.Join(dir, "runsc"))
	if err != nil {
		return nil, err
	}
	t := &Trial{Job: j, Runsc: r, trainer: trainer, dir: dir}
	return t, os.MkdirAll(t.logs(), 0o755)
}

// Close ends the job's sandboxes. The folder is left as it is.
func (t *Trial) Close() error { return t.Runsc.Close() }

func (t *Trial) logs() string { return filepath.Join(t.dir, "log") }

// Start runs the job on the first host, and waits for the first step of each member.
func (t *Trial) Start(ctx context.Context) error {
	host, bundle, err := t.newHost(t.Groups)
	if err != nil {
		return err
	}
	t.Container, err = t.Runsc.Run(ctx, t.id(), host, bundle)
	if err != nil {
		return err
	}
	return t.Advance(ctx, 1)
}

// The annotations by which runsc knows the containers of a pod.
const (
	podType      = "io.kubernetes.cri.container-type"
	podSandboxID = "io.kubernetes.cri.sandbox-id"
)

// Pod makes the job's container the first of a pod, which others can Join.
func (j Job) Pod() Job {
	j.Annotations = maps.Clone(j.Annotations)
	if j.Annotations == nil {
		j.Annotations = map[string]string{}
	}
	j.Annotations[podType] = "sandbox"
	return j
}

// Join runs another job in a container of its own in the same sandbox, with those of
// the host's TPUs that it names, and waits for the first step of each member.
func (t *Trial) Join(ctx context.Context, id string, j Job) (*Trial, error) {
	j = j.Pod()
	j.Annotations[podType], j.Annotations[podSandboxID] = "container", t.Container.ID
	other := &Trial{Job: j, Runsc: t.Runsc, trainer: t.trainer, dir: filepath.Join(t.dir, id)}
	if err := os.MkdirAll(other.logs(), 0o755); err != nil {
		return nil, err
	}
	_, bundle, err := other.newHost(j.Groups)
	if err != nil {
		return nil, err
	}
	if other.Container, err = t.Runsc.Run(ctx, id, t.now, bundle); err != nil {
		return nil, err
	}
	return other, other.Advance(ctx, 1)
}

// Restore runs the job from an image on another host: its folders have other
// paths, its TPUs' memory holds something else, and its TPUs are in the IOMMU
// groups given, or in the same as before if there are none. It waits for the next
// step of each member.
func (t *Trial) Restore(ctx context.Context, image string, groups ...int) error {
	if err := t.RestoreOnly(ctx, image, groups...); err != nil {
		return err
	}
	return t.Advance(ctx, 1)
}

// RestoreOnly is Restore without a wait for steps.
func (t *Trial) RestoreOnly(ctx context.Context, image string, groups ...int) error {
	if len(groups) == 0 {
		groups = t.Groups
	}
	host, bundle, err := t.newHost(groups)
	if err != nil {
		return err
	}
	t.Container, err = t.Runsc.Restore(ctx, t.id(), host, bundle, image)
	return err
}

// RestoreAttached restores on another host, and returns when the container has ended.
func (t *Trial) RestoreAttached(ctx context.Context, image string) error {
	host, bundle, err := t.newHost(t.Groups)
	if err != nil {
		return err
	}
	return t.Runsc.RestoreAttached(ctx, t.id(), host, bundle, image)
}

// RestoreHere restores on the same host, from the same bundle and under the same name,
// and waits for the next step of each member. The container must be deleted.
func (t *Trial) RestoreHere(ctx context.Context, image string) (err error) {
	t.Container, err = t.Runsc.Restore(ctx, t.id(), t.now, t.bundle, image)
	if err != nil {
		return err
	}
	return t.Advance(ctx, 1)
}

// RootFS is the folder that is the container's root.
func (t *Trial) RootFS() string { return filepath.Join(t.bundle, sandbox.RootFS) }

func (t *Trial) id() string { return fmt.Sprintf("job-on-host%d", t.hosts) }

// newHost makes what a host has for the job: a bundle, and memory of TPUs.
func (t *Trial) newHost(groups []int) (host tpuhost.Host, bundle string, err error) {
	t.hosts++
	place := filepath.Join(t.dir, fmt.Sprintf("host%d", t.hosts))
	t.hbm = filepath.Join(place, "hbm")
	bundle = filepath.Join(place, "bundle")
	if err := os.MkdirAll(t.hbm, 0o755); err != nil {
		return host, "", err
	}
	if err := t.Wipe(); err != nil {
		return host, "", err
	}
	if host, err = t.host(groups); err != nil {
		return host, "", err
	}
	t.now, t.bundle = host, bundle
	return host, bundle, t.workload().Bundle(bundle, host)
}

func (t *Trial) workload() sandbox.Workload {
	w := sandbox.Workload{
		Program:     t.trainer,
		Args:        t.args(),
		Mounts:      map[string]string{"/hbm": t.hbm, "/log": t.logs()},
		Annotations: t.Annotations,
	}
	if !t.NoControl {
		w.Env = []string{"LIBTPU_CHECKPOINTING_ENABLED=true"}
	}
	return w
}

// Wipe overwrites the memory of the present host's TPUs.
func (t *Trial) Wipe() error {
	if t.CPU {
		return nil
	}
	noise := bytes.Repeat([]byte{0xa5, 0x5a}, size/2+16)
	for rank := range t.members() {
		f, err := os.OpenFile(filepath.Join(t.hbm, fmt.Sprintf("rank%d", rank)), os.O_WRONLY|os.O_CREATE, 0o644)
		if err != nil {
			return err
		}
		_, err = f.Write(noise)
		if err := f.Close(); err != nil {
			return err
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Image returns the folder for the image of another checkpoint. It does not exist.
func (t *Trial) Image() string {
	t.images++
	return filepath.Join(t.dir, fmt.Sprintf("image%d", t.images))
}

// Checkpoint saves the job to a new image, and returns that.
func (t *Trial) Checkpoint(ctx context.Context, flags ...string) (image string, err error) {
	image = t.Image()
	return image, t.Container.Checkpoint(ctx, image, flags...)
}

// BuildTrainer builds the trainer from its source, static, into the folder dir,
// and returns its path.
func BuildTrainer(ctx context.Context, dir string) (string, error) {
	path := filepath.Join(dir, "trainer")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "tpuvisor.dev/tpuvisor/test/cmd/trainer")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("trial: build the trainer: %w\n%s", err, out)
	}
	return path, nil
}
