package commands

import (
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/flag"
)

// create is gVisor's, for containers whose settings are right.
type create struct {
	cmd.Create
	spec *specs.Spec
}

// FetchSpec implements util.SubCommand.
func (c *create) FetchSpec(conf *config.Config, f *flag.FlagSet) (string, *specs.Spec, error) {
	id, spec, err := checked(c.Create.FetchSpec(conf, f))
	c.spec = spec
	return id, spec, err
}

// run is gVisor's, for containers whose settings are right.
type run struct {
	cmd.Run
	spec *specs.Spec
}

// FetchSpec implements util.SubCommand.
func (r *run) FetchSpec(conf *config.Config, f *flag.FlagSet) (string, *specs.Spec, error) {
	id, spec, err := checked(r.Run.FetchSpec(conf, f))
	r.spec = spec
	return id, spec, err
}

func checked(id string, spec *specs.Spec, err error) (string, *specs.Spec, error) {
	if err == nil {
		err = checkSettings(spec)
	}
	return id, spec, err
}
