package chrootsys

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestSysfs(t *testing.T) {
	dir := t.TempDir()
	device := filepath.Join(dir, "devices", "0000:00:04.0")
	group := filepath.Join(dir, "group")
	for _, d := range []string{device, group} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(device, "vendor"), []byte("0x1ae0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(device, filepath.Join(group, "0000:00:04.0")); err != nil {
		t.Fatal(err)
	}
	names, err := Sysfs{}.ReadDir(group)
	if err != nil || !slices.Equal(names, []string{"0000:00:04.0"}) {
		t.Errorf("names %q, %v", names, err)
	}
	text, err := Sysfs{}.ReadFile(filepath.Join(group, names[0], "vendor"))
	if err != nil || string(text) != "0x1ae0\n" {
		t.Errorf("text %q, %v", text, err)
	}
	if _, err := (Sysfs{}).ReadDir(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
	if _, err := (Sysfs{}).ReadFile(filepath.Join(group, names[0])); err == nil {
		t.Error("a link is followed at the end of a path")
	}
}
