package tpuproxy

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"path/filepath"
	"testing"
)

// TestTypeNames fails when gVisor renames the files that count as TPUs: an open
// TPU would not be seen any more.
func TestTypeNames(t *testing.T) {
	for _, known := range typeNames {
		pkg, err := build.Import(known.pkg, ".", 0)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, name := range pkg.GoFiles {
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(pkg.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				spec, ok := n.(*ast.TypeSpec)
				found = found || ok && spec.Name.Name == known.name
				return true
			})
		}
		if !found {
			t.Errorf("gVisor has no type %s in %s", known.name, known.pkg)
		}
	}
}
