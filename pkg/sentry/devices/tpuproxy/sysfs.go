package tpuproxy

import (
	"fmt"
	"strings"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/sys"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"
)

// A sandbox's sysfs is made when it starts, from what the host has then, and is saved
// with it. After a restore on other devices the parts that show them are covered by
// those of a new one.
var hardware = []string{"devices", "bus", "class", "kernel/iommu_groups"}

// sysfs covers the hardware in one /sys.
func (r *refresh) sysfs(mnt *vfs.Mount) error {
	if r.plan.Identity() || !r.exists(mnt, "kernel/iommu_groups") {
		return nil // nothing to cover, or itself a cover
	}
	options := mnt.Options()
	options.GetFilesystemOptions = vfs.GetFilesystemOptions{
		InternalMount: true,
		InternalData: &sys.InternalData{
			ProductName:         r.productName(mnt),
			EnableTPUProxyPaths: true,
		},
	}
	fresh, err := r.fs.MountDisconnected(r.ctx, r.creds, "none", sys.Name, &options)
	if err != nil {
		return fmt.Errorf("a sysfs of this host's devices: %w", err)
	}
	defer fresh.DecRef(r.ctx)
	for _, dir := range hardware {
		if err := r.cover(mnt, fresh, dir, &options); err != nil {
			return fmt.Errorf("covering /sys/%s: %w", dir, err)
		}
	}
	return nil
}

func (r *refresh) cover(mnt, fresh *vfs.Mount, dir string, options *vfs.MountOptions) error {
	source, err := r.fs.GetDentryAt(r.ctx, r.creds, r.at(fresh, dir), &vfs.GetDentryOptions{})
	if err != nil {
		return err
	}
	defer source.DecRef(r.ctx)
	cover := r.fs.NewDisconnectedMount(fresh.Filesystem(), source.Dentry(), options)
	defer cover.DecRef(r.ctx)
	err = r.fs.ConnectMountAt(r.ctx, r.creds, cover, r.at(mnt, dir))
	if linuxerr.Equals(linuxerr.EINVAL, err) {
		return nil // mnt is not part of any mount namespace: nobody sees it
	}
	return err
}

func (r *refresh) exists(mnt *vfs.Mount, path string) bool {
	_, err := r.fs.StatAt(r.ctx, r.creds, r.at(mnt, path), &vfs.StatOptions{Mask: linux.STATX_TYPE})
	return err == nil
}

// productName is that of the saved sandbox: it tells programs what cloud they are in.
func (r *refresh) productName(mnt *vfs.Mount) string {
	path := r.at(mnt, "devices/virtual/dmi/id/product_name")
	file, err := r.fs.OpenAt(r.ctx, r.creds, path, &vfs.OpenOptions{Flags: linux.O_RDONLY})
	if err != nil {
		return ""
	}
	defer file.DecRef(r.ctx)
	buf := make([]byte, linux.PATH_MAX)
	n, err := file.PRead(r.ctx, usermem.BytesIOSequence(buf), 0, vfs.ReadOptions{})
	if err != nil && n == 0 {
		return ""
	}
	return strings.TrimSuffix(string(buf[:n]), "\n")
}
