package operator

import (
	"context"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tpuvisor.dev/tpuvisor/pkg/sentry/control/settings"
	"tpuvisor.dev/tpuvisor/test/sandbox"
	"tpuvisor.dev/tpuvisor/test/tpuhost"
	"tpuvisor.dev/tpuvisor/test/trial"
)

var update = flag.Bool("update", false, "write the parts of docs/operations.md that are made from code")

const operations = "docs/operations.md"

func readOperations(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(projectDir, operations))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A docLine is a command of the document, and the host that it is for.
type docLine struct {
	host, command string
	number        int
}

// docLines are the lines of the blocks that are marked "sh HOST". No other block may
// hold commands.
func docLines(t *testing.T, text string) []docLine {
	t.Helper()
	var lines []docLine
	host := ""
	for i, line := range strings.Split(text, "\n") {
		switch mark, fence := strings.CutPrefix(line, "```"); {
		case fence && host == "":
			where, ok := strings.CutPrefix(mark, "sh ")
			if !ok {
				t.Fatalf("%s:%d: a block that no test runs", operations, i+1)
			}
			host = where
		case fence:
			host = ""
		case host != "":
			lines = append(lines, docLine{host: host, command: line, number: i + 1})
		}
	}
	return lines
}

// A docHost is a machine that the document is tried on.
type docHost struct {
	tpuhost.Host
	r     *rig
	dir   string
	paths *strings.Replacer // the document's, to those there are
}

// TestDocumentedCommands runs every command of the document, in its order. The two
// hosts have the images in common, and no more.
func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	images := filepath.Join(t.TempDir(), "images")
	if err := os.Mkdir(images, 0o755); err != nil {
		t.Fatal(err)
	}
	hosts := map[string]*docHost{"here": newDocHost(t, images, 0), "there": newDocHost(t, images, 7)}
	lines := docLines(t, readOperations(t))
	if len(lines) < 20 {
		t.Fatalf("the document has %d commands", len(lines))
	}
	for _, l := range lines {
		h := hosts[l.host]
		if h == nil {
			t.Fatalf("%s:%d: no host is called %q", operations, l.number, l.host)
		}
		h.try(t, l)
	}
}

func newDocHost(t *testing.T, images string, group int) *docHost {
	t.Helper()
	r := prepareRig(t, trial.Job{Groups: []int{group}})
	h := &docHost{Host: host(t, group), r: r, dir: filepath.Join(r.dir, "work")}
	h.paths = strings.NewReplacer("/bundles/job", filepath.Join(h.dir, "bundle"), "/images", images)
	r.must(os.MkdirAll(filepath.Join(h.dir, "bin"), 0o755))
	for _, folder := range []string{"hbm", "log"} {
		r.must(os.Mkdir(filepath.Join(h.dir, folder), 0o755))
	}
	r.must(sandbox.Workload{
		Program: trainerBinary,
		Args:    []string{"-size", "65536"},
		Env:     []string{"LIBTPU_CHECKPOINTING_ENABLED=true"},
		Mounts:  map[string]string{"/hbm": filepath.Join(h.dir, "hbm"), "/log": filepath.Join(h.dir, "log")},
	}.Bundle(filepath.Join(h.dir, "bundle"), h.Host))
	wrapper := fmt.Sprintf("#!/bin/sh\nexec %s %s \"$@\"\n", runscBinary, strings.Join(r.Runsc.Flags, " "))
	r.must(os.WriteFile(filepath.Join(h.dir, "bin", "runsc"), []byte(wrapper), 0o755))
	t.Cleanup(func() { _, _ = r.Runsc.Do(context.Background(), "delete", "-force", "job") })
	return h
}

// try runs a line as it stands there, but for paths.
func (h *docHost) try(t *testing.T, l docLine) {
	t.Helper()
	before := h.steps()
	cmd := h.Command(t.Context(), "sh", "-e", "-c", h.paths.Replace(l.command))
	cmd.Dir = h.dir
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(h.dir, "bin")+":"+os.Getenv("PATH"))
	// Not a pipe: a sandbox would hold on to it.
	out, err := os.Create(filepath.Join(h.dir, "said"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(out.Name())
		t.Fatalf("%s:%d: %s: %v\n%s", operations, l.number, l.command, err, said)
	}
	if strings.HasPrefix(l.command, "runsc run ") || strings.HasPrefix(l.command, "runsc resume ") || strings.HasPrefix(l.command, "runsc tpu unlock ") {
		h.r.must(sandbox.Poll(t.Context(), "a step of the job", func() (bool, error) { return h.steps() > before, nil }))
	}
}

// steps is how many steps the job has done on this host.
func (h *docHost) steps() int {
	log, _ := os.ReadFile(filepath.Join(h.dir, "log", "rank0.steps"))
	return strings.Count(string(log), "\n")
}

// TestDocumentedSettings compares the document with the table of settings.
func TestDocumentedSettings(t *testing.T) {
	const begin, end = "-update -->\n", "<!-- end of the settings -->"
	text := readOperations(t)
	head, rest, ok := strings.Cut(text, begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("the document has no place for the settings")
	}
	var table strings.Builder
	table.WriteString("\n| annotation | value | default | what it sets |\n|---|---|---|---|\n")
	for _, s := range settings.Table {
		fmt.Fprintf(&table, "| `%s%s` | %s | %s | %s |\n", settings.Prefix, s.Name, s.Allowed, s.Default, s.Help)
	}
	want := head + begin + table.String() + "\n" + end + tail
	if want == text {
		return
	}
	if !*update {
		t.Fatalf("the settings in %s are not those of the code; run this test with -update", operations)
	}
	if err := os.WriteFile(filepath.Join(projectDir, operations), []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// unsaid are errors that no operator ever sees.
var unsaid = []string{"busy", "nothing to read"}

// TestDocumentedErrors wants every error of the code to be in the document's tables.
func TestDocumentedErrors(t *testing.T) {
	text := readOperations(t)
	for _, dir := range []string{
		"pkg/tpuwire", "pkg/sentry/control", "pkg/sentry/savehook", "pkg/sentry/devices/tpuproxy/remap",
		"runsc/client", "runsc/image", "runsc/commands",
	} {
		for _, words := range sentinels(t, filepath.Join(projectDir, dir)) {
			if !slices.Contains(unsaid, words) && !strings.Contains(text, words) {
				t.Errorf("%s: the error %q is not in %s", dir, words, operations)
			}
		}
	}
}

// sentinels are the texts that a package makes errors of by errors.New.
func sentinels(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no source in %s: %v", dir, err)
	}
	var all []string
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 1 {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			lit, isText := call.Args[0].(*ast.BasicLit)
			if ok && isText && sel.Sel.Name == "New" && fmt.Sprint(sel.X) == "errors" {
				words, _ := strconv.Unquote(lit.Value)
				all = append(all, words)
			}
			return true
		})
	}
	return all
}
