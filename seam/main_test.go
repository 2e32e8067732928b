package main

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	hookPath = "gvisor.test/pkg/control/hooks.go"
	newPath  = "gvisor.test/pkg/control/extra.go"

	theirHooks = `package control

var hidden = 1

func preSave() error { return helper() }
func postRestore() {}
func helper() error { return nil }
`
	theirState = `package control

func save(helper int) error { return preSave() }
func restore() { postRestore() }
`
	ourHooks = `package control

type State struct{}

func init() {}

func preSave() error { return note("pre-save") }
func postRestore()   {}

func (s *State) Status() {}

func note(string) error { return nil }
`
)

// tree makes a module with one vendored package, whose hooks.go the seam replaces.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	all := map[string]string{
		"vendor/modules.txt":                       "",
		"vendor/" + hookPath:                       theirHooks,
		"vendor/gvisor.test/pkg/control/state.go":  theirState,
		"vendor/gvisor.test/pkg/control/x_test.go": "not go",
		"seam/_overlay/" + hookPath:                ourHooks,
	}
	maps.Copy(all, files)
	for name, text := range all {
		write(t, root, name, text)
	}
	return root
}

// gone stands for the text of a file that write shall remove.
const gone = "(gone)"

func write(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, filepath.FromSlash(name))
	if text == gone {
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func overlayOf(root string) string { return filepath.Join(root, "build", "overlay.json") }

// recorded is a tree whose seam has been looked at and written down.
func recorded(t *testing.T, files map[string]string) string {
	t.Helper()
	root := tree(t, files)
	if err := run(root, overlayOf(root), true); err != nil {
		t.Fatalf("recording a good tree: %v", err)
	}
	return root
}

func TestOverlayNamesBothFiles(t *testing.T) {
	root := recorded(t, map[string]string{"seam/_overlay/" + newPath: "package control\n\nvar Extra int\n"})
	if err := run(root, overlayOf(root), false); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(overlayOf(root))
	if err != nil {
		t.Fatal(err)
	}
	var overlay struct{ Replace map[string]string }
	if err := json.Unmarshal(data, &overlay); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{hookPath, newPath} {
		got := overlay.Replace[filepath.Join(root, "vendor", path)]
		if want := filepath.Join(root, "seam", "_overlay", path); got != want {
			t.Errorf("%s is replaced by %q, want %q", path, got, want)
		}
	}
	if len(overlay.Replace) != 2 {
		t.Errorf("the overlay replaces %d files, want 2", len(overlay.Replace))
	}
}

func TestOverlayIsLeftAloneWhenRight(t *testing.T) {
	root := recorded(t, nil)
	before, err := os.Stat(overlayOf(root))
	if err != nil {
		t.Fatal(err)
	}
	if err := run(root, overlayOf(root), false); err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(overlayOf(root))
	if err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(before, after) {
		t.Error("an overlay that was right has been written again")
	}
}

// What goes wrong after a seam was recorded: each error names the file and the remedy.
func TestRefused(t *testing.T) {
	tests := []struct {
		name   string
		change map[string]string
		want   []string
	}{
		{"target gone", map[string]string{"vendor/" + hookPath: gone},
			[]string{hookPath, "no such file in this gVisor"}},
		{"target changed", map[string]string{"vendor/" + hookPath: theirHooks + "\n"},
			[]string{hookPath, "has changed", "-record"}},
		{"hook renamed by the caller", map[string]string{"vendor/gvisor.test/pkg/control/state.go": "package control\n\nfunc restore() { postRestore() }\n"},
			[]string{"declares preSave", "never call"}},
		{"name only of a parameter", map[string]string{"vendor/gvisor.test/pkg/control/state.go": "package control\n\nfunc restore(preSave int) int { postRestore(); return preSave }\n"},
			[]string{"declares preSave", "never call"}},
		{"helper used by the package", map[string]string{"vendor/gvisor.test/pkg/control/more.go": "package control\n\nvar _ = helper()\n"},
			[]string{"lacks helper"}},
		{"variable used by the package", map[string]string{"vendor/gvisor.test/pkg/control/more.go": "package control\n\nvar _ = hidden\n"},
			[]string{"lacks hidden"}},
		{"ours does not offer a hook", map[string]string{"seam/_overlay/" + hookPath: "package control\n\nfunc preSave() error { return nil }\n"},
			[]string{"lacks postRestore"}},
		{"ours is of another package", map[string]string{"seam/_overlay/" + hookPath: strings.Replace(ourHooks, "control", "boot", 1)},
			[]string{"package boot"}},
		{"ours does not parse", map[string]string{"seam/_overlay/" + hookPath: "package"},
			[]string{"hooks.go"}},
		{"ours is gone", map[string]string{"seam/_overlay/" + hookPath: gone},
			[]string{"holds no file"}},
		{"ours is not listed", map[string]string{"seam/_overlay/" + newPath: "package control\n"},
			[]string{newPath, "not listed"}},
		{"listed and not there", map[string]string{"seam/targets.txt": newPath + " new\n"},
			[]string{newPath, "no such file", hookPath, "not listed"}},
		{"not a Go file", map[string]string{"seam/_overlay/notes.txt": "x"},
			[]string{"notes.txt", "only regular Go files"}},
		{"not vendored", map[string]string{"vendor/modules.txt": gone},
			[]string{"go mod vendor"}},
		{"list is broken", map[string]string{"seam/targets.txt": hookPath + " abc\n"},
			[]string{"targets.txt:1"}},
		{"listed twice", map[string]string{"seam/targets.txt": newPath + " new\n" + newPath + " new\n"},
			[]string{"targets.txt:2", "twice"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := recorded(t, nil)
			for name, text := range tt.change {
				write(t, root, name, text)
			}
			refused(t, root, tt.want)
		})
	}
}

func TestRefusedForAddedFiles(t *testing.T) {
	const lost = "gvisor.test/pkg/lost/extra.go"
	root := tree(t, map[string]string{"seam/_overlay/" + lost: "package lost\n"})
	if err := run(root, overlayOf(root), true); err == nil {
		t.Fatal("a file for a package that gVisor lacks was recorded")
	}
	refused(t, root, []string{lost, "no package"})

	root = recorded(t, map[string]string{"seam/_overlay/" + newPath: "package control\n"})
	write(t, root, "vendor/"+newPath, "package control\n")
	refused(t, root, []string{newPath, "of its own"})
}

// refused runs the program on a tree that it must refuse, with no overlay left.
func refused(t *testing.T, root string, want []string) {
	t.Helper()
	err := run(root, overlayOf(root), false)
	if err == nil {
		t.Fatal("accepted")
	}
	for _, words := range want {
		if !strings.Contains(err.Error(), words) {
			t.Errorf("error %q lacks %q", err, words)
		}
	}
	if _, err := os.Stat(overlayOf(root)); !os.IsNotExist(err) {
		t.Errorf("an overlay is left for the next build (%v)", err)
	}
}

// A file that the seam adds may be the one that uses a name of the replaced file.
func TestAddedFileCountsAsPackage(t *testing.T) {
	root := recorded(t, map[string]string{"vendor/gvisor.test/pkg/control/state.go": "package control\n\nfunc restore() { postRestore() }\n",
		"seam/_overlay/" + newPath: "package control\n\nfunc Extra() error { return preSave() }\n"})
	if err := run(root, overlayOf(root), false); err != nil {
		t.Error(err)
	}
}

func TestThisModule(t *testing.T) {
	if err := run("..", filepath.Join(t.TempDir(), "overlay.json"), false); err != nil {
		t.Error(err)
	}
}
