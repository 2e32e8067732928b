package boot

import (
	"fmt"

	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/devices/tpuproxy/vfio"
	"gvisor.dev/gvisor/pkg/sentry/state"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/specutils"

	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy/bootargs"
	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy/chrootsys"
	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy/remap"
	"tpuvisor.dev/tpuvisor/pkg/sentry/savehook"
)

// setTPUDeviceRemapMetadata records the TPUs that the sandbox has, whether or not one
// is open: they are what a restore has to find again.
func (l *Loader) setTPUDeviceRemapMetadata(saveOpts *state.SaveOpts) error {
	vfio.KeepDMA(l.k)
	groups := remap.GroupsInSpecs(l.GetContainerSpecs())
	if len(groups) == 0 {
		return nil
	}
	inventory, err := remap.Read(chrootsys.Sysfs{}, groups)
	if err != nil {
		return fmt.Errorf("listing the sandbox's TPUs: %w", err)
	}
	log.Infof("TPUs saved: %v", inventory)
	saveOpts.Metadata[remap.MetadataKey], err = inventory.Encode()
	return err
}

// prepareTPURestoreContextLocked compares what was saved with what is here, and
// refuses before the kernel is loaded.
//
// +checklocks:l.mu
func (r *restorer) prepareTPURestoreContextLocked(ctx context.Context, l *Loader) (context.Context, error) {
	savehook.LoadBegins()
	saved, err := remap.Recorded(r.metadata)
	if err != nil {
		return ctx, err
	}
	now, err := remap.Read(chrootsys.Sysfs{}, remap.GroupsInSpecs(l.containerSpecs))
	if err != nil {
		return ctx, fmt.Errorf("listing the sandbox's TPUs: %w", err)
	}
	if err := r.validateSpecsLocked(l, saved, now); err != nil {
		return ctx, fmt.Errorf("failed to handle restore spec validation: %w", err)
	}
	if len(saved) == 0 || r.extractRootFsMode {
		return ctx, nil
	}
	plan, err := remap.New(saved, now, remap.Shares(r.checkpointedSpecs, l.containerSpecs))
	if err != nil {
		return ctx, err
	}
	log.Infof("TPUs restored: %v", plan)
	vfio.SetRestorePlan(plan)
	return ctx, nil
}

// validateSpecsLocked is the comparison that package bootargs has put off.
//
// +checklocks:l.mu
func (r *restorer) validateSpecsLocked(l *Loader, saved, now remap.Inventory) error {
	var conf config.Config
	if bootargs.Policy() == "" {
		return nil
	}
	if err := conf.RestoreSpecValidation.Set(bootargs.Policy()); err != nil {
		return err
	}
	before, err := remap.WithoutGroups(r.checkpointedSpecs, saved.Groups())
	if err != nil {
		return err
	}
	after, err := remap.WithoutGroups(l.containerSpecs, now.Groups())
	if err != nil {
		return err
	}
	return specutils.RestoreValidateSpec(before, after, &conf)
}
