package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
)

// ReportName is the file that is written last, by a checkpoint that succeeded.
const ReportName = "tpu.json"

// markName is the file by which Podman knows an image of CRIU's. That this is none,
// it says itself.
const markName = "inventory.img"

const mark = "This is no image of CRIU's, but one of gVisor's, which runsc restores. Podman restores none without a file of this name.\n"

// remoteName is the file by which gVisor knows that an image is saved elsewhere.
const remoteName = "gcs_opts.json"

// savedNames are the files that gVisor saves.
var savedNames = []string{
	checkpointfiles.StateFileName,
	checkpointfiles.PagesMetadataFileName,
	checkpointfiles.PagesFileName,
}

var names = append(slices.Clone(savedNames), ReportName, markName)

// A Dir is an image directory that one checkpoint writes to.
type Dir struct {
	path   string
	lock   *os.File
	made   []string // directories that were not there before, the outermost first
	aside  []string // files of an earlier image, which are renamed
	remote bool
}

// asidePrefix begins the names of files that are put aside.
const asidePrefix = ".tpuvisor-old-"

// Claim makes the directory if it is not there, and keeps other checkpoints out of
// it. It refuses one that holds an image, or cannot be written to. The claim ends
// with Release, or with the process.
//
// An earlier image of the same container is replaced if the container ran on after
// it, since Podman has one directory per container: the image is put aside, and is
// back after a Discard.
func Claim(path, container string) (*Dir, error) {
	d := &Dir{path: path}
	if err := d.claim(container); err != nil {
		d.Release()
		d.removeMade()
		return nil, err
	}
	return d, nil
}

func (d *Dir) claim(container string) (err error) {
	if d.made, err = makeAll(d.path); err != nil {
		return fmt.Errorf("making the image directory: %w", err)
	}
	if d.lock, err = os.Open(d.path); err != nil {
		return fmt.Errorf("opening the image directory: %w", err)
	}
	err = unix.Flock(int(d.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("another checkpoint is being written to %s", d.path)
	}
	// A file system without locks has none to respect.
	if exists(filepath.Join(d.path, remoteName)) {
		d.remote = true
		return nil
	}
	if err := d.recover(); err != nil {
		return fmt.Errorf("putting the earlier image back: %w", err)
	}
	if there := d.present(); len(there) > 0 && !d.outdated(container) {
		return fmt.Errorf("%s holds an image already (%s): give another directory, or remove these files", d.path, strings.Join(there, ", "))
	}
	probe, err := os.CreateTemp(d.path, ".tpuvisor-*")
	if err != nil {
		return fmt.Errorf("the image directory cannot be written to: %w", err)
	}
	if err := errors.Join(probe.Close(), os.Remove(probe.Name())); err != nil {
		return err
	}
	return d.putAside()
}

// A claim is what another process has to know to end one.
type claim struct {
	Path  string
	Made  []string
	Aside []string
}

// Claimed is a text of which Inherit makes the same claim in a process that is given
// the lock.
func (d *Dir) Claimed() (text string, lock *os.File) {
	b, err := json.Marshal(claim{d.path, d.made, d.aside})
	if err != nil {
		panic(err) // there are strings in it only
	}
	return string(b), d.lock
}

// Inherit takes a claim over from a process that has ended.
func Inherit(text string, lock *os.File) (*Dir, error) {
	var c claim
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return nil, err
	}
	return &Dir{path: c.Path, made: c.Made, aside: c.Aside, lock: lock}, nil
}

// outdated reports whether the image in the directory is of the container, which ran
// on after it was saved.
func (d *Dir) outdated(container string) bool {
	r, err := Read(d.path)
	return err == nil && r != nil && r.LeaveRunning && r.Container == container
}

func (d *Dir) putAside() error {
	for _, name := range d.present() {
		if err := os.Rename(filepath.Join(d.path, name), filepath.Join(d.path, asidePrefix+name)); err != nil {
			return errors.Join(fmt.Errorf("putting the earlier image aside: %w", err), d.putBack())
		}
		d.aside = append(d.aside, name)
	}
	return nil
}

// recover puts back what a checkpoint has put aside that was abandoned, if it has left
// nothing else.
func (d *Dir) recover() error {
	if len(d.present()) > 0 {
		return nil
	}
	for _, name := range names {
		if exists(filepath.Join(d.path, asidePrefix+name)) {
			d.aside = append(d.aside, name)
		}
	}
	return d.putBack()
}

func (d *Dir) putBack() error {
	var errs []error
	for _, name := range d.aside {
		errs = append(errs, os.Rename(filepath.Join(d.path, asidePrefix+name), filepath.Join(d.path, name)))
	}
	d.aside = nil
	return errors.Join(errs...)
}

// makeAll is os.MkdirAll that tells what it has made.
func makeAll(path string) ([]string, error) {
	var missing []string
	for p := filepath.Clean(path); !exists(p); p = filepath.Dir(p) {
		missing = append(missing, p)
	}
	slices.Reverse(missing)
	for i, p := range missing {
		if err := os.Mkdir(p, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return missing[:i], err
		}
	}
	return missing, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// Remote reports whether the files are saved elsewhere.
func (d *Dir) Remote() bool { return d.remote }

// present lists the files of an image that are in the directory.
func (d *Dir) present() []string {
	var there []string
	for _, name := range names {
		if exists(filepath.Join(d.path, name)) {
			there = append(there, name)
		}
	}
	return there
}

// Discard removes what the checkpoint has left in the directory, and the directory
// if it was made for it. What was there before is there again.
func (d *Dir) Discard() error {
	defer d.Release()
	if d.remote {
		return nil
	}
	var errs []error
	var restored []string
	// What is back already has been put back by a process that was killed meanwhile.
	d.aside = slices.DeleteFunc(d.aside, func(name string) bool {
		back := !exists(filepath.Join(d.path, asidePrefix+name))
		if back {
			restored = append(restored, name)
		}
		return back
	})
	for _, name := range d.present() {
		if !slices.Contains(restored, name) {
			errs = append(errs, os.Remove(filepath.Join(d.path, name)))
		}
	}
	errs = append(errs, d.putBack())
	d.removeMade()
	return errors.Join(errs...)
}

// Mark makes engines that look for an image of CRIU's find this one.
func (d *Dir) Mark() error {
	return os.WriteFile(filepath.Join(d.path, markName), []byte(mark), 0o644)
}

// removeMade leaves a directory that somebody has put something into.
func (d *Dir) removeMade() {
	for _, path := range slices.Backward(d.made) {
		if os.Remove(path) != nil {
			return
		}
	}
}

// Abandon ends the claim of a checkpoint of which nobody knows whether it has
// succeeded. What was put aside stays there.
func (d *Dir) Abandon() {
	d.aside = nil
	d.Release()
}

// Release ends the claim, and removes what was put aside.
func (d *Dir) Release() {
	for _, name := range d.aside {
		_ = os.Remove(filepath.Join(d.path, asidePrefix+name)) // at worst, it is left
	}
	d.aside = nil
	if d.lock != nil {
		_ = d.lock.Close()
		d.lock = nil
	}
}
