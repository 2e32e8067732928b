package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"tpuvisor.dev/tpuvisor/test/tpuhost"
)

// Container is one container of a Runsc.
type Container struct {
	ID string
	r  *Runsc
}

// State is what `runsc state` tells.
type State struct {
	ID     string `json:"id"`
	Status string `json:"status"`
	PID    int    `json:"pid"` // of the sandbox, on the machine
}

// Run starts a container from a bundle, on a host. Its output goes to Output.
func (r *Runsc) Run(ctx context.Context, id string, host tpuhost.Host, bundle string, flags ...string) (*Container, error) {
	return r.begin(ctx, id, host, "run", append(flags, "-bundle="+bundle, "-detach"))
}

// Restore starts a container from a bundle, on a host, and the image of a
// checkpoint.
func (r *Runsc) Restore(ctx context.Context, id string, host tpuhost.Host, bundle, image string, flags ...string) (*Container, error) {
	return r.begin(ctx, id, host, "restore", append(flags, "-bundle="+bundle, "-image-path="+image, "-detach"))
}

// RestoreAttached is Restore that returns when the container has ended. Nothing of it
// is left then.
func (r *Runsc) RestoreAttached(ctx context.Context, id string, host tpuhost.Host, bundle, image string, flags ...string) error {
	c := &Container{ID: id, r: r}
	err := r.start(ctx, host, c.console(), "restore", append(flags, "-bundle="+bundle, "-image-path="+image, id)...)
	return errors.Join(err, c.forget(context.WithoutCancel(ctx)))
}

func (r *Runsc) begin(ctx context.Context, id string, host tpuhost.Host, command string, args []string) (*Container, error) {
	c := &Container{ID: id, r: r}
	err := r.start(ctx, host, c.console(), command, append(args, id)...)
	if err != nil {
		return nil, errors.Join(err, c.forget(context.WithoutCancel(ctx)))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.containers = append(r.containers, c)
	return c, nil
}

// forget takes away what a container that did not start may have left.
func (c *Container) forget(ctx context.Context) error {
	if states, err := c.r.List(ctx); err == nil && states[c.ID] == "" {
		return nil
	}
	return c.destroy(ctx)
}

func (c *Container) console() string { return filepath.Join(c.r.dir, c.ID+".console") }

// Output is what the container has said on stdout and stderr.
func (c *Container) Output() string {
	said, _ := os.ReadFile(c.console())
	return string(said)
}

// Checkpoint saves the container to a folder, which is made if it is not there.
func (c *Container) Checkpoint(ctx context.Context, image string, flags ...string) error {
	_, err := c.r.Do(ctx, "checkpoint", append(flags, "-image-path="+image, c.ID)...)
	return err
}

// Pause pauses the whole sandbox.
func (c *Container) Pause(ctx context.Context) error {
	_, err := c.r.Do(ctx, "pause", c.ID)
	return err
}

// Resume undoes a Pause.
func (c *Container) Resume(ctx context.Context) error {
	_, err := c.r.Do(ctx, "resume", c.ID)
	return err
}

// Exec runs a program inside, and returns what it said on stdout.
func (c *Container) Exec(ctx context.Context, args ...string) (string, error) {
	return c.r.Do(ctx, "exec", append([]string{c.ID}, args...)...)
}

// Kill sends a signal ("TERM"…) to the container's first process.
func (c *Container) Kill(ctx context.Context, signal string) error {
	_, err := c.r.Do(ctx, "kill", c.ID, signal)
	return err
}

// State asks runsc for the container's state.
func (c *Container) State(ctx context.Context) (State, error) {
	out, err := c.r.Do(ctx, "state", c.ID)
	if err != nil {
		return State{}, err
	}
	var s State
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		return State{}, fmt.Errorf("sandbox: runsc state: %w", err)
	}
	return s, nil
}

// Wait returns the exit status of the container's first process. It must be called
// before that ends: afterwards runsc cannot tell.
func (c *Container) Wait(ctx context.Context) (int, error) {
	out, err := c.r.Do(ctx, "wait", c.ID)
	if err != nil {
		return 0, err
	}
	var result struct {
		Status int `json:"exitStatus"`
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		return 0, fmt.Errorf("sandbox: runsc wait: %w: %s", err, strings.TrimSpace(out))
	}
	return result.Status, nil
}

// Delete ends the container, whatever it does, and takes it away. The container
// is of no use afterwards.
func (c *Container) Delete(ctx context.Context) error {
	c.r.mu.Lock()
	for i, other := range c.r.containers {
		if other == c {
			c.r.containers = append(c.r.containers[:i:i], c.r.containers[i+1:]...)
			break
		}
	}
	c.r.mu.Unlock()
	return c.destroy(ctx)
}

func (c *Container) destroy(ctx context.Context) error {
	_, err := c.r.Do(ctx, "delete", "-force", c.ID)
	return err
}
