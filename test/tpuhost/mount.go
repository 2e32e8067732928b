package tpuhost

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// mount puts the host's /sys and /dev over the machine's, in the mount namespace
// of the calling thread, which must be private already.
func (h Host) mount() error {
	err := replace("/sys", h.writeSys,
		[]string{"devices", "kernel", "bus", "class"},
		[]string{"devices/pci", "kernel/iommu_groups", "bus/pci", "class/accel", "class/vfio", "class/iommu"})
	if err != nil {
		return err
	}
	return replace("/dev", h.writeDev, nil, []string{"vfio", "accel"})
}

// writeDev makes the nodes of the host's chips in a tree that stands for /dev.
func (h Host) writeDev(root string) error {
	if h.Clutter {
		if err := os.MkdirAll(filepath.Join(root, "vfio/devices"), 0o755); err != nil {
			return err
		}
	}
	for _, n := range h.nodes(func(Chip) bool { return true }) {
		path := filepath.Join(root, strings.TrimPrefix(n.Path, "/dev/"))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := mknod(path, unix.S_IFCHR|0o666, unix.Mkdev(1, 8)); err != nil {
			return err
		}
	}
	return nil
}

// replace mounts a new tree at dir, filled by write. All else that the old tree
// has at its top, and in the folders named by open, is carried over; except
// what begins with one of the hidden paths.
func replace(dir string, write func(root string) error, open, hidden []string) error {
	var kept []carried
	for _, in := range append([]string{""}, open...) {
		more, err := carry(dir, in, func(path string) bool {
			return slices.Contains(open, path) || begins(path, hidden)
		})
		if err != nil {
			return fmt.Errorf("tpuhost: read %s: %w", filepath.Join(dir, in), err)
		}
		kept = append(kept, more...)
	}
	if err := unix.Mount("tpuhost", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755"); err != nil {
		return fmt.Errorf("tpuhost: mount a tmpfs at %s: %w", dir, err)
	}
	for _, c := range kept {
		if err := c.place(); err != nil {
			return fmt.Errorf("tpuhost: carry %s over: %w", c.path, err)
		}
	}
	if err := write(dir); err != nil {
		return fmt.Errorf("tpuhost: fill %s: %w", dir, err)
	}
	return nil
}

// carried is one entry of a tree that is about to be covered.
type carried struct {
	path string
	mode uint32 // as in stat
	rdev uint64
	link string // of a symbolic link
	tree int    // of anything that is no link and no device: a copy of its mount
}

// carry collects the entries of one folder of the tree at root, but for those to
// leave, told by their path below the root.
func carry(root, in string, leave func(string) bool) ([]carried, error) {
	entries, err := os.ReadDir(filepath.Join(root, in))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var kept []carried
	for _, e := range entries {
		if leave(filepath.Join(in, e.Name())) {
			continue
		}
		c, err := pickUp(filepath.Join(root, in, e.Name()))
		if err != nil {
			return nil, err
		}
		kept = append(kept, c)
	}
	return kept, nil
}

func begins(path string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(path, p) {
			return true
		}
	}
	return false
}

func pickUp(path string) (carried, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return carried{}, err
	}
	c := carried{path: path, mode: st.Mode, rdev: st.Rdev}
	var err error
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		c.link, err = os.Readlink(path)
	case unix.S_IFCHR, unix.S_IFBLK:
	default:
		c.tree, err = unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_SYMLINK_NOFOLLOW)
	}
	return c, err
}

// place puts the entry into the new tree, at the path it had.
func (c carried) place() error {
	if err := os.MkdirAll(filepath.Dir(c.path), 0o755); err != nil {
		return err
	}
	switch c.mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return os.Symlink(c.link, c.path)
	case unix.S_IFCHR, unix.S_IFBLK:
		return mknod(c.path, c.mode, c.rdev)
	case unix.S_IFDIR:
		if err := os.Mkdir(c.path, 0o755); err != nil {
			return err
		}
	default:
		if err := os.WriteFile(c.path, nil, 0o644); err != nil {
			return err
		}
	}
	defer unix.Close(c.tree)
	return unix.MoveMount(c.tree, "", unix.AT_FDCWD, c.path, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// mknod makes a node with just that mode, whatever the umask.
func mknod(path string, mode uint32, dev uint64) error {
	if err := unix.Mknod(path, mode, int(dev)); err != nil {
		return &os.PathError{Op: "mknod", Path: path, Err: err}
	}
	return os.Chmod(path, fs.FileMode(mode&0o777))
}
