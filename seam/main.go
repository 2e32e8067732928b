// Program seam prepares the one place where tpuvisor enters gVisor: it writes an
// overlay for the go command that puts each file under seam/_overlay in place of
// the vendored gVisor file of the same path.
//
// It refuses to do so when gVisor has moved under our feet: when a file that we
// stand in for is gone, or is not the one that somebody looked at last
// (seam/targets.txt has its hash), or when the rest of its package uses other
// functions of it than ours offers. So a gVisor bump fails the build and not the
// user. It imports the standard library alone.
//
// Run it from the module's root, after go mod vendor:
//
//	go run ./seam            write build/overlay.json
//	go run ./seam -record    accept the vendored files as they are now
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	record := flag.Bool("record", false, "write the hashes of the vendored files to seam/targets.txt, after a human has compared them with ours")
	out := flag.String("o", filepath.Join("build", "overlay.json"), "`file` to write the overlay to")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "seam: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	if err := run(".", *out, *record); err != nil {
		fmt.Fprintf(os.Stderr, "seam: %v\n", err)
		os.Exit(1)
	}
}

// run checks the seam of the module at root and writes its overlay to out.
// Nothing is written when a check fails, and an overlay of an earlier run is
// removed, so that no build can go on with it.
func run(root, out string, record bool) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	s, err := load(root)
	if err == nil && record {
		err = s.record()
	}
	if err == nil {
		err = s.check()
	}
	if err != nil {
		if rerr := os.Remove(out); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
		return err
	}
	return writeOverlay(out, s)
}

// writeOverlay leaves a file that is right already untouched. Its paths are
// absolute: the go command takes relative ones from wherever it is started.
func writeOverlay(out string, s *seam) error {
	replace := make(map[string]string, len(s.files))
	for _, path := range s.files {
		replace[s.vendored(path)] = s.ours(path)
	}
	data, err := json.MarshalIndent(map[string]any{"Replace": replace}, "", "\t")
	if err != nil {
		return err
	}
	data = append(data, '\n')
	if old, err := os.ReadFile(out); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	// By rename: a build that runs beside us sees the old file or the new one.
	tmp := out + ".new"
	if err := os.WriteFile(tmp, data, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, out)
}
