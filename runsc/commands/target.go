package commands

import (
	"errors"
	"fmt"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/settings"
)

// A target is the container that a command is about: its only argument.
type target struct{ loaded *container.Container }

// load loads the container, once.
func (t *target) load(conf *config.Config, f *flag.FlagSet) (*container.Container, error) {
	if t.loaded != nil {
		return t.loaded, nil
	}
	if f.NArg() != 1 {
		return nil, fmt.Errorf("one container ID is wanted, and %d arguments were given", f.NArg())
	}
	c, err := container.Load(conf.RootDir, container.FullID{ContainerID: f.Arg(0)}, container.LoadOpts{})
	if err != nil {
		return nil, fmt.Errorf("loading container: %w", err)
	}
	t.loaded = c
	return c, nil
}

// FetchSpec implements util.SubCommand.
func (t *target) FetchSpec(conf *config.Config, f *flag.FlagSet) (string, *specs.Spec, error) {
	c, err := t.load(conf, f)
	if err != nil {
		return "", nil, err
	}
	return c.ID, c.Spec, nil
}

// checkSettings refuses annotations of ours that are unknown or have a bad value.
func checkSettings(spec *specs.Spec) error {
	if spec == nil {
		return nil
	}
	if _, err := settings.Parse(spec.Annotations); err != nil {
		return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}
