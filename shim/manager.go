package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"syscall"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	containerd "github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/sys"
	"gvisor.dev/gvisor/pkg/shim/v1/runsc"
)

// manager starts and stops shims as gVisor's does. But that starts none where it may
// not protect it from the kernel's killer, as in a container without
// CAP_SYS_RESOURCE, and none for containerd 1.6.
type manager struct{ containerd.Manager }

// protected is the score with which the kernel kills a shim last.
const protected = -999

// Start starts a shim for a container, or finds the one of its group. The working
// directory is the container's bundle.
func (m manager) Start(ctx context.Context, id string, opts containerd.StartOpts) (containerd.BootstrapParams, error) {
	params := containerd.BootstrapParams{Version: 2, Protocol: "ttrpc"}
	group, err := groupOf(id, "config.json")
	if err != nil {
		return params, err
	}
	params.Address, err = containerd.SocketAddress(ctx, opts.Address, group, opts.Debug)
	if err != nil {
		return params, err
	}
	socket, err := listen(params.Address)
	if err != nil {
		return params, fmt.Errorf("socket of the shim: %w", err)
	}
	if socket != nil {
		socket.SetUnlinkOnClose(false)
		defer socket.Close()
		if err := start(ctx, id, opts, socket); err != nil {
			return params, errors.Join(err, containerd.RemoveSocket(params.Address))
		}
	}
	if err := os.WriteFile("address", []byte(params.Address), 0o644); err != nil {
		return params, err
	}
	return params, tell(params.Address)
}

// tell tells containerd the address, which is all that containerd 1.6 understands,
// and 1.7 and 2 do as well. The package that calls Start would say it in a way that
// 1.6 takes for an address; so that says it to nobody.
func tell(address string) error {
	_, err := os.Stdout.WriteString(address)
	nobody, openErr := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	os.Stdout = nobody
	return errors.Join(err, openErr)
}

// groupLabels are the annotations that tell a container's pod.
var groupLabels = []string{"io.kubernetes.cri.sandbox-id", "io.kubernetes.cri-o.SandboxID"}

// groupOf returns what the containers of one shim have in common: their pod, if the
// configuration asks for that.
func groupOf(id, spec string) (string, error) {
	if !runsc.GetRuntimeOptions().Grouping {
		return id, nil
	}
	b, err := os.ReadFile(spec)
	if err != nil {
		return "", fmt.Errorf("the container's spec: %w", err)
	}
	var s struct {
		Annotations map[string]string `json:"annotations"`
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return "", fmt.Errorf("the container's spec: %w", err)
	}
	for _, label := range groupLabels {
		if pod := s.Annotations[label]; pod != "" {
			return pod, nil
		}
	}
	return id, nil
}

// listen returns the socket at the address, or none if a shim listens there already.
func listen(address string) (*net.UnixListener, error) {
	socket, err := containerd.NewSocket(address)
	if err == nil || !containerd.SocketEaddrinuse(err) {
		return socket, err
	}
	if containerd.CanConnect(address) {
		return nil, nil
	}
	// A shim was killed and has left it.
	if err := containerd.RemoveSocket(address); err != nil {
		return nil, err
	}
	return containerd.NewSocket(address)
}

// start starts a shim that serves the socket.
func start(ctx context.Context, id string, opts containerd.StartOpts, socket *net.UnixListener) error {
	namespace, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	f, err := socket.File()
	if err != nil {
		return err
	}
	defer f.Close()
	cmd := exec.Command(self, "-namespace", namespace, "-address", opts.Address, "-id", id)
	if opts.Debug {
		cmd.Args = append(cmd.Args, "-debug")
	}
	cmd.ExtraFiles = []*os.File{f}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := settle(cmd.Process.Pid); err != nil {
		return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	return cmd.Process.Release()
}

// settle does what is left to do for a shim that has been started.
func settle(pid int) error {
	if err := containerd.WritePidFile("shim.pid", pid); err != nil {
		return err
	}
	err := sys.SetOOMScore(pid, protected)
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}
