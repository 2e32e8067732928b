// Package chrootsys reads the sysfs that a sandbox's process sees in its chroot,
// with no other system calls than its filters allow.
package chrootsys

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/fsutil"

	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy/remap"
)

// Sysfs implements remap.Sysfs. There is nothing under /sys/bus in the chroot: a
// device is reached through its IOMMU group.
type Sysfs struct{}

var _ remap.Sysfs = Sysfs{}

// ReadDir implements remap.Sysfs.
func (Sysfs) ReadDir(dir string) ([]string, error) {
	fd, err := open(dir, unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	names, err := fsutil.DirentNames(fd)
	return slices.DeleteFunc(names, func(n string) bool { return n == "." || n == ".." }), err
}

// maxFile is the size of a sysfs attribute.
const maxFile = 4096

// ReadFile implements remap.Sysfs.
func (Sysfs) ReadFile(file string) ([]byte, error) {
	fd, err := open(file, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	buf := make([]byte, maxFile)
	n, err := unix.Read(fd, buf)
	return buf[:max(n, 0)], err
}

// open opens an absolute path whose last element is no link, as the filters want it.
func open(path string, flags int) (int, error) {
	fd, err := unix.Openat(-1, path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return -1, fmt.Errorf("%s: %w", path, err)
	}
	return fd, nil
}
