package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// added stands in targets.txt for the hash of a file that gVisor does not have.
const added = "new"

const targetsHeader = `# The files of gVisor that the seam stands in for: a path below vendor/, and the
# SHA-256 of gVisor's file as it was when somebody last compared it with ours;
# "new" for a file that we add to one of gVisor's packages.
# Written by: go run ./seam -record
`

// seam is what lies under seam/ of one module.
type seam struct {
	root    string
	files   []string          // slash-separated paths below seam/_overlay, sorted
	targets map[string]string // the same paths, as targets.txt has them, with their hashes
}

func (s *seam) vendored(path string) string {
	return filepath.Join(s.root, "vendor", filepath.FromSlash(path))
}

func (s *seam) ours(path string) string {
	return filepath.Join(s.root, "seam", "_overlay", filepath.FromSlash(path))
}

func (s *seam) targetsFile() string {
	return filepath.Join(s.root, "seam", "targets.txt")
}

// load reads the list of targets and the names of the overlay's files.
func load(root string) (*seam, error) {
	s := &seam{root: root}
	if _, err := os.Stat(s.vendored("modules.txt")); err != nil {
		return nil, fmt.Errorf("%w: run `go mod vendor` (or `make vendor`) first", err)
	}
	dir := s.ours("")
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if filepath.Ext(rel) != ".go" || !d.Type().IsRegular() {
			return fmt.Errorf("%s: only regular Go files belong under seam/_overlay", path)
		}
		s.files = append(s.files, filepath.ToSlash(rel))
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(s.files) == 0 {
		return nil, fmt.Errorf("%s: holds no file, so there is no seam to lay", dir)
	}
	data, err := os.ReadFile(s.targetsFile())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	s.targets, err = parseTargets(data)
	return s, err
}

func parseTargets(data []byte) (map[string]string, error) {
	targets := make(map[string]string)
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		fields := strings.Fields(text)
		if len(fields) != 2 || !validHash(fields[1]) {
			return nil, fmt.Errorf("seam/targets.txt:%d: want a path and a SHA-256 or %q, have %q", n, added, text)
		}
		if _, twice := targets[fields[0]]; twice {
			return nil, fmt.Errorf("seam/targets.txt:%d: %s is listed twice", n, fields[0])
		}
		targets[fields[0]] = fields[1]
	}
	return targets, lines.Err()
}

func validHash(s string) bool {
	if s == added {
		return true
	}
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == sha256.Size
}

// hash is that of the vendored file, or added when there is no such file.
func (s *seam) hash(path string) (string, error) {
	data, err := os.ReadFile(s.vendored(path))
	if errors.Is(err, fs.ErrNotExist) {
		return added, nil
	}
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// record takes the vendored files as they are now for the ones to stand in for.
func (s *seam) record() error {
	s.targets = make(map[string]string, len(s.files))
	for _, path := range s.files {
		sum, err := s.hash(path)
		if err != nil {
			return err
		}
		s.targets[path] = sum
	}
	var b strings.Builder
	b.WriteString(targetsHeader)
	for _, path := range slices.Sorted(maps.Keys(s.targets)) {
		fmt.Fprintf(&b, "%s %s\n", path, s.targets[path])
	}
	return os.WriteFile(s.targetsFile(), []byte(b.String()), 0o644)
}

// check reports everything that is wrong with the seam, not only the first thing.
func (s *seam) check() error {
	var errs []error
	for _, path := range slices.Sorted(maps.Keys(s.targets)) {
		if !slices.Contains(s.files, path) {
			errs = append(errs, fmt.Errorf("seam/targets.txt lists %s, and seam/_overlay has no such file: restore it, or run `go run ./seam -record`", path))
		}
	}
	for _, path := range s.files {
		if err := s.checkFile(path); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (s *seam) checkFile(path string) error {
	want, listed := s.targets[path]
	if !listed {
		return fmt.Errorf("seam/_overlay/%s is not listed in seam/targets.txt: run `go run ./seam -record`", path)
	}
	have, err := s.hash(path)
	if err != nil {
		return err
	}
	switch {
	case have == want && want == added:
		return s.checkAdded(path)
	case have == want:
		return s.checkOffer(path)
	case want == added:
		return fmt.Errorf("vendor/%s: gVisor now has a file of its own where the seam adds one: rename ours", path)
	case have == added:
		return fmt.Errorf("vendor/%s: no such file in this gVisor, so what the seam stands in for has moved: find the new place, move seam/_overlay/%[1]s there, and run `go run ./seam -record`", path)
	}
	return fmt.Errorf("vendor/%s: has changed since it was last compared with seam/_overlay/%[1]s (sha256 %s, recorded %s): compare the two, then run `go run ./seam -record`", path, have, want)
}

// checkAdded wants the package that a new file joins to be there.
func (s *seam) checkAdded(path string) error {
	siblings, err := filepath.Glob(filepath.Join(filepath.Dir(s.vendored(path)), "*.go"))
	if err != nil {
		return err
	}
	if len(siblings) == 0 {
		return fmt.Errorf("vendor/%s: gVisor has no package at the place where the seam adds this file", path)
	}
	return nil
}
