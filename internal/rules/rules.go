// Package rules says which package of this module may import which, and finds the
// imports that break the rules. Its test puts them to the module as it is. It imports
// the standard library alone.
package rules

import (
	"fmt"
	"slices"
	"strings"
)

const (
	module   = "tpuvisor.dev/tpuvisor"
	protobuf = "google.golang.org/protobuf/..."
	sys      = "golang.org/x/sys/..."
	ociSpec  = "github.com/opencontainers/runtime-spec/specs-go"
	gvisor   = "gvisor.dev/gvisor/..."
	// What the sentry is made of, without the host's side, which may change
	// from one gVisor to the next as its commands do.
	gvisorPkg = "gvisor.dev/gvisor/pkg/..."
	// The package that the seam changes. Whoever imports it needs the seam.
	gvisorControl = "gvisor.dev/gvisor/pkg/sentry/control"
)

// Package is what the rules look at of a package.
type Package struct {
	Path        string   // within the module, "pkg/tpuwire"
	Imports     []string // of its files
	TestImports []string // of its tests, too
	Deps        []string // what its files import, and what those import in turn
}

// room is a folder with the packages below it, and what they may import. A pattern is a
// path, or one with /... for all below it too; our own are relative to the module.
// The standard library is open to everyone.
type room struct {
	dir       string
	may       []string
	tests     []string // what its tests may import besides
	neverDeps []string // what must not be reached through any number of others
}

var rooms = []room{
	{dir: "proto", may: []string{protobuf}},
	{dir: "pkg/tpuwire", may: []string{"proto/...", protobuf}, neverDeps: []string{gvisor}},
	{dir: "pkg/guest", may: []string{"pkg/tpuwire", "proto/...", protobuf, sys}, neverDeps: []string{gvisor}},
	{dir: "pkg/sentry/savehook", may: []string{gvisorPkg}, tests: kernelTests},
	{dir: "pkg/sentry/devices/tpuproxy", may: []string{gvisorPkg, sys, ociSpec}, tests: kernelTests},
	// Pure logic, shared with the commands.
	{dir: "pkg/sentry/devices/tpuproxy/remap", may: []string{sys, ociSpec}, neverDeps: []string{gvisor}},
	{
		dir: "pkg/sentry/control",
		may: []string{
			"proto/...", "pkg/tpuwire", "pkg/sentry/savehook", "pkg/sentry/devices/tpuproxy",
			gvisorPkg, protobuf, sys, ociSpec,
		},
		tests: kernelTests,
	},
	// Shared with the commands, which know nothing of the kernel.
	{dir: "pkg/sentry/control/api"},
	{dir: "pkg/sentry/control/settings"},
	{
		dir: "runsc",
		may: []string{
			"proto/...", "pkg/...", gvisor, protobuf, sys, ociSpec, "github.com/google/subcommands",
		},
	},
	{
		dir: "shim",
		may: []string{"gvisor.dev/gvisor/pkg/shim/...", "gvisor.dev/gvisor/runsc/specutils", "github.com/containerd/...", protobuf, ociSpec},
	},
	{dir: "seam/_overlay", may: []string{"pkg/sentry/...", gvisor, sys, ociSpec}},
	{dir: "seam/upstream", may: []string{"gvisor.dev/gvisor/runsc/..."}},
	{dir: "seam"},
	{dir: "internal/kerneltest", may: []string{gvisorPkg, sys}},
	{dir: "internal/rules"},
	{
		dir: "test",
		may: []string{"proto/...", "pkg/...", "test/...", "internal/...", gvisor, protobuf, sys, ociSpec},
	},
}

var kernelTests = []string{"internal/kerneltest", "pkg/guest", "pkg/tpuwire", "proto/...", protobuf, sys}

// linksControl are the folders that may import the package which the seam changes. The
// benchmarks run it with the seam and without.
var linksControl = []string{"seam/_overlay", "runsc", "test/bench"}

// Check has a line for every import that breaks a rule.
func Check(packages []Package) []string {
	var broken []string
	for _, p := range packages {
		r, ok := roomOf(p.Path)
		if !ok {
			broken = append(broken, fmt.Sprintf("%s lies in no room: say in internal/rules and docs/architecture.md what it may import", p.Path))
			continue
		}
		broken = append(broken, r.check(p)...)
	}
	return broken
}

// roomOf finds the innermost room of a package.
func roomOf(path string) (room, bool) {
	var found room
	for _, r := range rooms {
		if below(path, r.dir) && len(r.dir) > len(found.dir) {
			found = r
		}
	}
	return found, found.dir != ""
}

func (r room) check(p Package) []string {
	var broken []string
	tests := slices.Concat(r.may, r.tests)
	for _, path := range p.Imports {
		broken = append(broken, r.checkImport(p, path, r.may)...)
	}
	for _, path := range p.TestImports {
		for _, line := range r.checkImport(p, path, tests) {
			broken = append(broken, line+" (in a test)")
		}
	}
	for _, path := range p.Deps {
		if matchesAny(r.neverDeps, path) {
			broken = append(broken, fmt.Sprintf("%s reaches %s, if only through others: find how with `go mod why %[2]s`", p.Path, path))
		}
	}
	return broken
}

func (r room) checkImport(p Package, path string, may []string) []string {
	switch {
	case standard(path):
		return nil
	case path == gvisorControl && !slices.ContainsFunc(linksControl, func(dir string) bool { return below(p.Path, dir) }):
		return []string{fmt.Sprintf("%s imports %s: only %s may, since the seam changes it", p.Path, path, strings.Join(linksControl, ", "))}
	case below(local(path), r.dir) && local(path) != path, matchesAny(may, path):
		return nil
	}
	return []string{fmt.Sprintf("%s imports %s: packages of %s may import the standard library%s", p.Path, local(path), r.dir, list(may))}
}

func list(may []string) string {
	if len(may) == 0 {
		return " alone"
	}
	return ", " + strings.Join(may, ", ")
}

// local cuts the module off a path of ours.
func local(path string) string { return strings.TrimPrefix(path, module+"/") }

// standard goes by the rule of the go command: other modules have a dot in front.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func matchesAny(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		dir, deep := strings.CutSuffix(pattern, "/...")
		if first, _, _ := strings.Cut(dir, "/"); !strings.Contains(first, ".") {
			dir = module + "/" + dir
		}
		return path == dir || deep && below(path, dir)
	})
}

func below(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir+"/")
}
