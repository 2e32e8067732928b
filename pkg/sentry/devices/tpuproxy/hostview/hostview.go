// Package hostview gives the sandbox's own process a view of the host that gVisor can
// make its chroot from. gVisor takes every name in /dev/vfio for an IOMMU group of
// TPUs: it refuses to start where there is anything else, such as the directory
// devices, and panics on a group with a device that it does not know.
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
	v, err := plan("")
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
}

func (v *view) asItIs() bool { return len(v.hidden)+len(v.disguise) == 0 }

// plan looks at the host below root.
func plan(root string) (*view, error) {
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
		others, ok, err := membersOf(root, e.Name())
		if err != nil {
			return nil, err
		}
		if !ok {
			v.hidden = append(v.hidden, e.Name())
			continue
		}
		v.names = append(v.names, e.Name())
		v.disguise = append(v.disguise, others...)
	}
	return v, nil
}

// membersOf looks at the IOMMU group with that name. ok means that there is a TPU in
// it; others are the folders of those devices that gVisor would leave out.
func membersOf(root, name string) (others []string, ok bool, err error) {
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
		vendor, device := attribute(dir, "vendor"), attribute(dir, "device")
		ok = ok || isTPU(vendor, device)
		if vendor != googleVendor || !slices.Contains(knownToChroot, device) {
			others = append(others, dir)
		}
	}
	return others, ok, nil
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
// looked at here. The devices to disguise get the ids of a TPU, so that gVisor takes
// their folders into the chroot. It binds these without what is mounted in them, and
// so the sandbox sees the real ids.
func (v *view) mount() error {
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("keeping the mounts private: %w", err)
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	if err := unix.Mount("tpuvisor-view", vfioDir, "tmpfs", flags, "mode=0755,size=64k"); err != nil {
		return fmt.Errorf("mounting a tmpfs: %w", err)
	}
	if err := v.putOn(); err != nil {
		return err
	}
	for _, name := range v.names {
		if err := os.WriteFile(filepath.Join(vfioDir, name), nil, 0o444); err != nil {
			return err
		}
	}
	return nil
}

// putOn disguises the devices. The files are of the tmpfs, and only their names are
// removed again.
func (v *view) putOn() error {
	if len(v.disguise) == 0 {
		return nil
	}
	for name, text := range map[string]string{"vendor": googleVendor, "device": knownToChroot[0]} {
		mask := filepath.Join(vfioDir, name)
		if err := os.WriteFile(mask, []byte(text+"\n"), 0o444); err != nil {
			return err
		}
		for _, dir := range v.disguise {
			if err := unix.Mount(mask, filepath.Join(dir, name), "", unix.MS_BIND, ""); err != nil {
				return fmt.Errorf("covering %s: %w", filepath.Join(dir, name), err)
			}
		}
		if err := os.Remove(mask); err != nil {
			return err
		}
	}
	return nil
}
