package commands

import (
	"fmt"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/specutils"
)

// checkPod refuses a container with TPUs in a sandbox that was started without: what
// the sandbox may do is settled at its start, and gVisor's ends when it does more.
func checkPod(conf *config.Config, spec *specs.Spec) error {
	if spec == nil || specutils.IsRootContainer(spec) || !specutils.TPUFunctionalityRequested(spec, conf) {
		return nil
	}
	id, ok := specutils.SandboxID(spec)
	if !ok {
		return nil
	}
	first, err := firstOf(conf, id)
	if err != nil {
		return nil // which gVisor tells
	}
	return sandboxHasTPUs(conf, first.Spec)
}

// firstOf loads the first container of a sandbox, which has its name.
func firstOf(conf *config.Config, sandbox string) (*container.Container, error) {
	id := container.FullID{SandboxID: sandbox, ContainerID: sandbox}
	return container.Load(conf.RootDir, id, container.LoadOpts{SkipCheck: true})
}

// mayHaveTPUs reports whether the sandbox of a container can have TPUs. Where that is
// not known, it may.
func mayHaveTPUs(conf *config.Config, cont *container.Container) bool {
	if cont.Spec == nil || specutils.TPUProxyEnabled(cont.Spec, conf) {
		return true
	}
	id, ok := specutils.SandboxID(cont.Spec)
	if specutils.IsRootContainer(cont.Spec) || !ok {
		return false
	}
	first, err := firstOf(conf, id)
	return err != nil || specutils.TPUProxyEnabled(first.Spec, conf)
}

func sandboxHasTPUs(conf *config.Config, first *specs.Spec) error {
	if specutils.TPUProxyEnabled(first, conf) {
		return nil
	}
	return fmt.Errorf("the container has TPUs, and the sandbox of its pod was started without: give the pod the annotation %s: \"true\"", specutils.AnnotationTPU)
}
