package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// switched is there when the machine's root is not the initial one any more.
const switched = "/switched"

// switchRoot moves everything to a tmpfs and starts this program again there: runsc
// needs a root that it can pivot from.
func switchRoot() error {
	const root = "/root"
	if err := errors.Join(
		os.MkdirAll(root, 0o755),
		unix.Mount("tmpfs", root, "tmpfs", 0, "size=80%"),
		os.CopyFS(root, rootFS()),
		os.WriteFile(root+switched, nil, 0o644),
	); err != nil {
		return err
	}
	if err := errors.Join(
		unix.Chdir(root),
		unix.Mount(".", "/", "", unix.MS_MOVE, ""),
		unix.Chroot("."),
		unix.Chdir("/"),
	); err != nil {
		return err
	}
	return unix.Exec("/init", []string{"/init"}, []string{"PATH=/bin"})
}

// rootFS is what there is to move.
func rootFS() fs.FS { return without{os.DirFS("/")} }

// without leaves out the folder that all is moved to.
type without struct{ fs.FS }

func (w without) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(w.FS, name)
	if name != "." {
		return entries, err
	}
	var kept []fs.DirEntry
	for _, e := range entries {
		if e.Name() != "root" && e.Name() != "dev" {
			kept = append(kept, e)
		}
	}
	return kept, err
}

// mountAll mounts what a machine has.
func mountAll() error {
	for _, m := range []struct{ dir, kind string }{
		{"/proc", "proc"}, {"/sys", "sysfs"}, {"/dev", "devtmpfs"}, {"/dev/pts", "devpts"},
		{"/dev/shm", "tmpfs"}, {"/tmp", "tmpfs"}, {"/run", "tmpfs"},
	} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.dir, m.kind, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mounting %s: %w", m.dir, err)
		}
	}
	return nil
}

func loadModules() error {
	order, err := os.ReadFile("/modules/order")
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(order)) {
		if err := load(filepath.Join("/modules", name)); err != nil {
			return fmt.Errorf("loading %s: %w", name, err)
		}
	}
	return nil
}

func load(module string) error {
	f, err := os.Open(module)
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.FinitModule(int(f.Fd()), "", 0)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}
