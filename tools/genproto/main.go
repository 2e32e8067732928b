// Command genproto writes the Go code of the project's .proto files, or checks
// that what is checked in is what it would write:
//
//	go -C tools run ./genproto          # write
//	go -C tools run ./genproto -check   # fail if a file is stale
//
// Both the compiler and the code generator come as Go modules, pinned in
// tools/go.mod; nothing else has to be installed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	check := flag.Bool("check", false, "write nothing, and fail if a generated file is stale")
	flag.Parse()
	if err := run(context.Background(), *check); err != nil {
		fmt.Fprintln(os.Stderr, "genproto:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, check bool) error {
	root, err := findRoot()
	if err != nil {
		return err
	}
	request, err := compile(ctx, filepath.Join(root, "proto"))
	if err != nil {
		return err
	}
	files, err := generate(ctx, root, request)
	if err != nil {
		return err
	}
	if check {
		return compare(root, files)
	}
	return write(root, files)
}

// findRoot goes up from the working directory to the folder that holds the
// project's proto folder.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if info, err := os.Stat(filepath.Join(dir, "proto", "tpuvisor")); err == nil && info.IsDir() {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no proto/tpuvisor above the working directory: run it inside the project")
		}
		dir = parent
	}
}
