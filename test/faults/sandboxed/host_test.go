//go:build faults

package sandboxed

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/runsc/boot"

	"tpuvisor.dev/tpuvisor/test/faults"
	"tpuvisor.dev/tpuvisor/test/trial"
)

// stateFile is what gVisor calls the file of an image that is read first.
const stateFile = "checkpoint.img"

// TestSandboxed_Host has a host that lacks something, or has too much.
func TestSandboxed_Host(t *testing.T) {
	t.Parallel()
	on := func(id string, do func(*rig) error) step { return operator(id, faults.Checkpoint, do) }
	from := func(id string, spoil func(path string) error) step {
		return operator(id, faults.Restore, func(r *rig) error { return badImage(r, spoil) })
	}
	steps := []step{
		on("host/directory-unwritable", directoryUnwritable),
		on("host/disk-full", diskFull),
		on("host/files-there", filesThere),
		ownImageThere(),
		on("host/exec-missing", execFails("/missing")),
		on("host/exec-fails", execFails("/trainer -nonsense")),
		from("host/image-truncated", truncate),
		from("host/image-foreign", foreign),
		from("host/image-older", older),
		filestoreThere(),
	}
	group(t, func([]step) trial.Job { return trial.Job{Processes: 2} }, steps)
}

// failTo wants a checkpoint to a folder to fail, and the folder to be left with just
// these files.
func (r *rig) failTo(dir string, files int, flags ...string) error {
	err := r.Container.Checkpoint(r.ctx, dir, append(flags, "-leave-running")...)
	if err == nil {
		return errors.New("the checkpoint succeeded")
	}
	left, readErr := os.ReadDir(dir)
	if readErr != nil || len(left) != files {
		return fmt.Errorf("%d files are left of the image (%v), and there were %d: %v", len(left), readErr, files, left)
	}
	return r.goesOn()
}

// mounted makes a folder that is a file system of its own.
func (r *rig) mounted(flags uintptr, data string, do func(dir string) error) error {
	dir := r.Image()
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", flags, data); err != nil {
		return err
	}
	return errors.Join(do(dir), unix.Unmount(dir, unix.MNT_DETACH))
}

func directoryUnwritable(r *rig) error {
	return r.mounted(unix.MS_RDONLY, "", func(dir string) error { return r.failTo(dir, 0) })
}

func diskFull(r *rig) error {
	return r.mounted(0, "size=64k", func(dir string) error { return r.failTo(dir, 0) })
}

func filesThere(r *rig) error {
	dir := r.Image()
	file := filepath.Join(dir, stateFile)
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(file, []byte("precious"), 0o644)); err != nil {
		return err
	}
	if err := r.failTo(dir, 1); err != nil {
		return err
	}
	if content, err := os.ReadFile(file); string(content) != "precious" {
		return fmt.Errorf("the file that was there is now %q (%v)", content, err)
	}
	return nil
}

// ownImageThere makes checkpoint after checkpoint to one directory, as an engine does
// that has one for each container.
func ownImageThere() step {
	s := operator("host/own-image-there", faults.Checkpoint, func(r *rig) error {
		dir, err := r.save()
		if err != nil {
			return err
		}
		first, err := os.ReadFile(filepath.Join(dir, stateFile))
		if err != nil {
			return err
		}
		files, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		if err := r.failTo(dir, len(files), "-save-restore-exec-argv=/missing"); err != nil {
			return err
		}
		if left, err := os.ReadFile(filepath.Join(dir, stateFile)); !bytes.Equal(left, first) {
			return fmt.Errorf("a failed checkpoint has changed the image that was there (%v)", err)
		}
		if err := r.Container.Checkpoint(r.ctx, dir, "-leave-running"); err != nil {
			return err
		}
		if left, err := os.ReadFile(filepath.Join(dir, stateFile)); err != nil || bytes.Equal(left, first) {
			return fmt.Errorf("the image that was there has not been replaced (%v)", err)
		}
		return r.goesOn()
	})
	s.saves = 3
	return s
}

func filestoreThere() step {
	s := operator("host/filestore-there", faults.Restore, func(r *rig) error {
		image, err := r.Checkpoint(r.ctx)
		if err == nil {
			err = r.Container.Delete(r.ctx)
		}
		if err != nil {
			return err
		}
		left := boot.SelfFilestorePath(r.RootFS(), r.Container.ID)
		if err := os.WriteFile(left, []byte("what an earlier one wrote"), 0o600); err != nil {
			return err
		}
		return errors.Join(r.RestoreHere(r.ctx, image), r.goesOn())
	})
	s.ended = true // the sandbox is another one
	return s
}

func execFails(argv string) func(*rig) error {
	return func(r *rig) error {
		image, err := r.save("-save-restore-exec-argv=" + argv)
		if err := wantError(faults.Some, "", image, err); err != nil {
			return err
		}
		return r.goesOn()
	}
}

// badImage restores from an image that somebody has spoilt, beside the sandbox.
func badImage(r *rig, spoil func(path string) error) error {
	image, err := r.save()
	if err == nil {
		err = spoil(filepath.Join(image, stateFile))
	}
	if err != nil {
		return err
	}
	running := r.Container
	err = r.RestoreOnly(r.ctx, image)
	r.Container = running
	if err == nil {
		return errors.New("it was restored")
	}
	list, listErr := r.Runsc.List(r.ctx)
	if len(list) != 1 {
		return fmt.Errorf("a container is left: %v (%v)", list, listErr)
	}
	return nil
}

func foreign(path string) error { return os.WriteFile(path, []byte("no image"), 0o644) }

func truncate(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return os.Truncate(path, info.Size()/2)
}

// older makes the image one of another version of runsc.
func older(path string) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	reader, metadata, err := statefile.NewReader(in, nil)
	if err != nil {
		return err
	}
	state, err := io.ReadAll(reader)
	if err != nil {
		return err
	}
	own := map[string]string{}
	for key, value := range metadata {
		if key[0] != '_' {
			own[key] = value
		}
	}
	own["runsc_version"] = "0.0.1"
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	writer, err := statefile.NewWriter(out, nil, own)
	if err != nil {
		return err
	}
	_, err = writer.Write(state)
	return errors.Join(err, writer.Close()) // which closes the file
}
