package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// failed ends a scenario: it is the panic of must and want.
type failed struct{ error }

// rig is what one scenario works with. Its methods end the scenario when they fail.
type rig struct {
	*bench
	*hardware
	dir   string
	boxes []*box
	seq   int

	annotations map[string]string // of the specs to come
}

func (r *rig) must(err error) {
	if err != nil {
		panic(failed{err})
	}
}

func (r *rig) want(ok bool, format string, args ...any) {
	if !ok {
		panic(failed{fmt.Errorf(format, args...)})
	}
}

func (r *rig) name(what string) string {
	r.seq++
	return fmt.Sprintf("%s%d", what, r.seq)
}

// runscFlags are given to every command.
func (r *rig) runscFlags() []string {
	return []string{
		"--root=" + r.dir + "/root", "--network=none", "--ignore-cgroups",
		"--debug-log=" + r.dir + "/log/",
	}
}

func (r *rig) command(args ...string) *exec.Cmd {
	return exec.Command("/bin/runsc", append(r.runscFlags(), args...)...)
}

// runsc carries out a command that starts no sandbox.
func (r *rig) runsc(args ...string) error {
	out, err := r.command(args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("runsc %s: %w: %s", args[0], err, strings.TrimSpace(string(out)))
	}
	return nil
}

// box is one sandbox with a guest in it.
type box struct {
	rig    *rig
	id     string
	cmd    *exec.Cmd
	in     *os.File
	out    *bufio.Scanner
	stderr strings.Builder
	ended  chan error
}

// bundle makes a bundle for a guest that is given these TPUs.
func (r *rig) bundle(hold bool, tpus ...*tpu) string {
	dir := filepath.Join(r.dir, r.name("bundle"))
	r.must(os.MkdirAll(dir, 0o755))
	args := []string{"/bin/guest"}
	if hold {
		args = append(args, "-hold")
	}
	spec := specs.Spec{
		Version:     "1.0.0",
		Annotations: r.annotations,
		Process:     &specs.Process{Args: args, Env: []string{"LIBTPU_CHECKPOINTING_ENABLED=true"}, Cwd: "/"},
		Root:        &specs.Root{Path: "/rootfs"},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs"},
		},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
		}},
	}
	nodes := []string{"/dev/vfio/vfio"}
	for _, t := range tpus {
		nodes = append(nodes, t.node())
	}
	for _, path := range nodes {
		var stat unix.Stat_t
		r.must(unix.Stat(path, &stat))
		spec.Linux.Devices = append(spec.Linux.Devices, specs.LinuxDevice{
			Path: path, Type: "c", Major: int64(unix.Major(stat.Rdev)), Minor: int64(unix.Minor(stat.Rdev)),
		})
	}
	text, err := json.Marshal(spec)
	r.must(err)
	r.must(os.WriteFile(filepath.Join(dir, "config.json"), text, 0o644))
	return dir
}

// begin starts a command that makes a sandbox. It does not wait for the guest.
func (r *rig) begin(command string, args ...string) *box {
	b := &box{rig: r, id: r.name("c"), ended: make(chan error, 1)}
	b.cmd = r.command(append(append([]string{command}, args...), b.id)...)
	inRead, in, err := os.Pipe()
	r.must(err)
	out, outWrite, err := os.Pipe()
	r.must(err)
	b.in, b.out = in, bufio.NewScanner(out)
	b.cmd.Stdin, b.cmd.Stdout, b.cmd.Stderr = inRead, outWrite, &b.stderr
	r.must(b.cmd.Start())
	r.must(errors.Join(inRead.Close(), outWrite.Close()))
	r.boxes = append(r.boxes, b)
	go func() { b.ended <- b.cmd.Wait() }()
	return b
}

// run starts a guest that is given these TPUs. With hold it keeps them open over a
// checkpoint.
func (r *rig) run(hold bool, tpus ...*tpu) *box {
	b := r.begin("run", "--bundle="+r.bundle(hold, tpus...))
	if a := b.answer("run"); a.Text != "ready" {
		panic(failed{fmt.Errorf("the guest begins with %+v", a)})
	}
	return b
}

// restore starts a guest from an image.
func (r *rig) restore(image string, hold bool, tpus ...*tpu) *box {
	return r.begin("restore", "--bundle="+r.bundle(hold, tpus...), "--image-path="+image)
}

// refused wants a restore to fail, and to say this.
func (r *rig) refused(image, text string, tpus ...*tpu) {
	b := r.restore(image, false, tpus...)
	err := <-b.ended
	b.ended <- err
	r.want(err != nil, "the restore is not refused")
	r.want(strings.Contains(b.stderr.String(), text), "the refusal does not say %q: %s", text, b.stderr.String())
	r.note("refused: %s", lastLine(b.stderr.String()))
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// leave makes an image of a sandbox that goes on running.
func (b *box) leave() (image string) {
	image = filepath.Join(b.rig.dir, b.rig.name("image"))
	b.rig.must(b.rig.runsc("checkpoint", "--leave-running", "--image-path="+image, b.id))
	return image
}

// save makes an image of a sandbox and ends it.
func (b *box) save() (image string) {
	image = filepath.Join(b.rig.dir, b.rig.name("image"))
	b.rig.must(b.rig.runsc("checkpoint", "--image-path="+image, b.id))
	b.end()
	return image
}

// end takes a sandbox away. The guest ends with its input, if it has not before, and
// the command that has started the sandbox clears up after it.
func (b *box) end() {
	b.in.Close()
	select {
	case <-b.ended:
	case <-time.After(patience):
		b.rig.must(fmt.Errorf("runsc of %s does not end", b.id))
	}
	b.rig.must(b.rig.runsc("delete", "--force", b.id))
	b.rig.boxes = slices.DeleteFunc(b.rig.boxes, func(o *box) bool { return o == b })
}

// answer is what the guest says to a command.
type answer struct {
	Text, Error string
	Count       uint64
	Nodes       []string
	TPUs        []struct {
		Address, ID string
		Group       int
	}
	State map[string]string
}

func (b *box) answer(command string) (a answer) {
	if !b.out.Scan() {
		b.rig.must(fmt.Errorf("%s: the guest has ended: %s", command, b.stderr.String()))
	}
	if err := json.Unmarshal(b.out.Bytes(), &a); err != nil {
		b.rig.must(fmt.Errorf("%s: the guest says %q", command, b.out.Text()))
	}
	return a
}

// try gives the guest a command.
func (b *box) try(format string, args ...any) answer {
	command := fmt.Sprintf(format, args...)
	_, err := fmt.Fprintln(b.in, command)
	b.rig.must(err)
	return b.answer(command)
}

// do gives the guest a command that must succeed.
func (b *box) do(format string, args ...any) answer {
	a := b.try(format, args...)
	b.rig.want(a.Error == "", "%s: %s", fmt.Sprintf(format, args...), a.Error)
	return a
}

// sees waits until the guest sees exactly these TPUs in its /sys.
func (b *box) sees(tpus ...*tpu) {
	var want, have string
	for _, t := range tpus {
		want += fmt.Sprintf("%s in group %d, ", t.address, t.group())
	}
	err := wait("what the guest is to see", func() bool {
		have = ""
		for _, t := range b.do("look").TPUs {
			have += fmt.Sprintf("%s in group %d, ", t.Address, t.Group)
		}
		return have == want
	})
	b.rig.want(err == nil, "the guest sees %s wanted %s", have, want)
}

// acted waits until the guest has been asked for exactly these actions.
func (b *box) acted(actions string) {
	var have string
	err := wait("the driver's requests", func() bool {
		have = b.do("actions").Text
		return have == "["+actions+"]"
	})
	b.rig.want(err == nil, "the driver has sent %s, wanted [%s]", have, actions)
}

// free wants a TPU's group to be one that can be opened at once.
func (r *rig) free(t *tpu) {
	fd, err := unix.Open(t.node(), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		panic(failed{fmt.Errorf("%s is not free: %w", t.node(), err)})
	}
	r.must(unix.Close(fd))
}

func (r *rig) cleanUp() {
	for _, b := range slices.Clone(r.boxes) {
		b.in.Close()
		r.runsc("delete", "--force", b.id)
		b.cmd.Process.Kill()
	}
	unix.Unmount(filepath.Join(r.dir, "root", "null-netns"), unix.MNT_DETACH)
	os.RemoveAll(r.dir)
}

// logs is the end of what the sandboxes have logged about it.
func (r *rig) logs() string {
	files, _ := filepath.Glob(r.dir + "/log/*")
	var out strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		lines := strings.Split(string(text), "\n")
		kept := slices.DeleteFunc(lines, func(l string) bool {
			return !strings.Contains(l, "TPU") && !strings.Contains(l, "vfio") && !strings.HasPrefix(l, "W") && !strings.Contains(l, "panic")
		})
		fmt.Fprintf(&out, "%s:\n%s\n", filepath.Base(file), strings.Join(kept[max(0, len(kept)-15):], "\n"))
	}
	return out.String()
}
