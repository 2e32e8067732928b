package vfio

import (
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// ConfigureMMap implements vfs.FileDescriptionImpl.ConfigureMMap.
func (fd *pciDeviceFD) ConfigureMMap(_ context.Context, opts *memmap.MMapOpts) error {
	if fd.gone() {
		return linuxerr.ENODEV
	}
	return vfs.GenericProxyDeviceConfigureMMap(&fd.vfsfd, fd, opts)
}

// AddMapping implements memmap.Mappable.AddMapping.
func (fd *pciDeviceFD) AddMapping(_ context.Context, ms memmap.MappingSpace, ar hostarch.AddrRange, offset uint64, writable bool) error {
	fd.mapsMu.Lock()
	defer fd.mapsMu.Unlock()
	fd.mappings.AddMapping(ms, ar, offset, writable)
	return nil
}

// RemoveMapping implements memmap.Mappable.RemoveMapping.
func (fd *pciDeviceFD) RemoveMapping(_ context.Context, ms memmap.MappingSpace, ar hostarch.AddrRange, offset uint64, writable bool) {
	fd.mapsMu.Lock()
	defer fd.mapsMu.Unlock()
	fd.mappings.RemoveMapping(ms, ar, offset, writable)
}

// CopyMapping implements memmap.Mappable.CopyMapping.
func (fd *pciDeviceFD) CopyMapping(ctx context.Context, ms memmap.MappingSpace, _, dst hostarch.AddrRange, offset uint64, writable bool) error {
	return fd.AddMapping(ctx, ms, dst, offset, writable)
}

// Translate implements memmap.Mappable.Translate. What is mapped of a device that is
// gone cannot be touched: that is a SIGBUS.
func (fd *pciDeviceFD) Translate(_ context.Context, required, optional memmap.MappableRange, _ hostarch.AccessType) ([]memmap.Translation, error) {
	if fd.gone() {
		return nil, &memmap.BusError{Err: linuxerr.ENODEV}
	}
	return []memmap.Translation{{
		Source: optional,
		File:   &fd.memmapFile,
		Offset: optional.Start,
		Perms:  hostarch.AnyAccess,
	}}, nil
}

// InvalidateUnsavable implements memmap.Mappable.InvalidateUnsavable. A sandbox that
// goes on after the save gets its mappings back when it next touches them.
func (fd *pciDeviceFD) InvalidateUnsavable(ctx context.Context) error {
	count(kernel.KernelFromContext(ctx))
	fd.mapsMu.Lock()
	defer fd.mapsMu.Unlock()
	fd.mappings.InvalidateAll(memmap.InvalidateOpts{InvalidatePrivate: true})
	return nil
}
