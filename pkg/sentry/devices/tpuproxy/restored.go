package tpuproxy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/dev"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/sys"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy/laid"
	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy/remap"
)

// AfterRestore lets a restored sandbox see the TPUs that it has now: in /dev/vfio a
// node for each group, in /sys the devices of this host. It does nothing in a sandbox
// that was not restored, or that had no TPU. It is called once, when the kernel has
// been loaded and before any runtime is asked to restore; tasks may be running.
func AfterRestore(k *kernel.Kernel) error {
	plan := laid.VFIO.RestorePlan()
	if plan == nil {
		return nil
	}
	r := &refresh{ctx: k.SupervisorContext(), fs: k.VFS(), creds: auth.NewRootCredentials(k.RootUserNamespace()), plan: plan}
	mounts := r.fs.GetAllMounts(r.ctx)
	defer func() {
		for _, mnt := range mounts {
			mnt.DecRef(r.ctx)
		}
	}()
	var errs []error
	for _, mnt := range mounts {
		switch mnt.Filesystem().FilesystemType().Name() {
		case dev.Name:
			errs = append(errs, r.nodes(mnt))
		case sys.Name:
			errs = append(errs, r.sysfs(mnt))
		}
	}
	return errors.Join(errs...)
}

// refresh is what AfterRestore works with.
type refresh struct {
	ctx   context.Context
	fs    *vfs.VirtualFilesystem
	creds *auth.Credentials
	plan  *remap.Plan
}

func (r *refresh) at(mnt *vfs.Mount, path string) *vfs.PathOperation {
	root := vfs.MakeVirtualDentry(mnt, mnt.Root())
	return &vfs.PathOperation{Root: root, Start: root, Path: fspath.Parse(path)}
}

// node is the node of an IOMMU group in a /dev.
type node struct {
	name  uint32 // the number that it is called by
	group uint32 // the group that it leads to
	stat  linux.Statx
}

const nodesDir = "vfio"

func nodePath(group uint32) string {
	return nodesDir + "/" + strconv.FormatUint(uint64(group), 10)
}

// nodes makes the nodes that are missing in one /dev, and puts right those that are
// called like a group and lead to another. A node of a group that is no longer here
// stays, and leads to its successor.
func (r *refresh) nodes(mnt *vfs.Mount) error {
	have, err := r.list(mnt)
	if err != nil || len(have) == 0 {
		return err // this /dev belongs to a container without TPUs
	}
	for _, group := range r.wanted(have) {
		i := slices.IndexFunc(have, func(n node) bool { return n.name == group })
		if i >= 0 && have[i].group == group {
			continue
		}
		if i >= 0 {
			if err := r.fs.UnlinkAt(r.ctx, r.creds, r.at(mnt, nodePath(group))); err != nil {
				return fmt.Errorf("replacing /dev/%s: %w", nodePath(group), err)
			}
		}
		if err := r.makeNode(mnt, group, have[0].stat); err != nil {
			return fmt.Errorf("making /dev/%s: %w", nodePath(group), err)
		}
		log.Infof("/dev/%s made for the restored sandbox", nodePath(group))
	}
	return nil
}

// makeNode makes the node of a group like another one, of which it has stat.
func (r *refresh) makeNode(mnt *vfs.Mount, group uint32, stat linux.Statx) error {
	minor, err := laid.VFIO.AddGroup(r.fs, stat.RdevMajor, group)
	if err != nil {
		return err
	}
	root := vfs.MakeVirtualDentry(mnt, mnt.Root())
	return dev.CreateDeviceFile(r.ctx, r.fs, r.creds, root, nodePath(group), stat.RdevMajor, minor,
		linux.FileMode(stat.Mode), &stat.UID, &stat.GID)
}

// wanted are the groups that need a node in the /dev with the nodes have: those of
// the containers that the nodes were made for.
func (r *refresh) wanted(have []node) []uint32 {
	mine := func(group uint32) bool {
		return slices.ContainsFunc(have, func(n node) bool { return n.name == group })
	}
	var groups []uint32
	for _, c := range r.plan.Containers {
		if slices.ContainsFunc(c.Saved, mine) {
			groups = append(groups, c.Now...)
		}
	}
	tpus := r.plan.Now.Groups()
	groups = slices.DeleteFunc(groups, func(g uint32) bool { return !slices.Contains(tpus, g) })
	slices.Sort(groups)
	return slices.Compact(groups)
}

// list finds the nodes of groups in a /dev.
func (r *refresh) list(mnt *vfs.Mount) ([]node, error) {
	names, err := r.names(mnt, nodesDir)
	if linuxerr.Equals(linuxerr.ENOENT, err) || linuxerr.Equals(linuxerr.ENOTDIR, err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing /dev/%s: %w", nodesDir, err)
	}
	var nodes []node
	for _, name := range names {
		number, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			continue
		}
		n := node{name: uint32(number)}
		n.stat, err = r.fs.StatAt(r.ctx, r.creds, r.at(mnt, nodePath(n.name)), &vfs.StatOptions{
			Mask: linux.STATX_TYPE | linux.STATX_MODE | linux.STATX_UID | linux.STATX_GID,
		})
		if err != nil || n.stat.Mode&linux.S_IFMT != linux.S_IFCHR {
			continue
		}
		var ok bool
		if n.group, ok = laid.VFIO.GroupOfNode(r.fs, n.stat.RdevMajor, n.stat.RdevMinor); ok {
			nodes = append(nodes, n)
		}
	}
	return nodes, nil
}

func (r *refresh) names(mnt *vfs.Mount, dir string) ([]string, error) {
	file, err := r.fs.OpenAt(r.ctx, r.creds, r.at(mnt, dir), &vfs.OpenOptions{Flags: linux.O_RDONLY | linux.O_DIRECTORY})
	if err != nil {
		return nil, err
	}
	defer file.DecRef(r.ctx)
	var names direntNames
	err = file.IterDirents(r.ctx, &names)
	return names, err
}

type direntNames []string

// Handle implements vfs.IterDirentsCallback.Handle.
func (names *direntNames) Handle(d vfs.Dirent) error {
	*names = append(*names, d.Name)
	return nil
}
