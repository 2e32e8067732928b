// Package hostview gives the sandbox's own process a view of the host that gVisor can
// make its chroot from. gVisor takes every name in /dev/vfio for an IOMMU group of
// TPUs: it refuses to start where there is anything else, such as the directory
// devices, and panics on a group with a device that it does not know. It also shows
// every TPU of the host to a sandbox that has been given one.
//
// What is mounted here lies in the mount namespace of that process, which leaves all
// of it behind when it moves into its chroot.
package hostview

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"tpuvisor.dev/tpuvisor/pkg/sentry/devices/tpuproxy/remap"
)

const (
	vfioDir   = "/dev/vfio"
	container = "vfio"
)

// Prepare changes what the calling process sees, if it is one that is about to make a
// sandbox's chroot and the host has what gVisor cannot cope with; args are those that
// the process was started with. It must be called from main, before anything else
// looks at the host.
func Prepare(args []string) error {
	if !makesChroot(args) {
		return nil
	}
	v, err := plan("", givenTo(args))
	if err != nil {
		return fmt.Errorf("looking for the host's TPUs: %w", err)
	}
	if v.asItIs() {
		return nil
	}
	if err := v.mount(); err != nil {
		return fmt.Errorf("hiding what is no TPU in %s from the sandbox: %w", vfioDir, err)
	}
	return nil
}

// makesChroot recognises `runsc … boot … --setup-root …`, which runsc starts in a
// mount namespace of its own. The process starts itself again afterwards, without it.
func makesChroot(args []string) bool {
	boot := slices.Index(args, "boot")
	if boot < 0 {
		return false
	}
	return slices.ContainsFunc(args[boot:], func(arg string) bool {
		return arg == "--setup-root" || arg == "--setup-root=true"
	})
}

// view is what of the host a sandbox gets to see.
type view struct {
	names    []string // in /dev/vfio
	hidden   []string // there too, but not to be seen
	disguise []string // folders in sysfs of devices that share a group with a TPU
	veil     []string // those of TPUs that are not to be seen
	members  []string // those of all devices in the groups that are
}

func (v *view) asItIs() bool { return len(v.hidden)+len(v.disguise)+len(v.veil) == 0 }

// plan looks at the host below root, for a sandbox that is given these groups; nil
// stands for all.
func plan(root string, given []uint32) (*view, error) {
	entries, err := os.ReadDir(root + vfioDir)
	if errors.Is(err, fs.ErrNotExist) {
		return new(view), nil
	}
	if err != nil {
		return nil, err
	}
	v := new(view)
	for _, e := range entries {
		if e.Name() == container {
			v.names = append(v.names, container)
			continue
		}
		members, ok, err := membersOf(root, e.Name())
		if err != nil {
			return nil, err
		}
		if !ok || !isGiven(e.Name(), given) {
			v.hidden = append(v.hidden, e.Name())
			continue
		}
		v.names = append(v.names, e.Name())
		v.members = append(v.members, members...)
	}
	return v, v.change(root)
}

// change finds the devices that gVisor would take for what they are not to be.
func (v *view) change(root string) error {
	if len(v.names) == 0 {
		return nil
	}
	devices, err := filepath.Glob(root + "/sys/bus/pci/devices/*")
	if err != nil {
		return err
	}
	for _, link := range devices {
		dir, err := filepath.EvalSymlinks(link)
		if err != nil {
			return err
		}
		taken := attribute(dir, "vendor") == googleVendor && slices.Contains(knownToChroot, attribute(dir, "device"))
		switch member := slices.Contains(v.members, dir); {
		case member && !taken:
			v.disguise = append(v.disguise, dir)
		case taken && !member:
			v.veil = append(v.veil, dir)
		}
	}
	return nil
}

// membersOf gives the folders of the devices in the IOMMU group with that name. ok
// means that there is a TPU among them.
func membersOf(root, name string) (dirs []string, ok bool, err error) {
	if _, number := remap.GroupOfNode(vfioDir + "/" + name); !number {
		return nil, false, nil
	}
	devices, err := filepath.Glob(filepath.Join(root, "/sys/kernel/iommu_groups", name, "devices", "*"))
	if err != nil {
		return nil, false, err
	}
	for _, link := range devices {
		dir, err := filepath.EvalSymlinks(link)
		if err != nil {
			return nil, false, err
		}
		dirs = append(dirs, dir)
		ok = ok || isTPU(attribute(dir, "vendor"), attribute(dir, "device"))
	}
	return dirs, ok, nil
}

func isGiven(name string, given []uint32) bool {
	group, _ := remap.GroupOfNode(vfioDir + "/" + name)
	return given == nil || slices.Contains(given, group)
}

const googleVendor = "0x1ae0"

// knownToChroot are the TPUs that gVisor puts into the chroot of a sandbox with VFIO.
// The physical functions among the TPUs are missing.
var knownToChroot = []string{"0x0062", "0x0063", "0x006f", "0x0075"}

func isTPU(vendor, device string) bool {
	var v, d uint16
	if _, err := fmt.Sscanf(vendor+" "+device, "0x%x 0x%x", &v, &d); err != nil {
		return false
	}
	return remap.IsTPU(v, d)
}

// attribute is the text of a sysfs attribute, or "" if it cannot be read.
func attribute(dir, name string) string {
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// mount puts a /dev/vfio of names alone over the host's: the names are all that is
// looked at here. gVisor takes those PCI devices into the chroot that have a TPU's ids,
// so the ones in disguise get such ids, and the veiled ones lose theirs. It binds their
// folders without what is mounted in them, and so the sandbox sees the real ids.
func (v *view) mount() error {
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("keeping the mounts private: %w", err)
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	if err := unix.Mount("tpuvisor-view", vfioDir, "tmpfs", flags, "mode=0755,size=64k"); err != nil {
		return fmt.Errorf("mounting a tmpfs: %w", err)
	}
	if err := errors.Join(
		cover(v.disguise, "vendor", googleVendor),
		cover(v.disguise, "device", knownToChroot[0]),
		cover(v.veil, "device", "0x0000"),
	); err != nil {
		return err
	}
	for _, name := range v.names {
		if err := os.WriteFile(filepath.Join(vfioDir, name), nil, 0o444); err != nil {
			return err
		}
	}
	return nil
}

// cover puts another text over one attribute of some devices. The text is in a file of
// the tmpfs, of which only the name is removed again.
func cover(dirs []string, name, text string) error {
	if len(dirs) == 0 {
		return nil
	}
	file := filepath.Join(vfioDir, name)
	if err := os.WriteFile(file, []byte(text+"\n"), 0o444); err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := unix.Mount(file, filepath.Join(dir, name), "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("covering %s: %w", filepath.Join(dir, name), err)
		}
	}
	return os.Remove(file)
}
