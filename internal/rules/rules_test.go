package rules

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const root = "../.."

func TestImports(t *testing.T) {
	packages := slices.Concat(listPackages(t), overlayPackages(t))
	if len(packages) == 0 {
		t.Fatal("no package found")
	}
	for _, line := range Check(packages) {
		t.Error(line)
	}
}

// listPackages asks the go command about the packages of this module.
func listPackages(t *testing.T) []Package {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,TestImports,XTestImports,Deps", "./...")
	cmd.Dir = root
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var packages []Package
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath                               string
			Imports, TestImports, XTestImports, Deps []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		packages = append(packages, Package{
			Path:        local(p.ImportPath),
			Imports:     p.Imports,
			TestImports: slices.Concat(p.TestImports, p.XTestImports),
			Deps:        p.Deps,
		})
	}
}

// overlayPackages reads the files that the go command does not list.
func overlayPackages(t *testing.T) []Package {
	t.Helper()
	var packages []Package
	for _, path := range ownFiles(t, filepath.Join(root, "seam", "_overlay"), ".go") {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		p := Package{Path: rel(t, path)}
		for _, imp := range f.Imports {
			name, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			p.Imports = append(p.Imports, name)
		}
		packages = append(packages, p)
	}
	return packages
}

// Every package says what it is, those with nothing but tests too.
func TestPackageComments(t *testing.T) {
	documented := make(map[string]bool)
	for _, path := range ownFiles(t, root, ".go") {
		if strings.HasPrefix(rel(t, path), "seam/_overlay/") {
			continue // gVisor's packages, which gVisor documents
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			t.Error(err)
			continue
		}
		dir := filepath.Dir(rel(t, path))
		documented[dir] = documented[dir] || strings.TrimSpace(f.Doc.Text()) != ""
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("%s: no file has a package comment", dir)
		}
	}
}

// ownFiles are all files below dir with an extension that are not made or fetched.
func ownFiles(t *testing.T, dir, ext string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{"vendor", "testdata", "build", "bin", ".git"}, d.Name()) {
			return filepath.SkipDir
		}
		if d.Type().IsRegular() && filepath.Ext(path) == ext {
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func rel(t *testing.T, path string) string {
	t.Helper()
	r, err := filepath.Rel(root, path)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.ToSlash(r)
}

// A version that is on its way says so, and one that is out is in the changelog.
func TestVersionHasItsChanges(t *testing.T) {
	version := strings.TrimSpace(read(t, "VERSION"))
	if !regexp.MustCompile(`^\d+\.\d+\.\d+(-dev)?$`).MatchString(version) {
		t.Fatalf("VERSION has %q, want 1.2.3 or 1.2.3-dev", version)
	}
	heading := "## [" + version + "]"
	if strings.HasSuffix(version, "-dev") {
		heading = "## [Unreleased]"
	}
	if !strings.Contains(read(t, "CHANGELOG.md"), "\n"+heading) {
		t.Errorf("VERSION has %s, and CHANGELOG.md has no heading %q", version, heading)
	}
}

// The linters come with a version of gVisor too, whose annotations they have to know.
func TestToolsHaveTheSameGVisor(t *testing.T) {
	requirement := regexp.MustCompile(`gvisor\.dev/gvisor (v\S+)`)
	main, tools := requirement.FindStringSubmatch(read(t, "go.mod")), requirement.FindStringSubmatch(read(t, "tools/go.mod"))
	if main == nil || tools == nil || main[1] != tools[1] {
		t.Errorf("go.mod requires gVisor %q, tools/go.mod %q", main, tools)
	}
}

// Links between the documents lead somewhere.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s]+)`)
	for _, path := range ownFiles(t, root, ".md") {
		text := read(t, rel(t, path))
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			target := match[1]
			if strings.Contains(target, "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), filepath.FromSlash(target))); err != nil {
				t.Errorf("%s links to %s: %v", rel(t, path), target, err)
			}
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestCheck(t *testing.T) {
	ours := func(path string) string { return module + "/" + path }
	tests := []struct {
		name string
		pkg  Package
		want string // words of the one line that is expected; none for an import that is allowed
	}{
		{"own room", Package{Path: "test/e2e", Imports: []string{ours("test/vfio")}}, ""},
		{"below own room", Package{Path: "pkg/guest", Imports: []string{ours("pkg/guest/script")}}, ""},
		{"standard library", Package{Path: "seam", Imports: []string{"go/parser", "os"}}, ""},
		{"wire and gVisor", Package{Path: "pkg/tpuwire", Imports: []string{"gvisor.dev/gvisor/pkg/log"}}, "pkg/tpuwire imports gvisor.dev/gvisor/pkg/log"},
		{"wire and gVisor, far away", Package{Path: "pkg/tpuwire", Deps: []string{"gvisor.dev/gvisor/pkg/log"}}, "pkg/tpuwire reaches gvisor.dev/gvisor/pkg/log"},
		{"guest and gVisor, far away", Package{Path: "pkg/guest/script", Deps: []string{"gvisor.dev/gvisor/pkg/log"}}, "pkg/guest/script reaches"},
		{"pkg and runsc", Package{Path: "pkg/sentry/control", Imports: []string{ours("runsc")}}, "pkg/sentry/control imports runsc"},
		{"pkg's tests and test", Package{Path: "pkg/guest", TestImports: []string{ours("test/vfio")}}, "pkg/guest imports test/vfio"},
		{"control's tests and a kernel", Package{Path: "pkg/sentry/control", TestImports: []string{ours("internal/kerneltest")}}, ""},
		{"control and a kernel for tests", Package{Path: "pkg/sentry/control", Imports: []string{ours("internal/kerneltest")}}, "imports internal/kerneltest"},
		{"control and gVisor's control", Package{Path: "pkg/sentry/control", Imports: []string{gvisorControl}}, "only seam/_overlay"},
		{"test and gVisor's control", Package{Path: "test/e2e", Imports: []string{gvisorControl}}, "only seam/_overlay"},
		{"runsc and gVisor's control", Package{Path: "runsc/cmd", Imports: []string{gvisorControl}}, ""},
		{"overlay and its registry", Package{Path: "seam/_overlay/gvisor.dev/x.go", Imports: []string{ours("pkg/sentry/savehook")}}, ""},
		{"overlay and the wire", Package{Path: "seam/_overlay/gvisor.dev/x.go", Imports: []string{ours("pkg/tpuwire")}}, "imports pkg/tpuwire"},
		{"somebody else's module", Package{Path: "test/e2e", Imports: []string{"github.com/stretchr/testify"}}, "imports github.com/stretchr/testify"},
		{"name that only begins alike", Package{Path: "pkg/tpuwire", Imports: []string{ours("protocol")}}, "imports protocol"},
		{"no room", Package{Path: "pkg/misc"}, "lies in no room"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Check([]Package{tt.pkg})
			switch {
			case tt.want == "" && len(got) > 0:
				t.Errorf("refused: %q", got)
			case tt.want != "" && (len(got) != 1 || !strings.Contains(got[0], tt.want)):
				t.Errorf("got %q, want one line with %q", got, tt.want)
			}
		})
	}
}
