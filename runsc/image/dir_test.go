package image

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func entries(t *testing.T, dir string) []string {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range all {
		got = append(got, e.Name())
	}
	return got
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestDiscard(t *testing.T) {
	root := t.TempDir()
	deep := filepath.Join(root, "a", "b")
	d, err := Claim(deep, "c")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Claim(deep, "c"); err == nil {
		t.Error("two checkpoints have the same directory")
	}
	for _, name := range names {
		touch(t, filepath.Join(deep, name))
	}
	if err := d.Discard(); err != nil {
		t.Fatal(err)
	}
	if got := entries(t, root); len(got) != 0 {
		t.Errorf("left: %q", got)
	}
}

// TestInherit wants another process to do what the one that has made the claim would
// have done, and the lock to last until then.
func TestInherit(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "a")
	d, err := Claim(dir, "c")
	if err != nil {
		t.Fatal(err)
	}
	text, lock := d.Claimed()
	fd, err := unix.Dup(int(lock.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	d.Release() // as the end of the process would
	heir, err := Inherit(text, os.NewFile(uintptr(fd), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Claim(dir, "c"); err == nil {
		t.Error("the lock has not lasted")
	}
	touch(t, filepath.Join(dir, savedNames[0]))
	if err := heir.Discard(); err != nil {
		t.Fatal(err)
	}
	if got := entries(t, root); len(got) != 0 {
		t.Errorf("left: %q", got)
	}
}

// TestAbandon wants the earlier image to be there again for whoever comes next, if the
// one that was to replace it has not come.
func TestAbandon(t *testing.T) {
	dir := t.TempDir()
	state := filepath.Join(dir, savedNames[0])
	touch(t, state)
	d := &Dir{path: dir}
	if err := d.putAside(); err != nil {
		t.Fatal(err)
	}
	d.Abandon()
	if exists(state) {
		t.Fatal("it was not put aside")
	}
	if _, err := Claim(dir, "c"); err == nil {
		t.Error("the directory with the earlier image is taken")
	}
	if got := entries(t, dir); !slices.Equal(got, []string{savedNames[0]}) {
		t.Errorf("left: %q", got)
	}
}

// TestDiscardTwice does what another process has begun to do, and leaves what that has
// put back.
func TestDiscardTwice(t *testing.T) {
	dir := t.TempDir()
	for _, name := range names {
		touch(t, filepath.Join(dir, name))
	}
	d := &Dir{path: dir}
	if err := d.putAside(); err != nil {
		t.Fatal(err)
	}
	touch(t, filepath.Join(dir, names[1])) // of the new image
	if err := os.Rename(filepath.Join(dir, asidePrefix+names[0]), filepath.Join(dir, names[0])); err != nil {
		t.Fatal(err)
	}
	if err := d.Discard(); err != nil {
		t.Fatal(err)
	}
	if got, want := entries(t, dir), slices.Sorted(slices.Values(names)); !slices.Equal(got, want) {
		t.Errorf("left: %q", got)
	}
}

// TestDiscardLeavesOthers wants what is not the attempt's to stay, and what was made
// for it too, if somebody uses it.
func TestDiscardLeavesOthers(t *testing.T) {
	deep := filepath.Join(t.TempDir(), "a")
	d, err := Claim(deep, "c")
	if err != nil {
		t.Fatal(err)
	}
	touch(t, filepath.Join(deep, "note"))
	touch(t, filepath.Join(deep, savedNames[0]))
	if err := d.Discard(); err != nil {
		t.Fatal(err)
	}
	if got := entries(t, deep); !slices.Equal(got, []string{"note"}) {
		t.Errorf("left: %q", got)
	}
}

func TestClaimRefuses(t *testing.T) {
	dir := t.TempDir()
	for _, name := range names {
		touch(t, filepath.Join(dir, name))
		if _, err := Claim(dir, "c"); err == nil {
			t.Errorf("a directory with %s is taken", name)
		}
		if got := entries(t, dir); !slices.Equal(got, []string{name}) {
			t.Errorf("left: %q", got)
		}
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	d, err := Claim(dir, "c")
	if err != nil {
		t.Fatal(err)
	}
	if got := entries(t, dir); len(got) != 0 {
		t.Errorf("a claim leaves %q", got)
	}
	d.Release()
	touch(t, filepath.Join(dir, "file"))
	if _, err := Claim(filepath.Join(dir, "file", "x"), "c"); err == nil {
		t.Error("a file is taken for a directory")
	}
}

// TestRemote leaves an image that is saved elsewhere alone.
func TestRemote(t *testing.T) {
	dir := t.TempDir()
	touch(t, filepath.Join(dir, remoteName))
	touch(t, filepath.Join(dir, savedNames[0]))
	d, err := Claim(dir, "c")
	if err != nil || !d.Remote() {
		t.Fatalf("got %v, %v", d, err)
	}
	if err := d.Discard(); err != nil {
		t.Fatal(err)
	}
	if got := entries(t, dir); len(got) != 2 {
		t.Errorf("left: %q", got)
	}
}

func TestWriteIsAtomic(t *testing.T) {
	dir := t.TempDir()
	d, err := Claim(dir, "c")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Release()
	if err := d.Write(&Report{}); err == nil {
		t.Error("a report about no image is written")
	}
	if got := entries(t, dir); len(got) != 0 {
		t.Errorf("left: %q", got)
	}
	if err := d.writeAtomically([]byte("{}")); err != nil {
		t.Fatal(err)
	}
	if got := entries(t, dir); !slices.Equal(got, []string{ReportName}) {
		t.Errorf("left: %q", got)
	}
	if r, err := Read(t.TempDir()); r != nil || err != nil {
		t.Errorf("without a report: %v, %v", r, err)
	}
	touch(t, filepath.Join(dir, ReportName))
	if _, err := Read(dir); err == nil {
		t.Error("garbage is taken for a report")
	}
}

// TestClaimReplaces wants an earlier image of a container that ran on to make way for
// the next, and to be back if there will be none; and no other image.
func TestClaimReplaces(t *testing.T) {
	for _, tt := range []struct {
		report   string
		replaced bool
	}{
		{`{"container": "c", "leaveRunning": true}`, true},
		{`{"container": "c"}`, false},
		{`{"container": "b", "leaveRunning": true}`, false},
	} {
		dir := t.TempDir()
		touch(t, filepath.Join(dir, savedNames[0]))
		if err := os.WriteFile(filepath.Join(dir, ReportName), []byte(tt.report), 0o644); err != nil {
			t.Fatal(err)
		}
		before := entries(t, dir)
		for _, discard := range []bool{true, false} {
			d, err := Claim(dir, "c")
			if (err == nil) != tt.replaced {
				t.Errorf("Claim() with the report %s: %v", tt.report, err)
			}
			if err != nil {
				continue
			}
			touch(t, filepath.Join(dir, savedNames[1]))
			want := []string{savedNames[1]}
			if discard {
				want = before
				if err := d.Discard(); err != nil {
					t.Error(err)
				}
			}
			d.Release()
			if got := entries(t, dir); !slices.Equal(got, want) {
				t.Errorf("after a claim, discarded: %t, there are %q, want %q", discard, got, want)
			}
		}
	}
}
