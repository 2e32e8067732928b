package tpuproxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/devutil"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/kernel"

	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy/chrootsys"
	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy/laid"
	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy/remap"
)

// ErrBusy is the kind of the error that a group is held by somebody else.
var ErrBusy = errors.New("busy")

// BusyError says which groups were still held by somebody when the time was over.
type BusyError struct {
	Groups []uint32 // numbers of the IOMMU groups
	Waited time.Duration
}

func (e *BusyError) Error() string {
	names := make([]string, len(e.Groups))
	for i, g := range e.Groups {
		names[i] = fmt.Sprintf("/dev/vfio/%d", g)
	}
	return fmt.Sprintf("%s still in use after %v by somebody outside of this sandbox; `runsc tpu holders` on the host tells by whom",
		strings.Join(names, ", "), e.Waited.Round(100*time.Millisecond))
}

// Is reports that the error is of the kind ErrBusy.
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

// How often a group is tried: soon at first, since most are free or almost so.
const (
	firstPause = 20 * time.Millisecond
	maxPause   = time.Second
)

// WaitGroupsFree returns when each IOMMU group with TPUs that the sandbox was given
// could be opened, and has been closed again. A group whose last holder has not let
// it go yet is waited for until ctx ends; the error is then a *BusyError. A group
// that cannot be opened for any other reason ends the wait at once. One that a
// process of this sandbox holds open itself is not waited for: a runtime that has not
// closed its TPU at CHECKPOINT keeps it.
//
// It is to be called once per job, before its first RESTORE, and never while a
// runtime of the job has its TPUs: those would be busy. It holds no lock.
func WaitGroupsFree(ctx context.Context, k *kernel.Kernel) error {
	openers, err := groupOpeners(k)
	if err != nil {
		return err
	}
	return waitFree(ctx, openers)
}

// opener tries whether a group can be opened.
type opener func() error

func groupOpeners(k *kernel.Kernel) (map[uint32]opener, error) {
	source, ok := k.Saver().(interface {
		GetContainerSpecs() map[string]*specs.Spec
	})
	if !ok {
		return nil, nil // a kernel without containers
	}
	all := source.GetContainerSpecs()
	inventory, err := remap.Read(chrootsys.Sysfs{}, remap.GroupsInSpecs(all))
	if err != nil {
		return nil, fmt.Errorf("listing the sandbox's TPUs: %w", err)
	}
	own := laid.VFIO.OpenGroups(k.VFS())
	tpus := slices.DeleteFunc(inventory.Groups(), func(g uint32) bool { return slices.Contains(own, g) })
	openers := make(map[uint32]opener)
	for name, spec := range all {
		client := k.GetDevGoferClient(name)
		for _, group := range remap.GroupsInSpec(spec) {
			if client != nil && slices.Contains(tpus, group) {
				openers[group] = func() error { return tryOpen(k, client, group) }
			}
		}
	}
	return openers, nil
}

func tryOpen(k *kernel.Kernel, client *devutil.GoferClient, group uint32) error {
	fd, err := client.OpenAt(k.SupervisorContext(), fmt.Sprintf("vfio/%d", group), unix.O_RDWR)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func waitFree(ctx context.Context, openers map[uint32]opener) error {
	start := time.Now()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for next := firstPause; ; next = min(2*next, maxPause) {
		if err := tryAll(openers); err != nil {
			return err
		}
		if len(openers) == 0 {
			return nil
		}
		pause.Reset(next)
		select {
		case <-pause.C:
		case <-ctx.Done():
			return busyError(openers, time.Since(start))
		}
	}
}

// tryAll takes out those that could be opened.
func tryAll(openers map[uint32]opener) error {
	for group, try := range openers {
		err := try()
		switch {
		case err == nil:
			delete(openers, group)
		case !isBusy(err):
			return fmt.Errorf("opening /dev/vfio/%d: %w", group, err)
		}
	}
	return nil
}

// isBusy knows the errors of the host and those of gVisor, which has its own.
func isBusy(err error) bool {
	return linuxerr.Equals(linuxerr.EBUSY, err)
}

func busyError(openers map[uint32]opener, waited time.Duration) error {
	e := &BusyError{Waited: waited}
	for group := range openers {
		e.Groups = append(e.Groups, group)
	}
	slices.Sort(e.Groups)
	return e
}
