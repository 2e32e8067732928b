// Package client calls the TPU side of a sandbox from a command on the host.
//
// Each call has a connection of its own: one that is left open holds up the end of
// the sandbox.
package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
	controlclient "gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/container"

	"tpuvisor.dev/tpuvisor/pkg/sentry/savehook"
)

var (
	// ErrGone: nobody answers for the sandbox: it has ended, or is about to.
	ErrGone = errors.New("the sandbox does not answer; it has ended, or is about to")
	// ErrForeign: the sandbox was started by a runsc that has no TPU side.
	ErrForeign = errors.New("the sandbox was started by another runsc, which does not know about TPUs")
)

// maxPath is how long the path of a Unix socket may be.
const maxPath = len(unix.RawSockaddrUnix{}.Path)

// Call makes the sandbox of a container do an operation of package api, and waits
// for its result, which may be nil. An error that is neither ErrGone nor ErrForeign
// is the sandbox's own.
func Call(c *container.Container, op string, args, result any) error {
	conn, err := connect(c)
	if err != nil {
		return err
	}
	defer conn.Socket.Close()
	return call(conn, op, args, result)
}

// CallContext is Call that ends, with the context's error, when ctx does.
func CallContext(ctx context.Context, c *container.Container, op string, args, result any) error {
	wait, err := Begin(c, op, args, result)
	if err != nil {
		return err
	}
	return wait(ctx)
}

// Begin is the first part of CallContext, which connects to the sandbox; wait is the
// rest, and must be called.
func Begin(c *container.Container, op string, args, result any) (wait func(context.Context) error, err error) {
	conn, err := connect(c)
	if err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() { done <- call(conn, op, args, result) }()
	return func(ctx context.Context) error {
		defer conn.Socket.Close() // which ends the call, where conn.Close would wait for it
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}, nil
}

func connect(c *container.Container) (*urpc.Client, error) {
	if c.Sandbox == nil || !c.IsSandboxRunning() {
		return nil, ErrGone
	}
	path := c.Sandbox.GetControlSocketPath()
	if path == "" {
		return nil, ErrGone
	}
	if len(path) >= maxPath {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrGone, err)
		}
		defer unix.Close(fd)
		path = filepath.Join("/proc/self/fd", fmt.Sprint(fd))
	}
	conn, err := controlclient.ConnectTo(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrGone, err)
	}
	return conn, nil
}

func call(conn *urpc.Client, op string, args, result any) error {
	request := savehook.Request{Op: op}
	if args != nil {
		var err error
		if request.Args, err = json.Marshal(args); err != nil {
			return err
		}
	}
	var response savehook.Response
	if err := conn.Call(savehook.CallMethod, &request, &response); err != nil {
		return classify(err)
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(response.Result, result); err != nil {
		return fmt.Errorf("the sandbox's answer to %q: %w", op, err)
	}
	return nil
}

// classify tells what the sandbox says from a failure to reach it. gVisor passes
// texts only.
func classify(err error) error {
	var remote urpc.RemoteError
	switch {
	case !errors.As(err, &remote):
		log.Infof("Calling the sandbox: %v", err)
		return ErrGone
	case remote.Message == urpc.ErrUnknownMethod.Error():
		return ErrForeign
	}
	return remote
}
