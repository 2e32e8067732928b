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
	first, err := container.Load(conf.RootDir, container.FullID{SandboxID: id, ContainerID: id}, container.LoadOpts{SkipCheck: true})
	if err != nil {
		return nil // which gVisor tells
	}
	return sandboxHasTPUs(conf, first.Spec)
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
	first, err := container.Load(conf.RootDir, container.FullID{SandboxID: id, ContainerID: id}, container.LoadOpts{SkipCheck: true})
	return err != nil || specutils.TPUProxyEnabled(first.Spec, conf)
}

func sandboxHasTPUs(conf *config.Config, first *specs.Spec) error {
	if specutils.TPUProxyEnabled(first, conf) {
		return nil
	}
	return fmt.Errorf("the container has TPUs, and the sandbox of its pod was started without: give the pod the annotation %s: \"true\"", specutils.AnnotationTPU)
}
