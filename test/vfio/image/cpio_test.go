package image

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestArchive compares with a program that reads such archives, and looks at the form
// alone where there is none.
func TestArchive(t *testing.T) {
	from := filepath.Join(t.TempDir(), "from")
	if err := os.WriteFile(from, []byte("copied"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	a := New(&out)
	a.File("bin/deep/program", []byte("12345"))
	a.Copy("init", from)
	a.Dir("bin/deep")
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(out.Bytes(), []byte("070701")); n != 5 || out.Len()%4 != 0 {
		t.Errorf("%d entries in %d bytes", n, out.Len())
	}
	cpio, err := exec.LookPath("cpio")
	if err != nil {
		return
	}
	list := exec.Command(cpio, "-t", "--quiet")
	list.Stdin = &out
	names, err := list.Output()
	if err != nil || strings.Join(strings.Fields(string(names)), " ") != "bin bin/deep bin/deep/program init" {
		t.Errorf("%q, %v", names, err)
	}
}

func TestMissingFile(t *testing.T) {
	a := New(new(bytes.Buffer))
	a.Copy("init", filepath.Join(t.TempDir(), "none"))
	if a.Close() == nil {
		t.Error("no error")
	}
}
