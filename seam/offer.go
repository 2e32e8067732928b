package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
)

// checkOffer compares what the rest of the package uses of gVisor's file with what
// ours offers. The compiler would find a name that is missing; it would not find
// one that nobody calls any more, and then a checkpoint would pass us by.
func (s *seam) checkOffer(path string) error {
	theirs, err := parseFile(s.vendored(path))
	if err != nil {
		return err
	}
	ours, err := parseFile(s.ours(path))
	if err != nil {
		return err
	}
	if theirs.Name.Name != ours.Name.Name {
		return fmt.Errorf("seam/_overlay/%s: is of package %s, gVisor's file of package %s", path, ours.Name.Name, theirs.Name.Name)
	}
	used, err := s.usedBeside(path)
	if err != nil {
		return err
	}
	offered, own := names(declarations(ours)), mentioned(ours)
	var errs []error
	for _, name := range names(declarations(theirs)) {
		if used[name] && !slices.Contains(offered, name) {
			errs = append(errs, fmt.Errorf("seam/_overlay/%s: lacks %s, which the rest of gVisor's package uses", path, name))
		}
	}
	for _, name := range offered {
		if !ast.IsExported(name) && !used[name] && !own[name] {
			errs = append(errs, fmt.Errorf("seam/_overlay/%s: declares %s, which gVisor's package does not use (any more): gVisor would never call us there", path, name))
		}
	}
	return errors.Join(errs...)
}

func parseFile(path string) (*ast.File, error) {
	return parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
}

// usedBeside has the names that the other files of a vendored package, and those
// that the seam puts beside it, take from elsewhere: from the package or the language.
func (s *seam) usedBeside(path string) (map[string]bool, error) {
	siblings, err := s.siblings(path)
	if err != nil {
		return nil, err
	}
	used := make(map[string]bool)
	for _, name := range siblings {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			return nil, err
		}
		for _, id := range f.Unresolved {
			used[id.Name] = true
		}
	}
	return used, nil
}

// siblings are the files that are compiled with the one at path, each in the
// version that is compiled: ours, where the seam has one.
func (s *seam) siblings(path string) ([]string, error) {
	theirs, err := filepath.Glob(filepath.Join(filepath.Dir(s.vendored(path)), "*.go"))
	if err != nil {
		return nil, err
	}
	var files []string
	for _, name := range theirs {
		rel, err := filepath.Rel(s.vendored(""), name)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(s.files, filepath.ToSlash(rel)) {
			files = append(files, name)
		}
	}
	dir := pathDir(path)
	for _, other := range s.files {
		if other != path && pathDir(other) == dir {
			files = append(files, s.ours(other))
		}
	}
	return slices.DeleteFunc(files, func(name string) bool { return strings.HasSuffix(name, "_test.go") }), nil
}

func pathDir(path string) string { return path[:strings.LastIndexByte(path, '/')+1] }

// declarations are the package-level names of a file, where they are declared.
// Methods are not among them: the compiler checks those with their types, and the
// control socket finds its own.
func declarations(f *ast.File) []*ast.Ident {
	var ids []*ast.Ident
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil && d.Name.Name != "init" {
				ids = append(ids, d.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				ids = append(ids, specNames(spec)...)
			}
		}
	}
	return slices.DeleteFunc(ids, func(id *ast.Ident) bool { return id.Name == "_" })
}

func specNames(spec ast.Spec) []*ast.Ident {
	switch sp := spec.(type) {
	case *ast.TypeSpec:
		return []*ast.Ident{sp.Name}
	case *ast.ValueSpec:
		return sp.Names
	}
	return nil
}

// mentioned has every name that a file uses somewhere else than where it declares it.
func mentioned(f *ast.File) map[string]bool {
	declares := declarations(f)
	names := make(map[string]bool)
	ast.Inspect(f, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && !slices.Contains(declares, id) {
			names[id.Name] = true
		}
		return true
	})
	return names
}

func names(ids []*ast.Ident) []string {
	var names []string
	for _, id := range ids {
		names = append(names, id.Name)
	}
	return names
}
