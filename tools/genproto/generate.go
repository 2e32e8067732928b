package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/pluginpb"
)

// again is what a person runs when a file is stale.
const again = "go -C tools run ./genproto"

type generated = pluginpb.CodeGeneratorResponse_File

// generate hands request to the pinned protoc-gen-go and returns the files that it
// wants written, with names relative to root.
func generate(ctx context.Context, root string, request *pluginpb.CodeGeneratorRequest) ([]*generated, error) {
	in, err := proto.Marshal(request)
	if err != nil {
		return nil, err
	}
	plugin := exec.CommandContext(ctx, "go", "tool", "protoc-gen-go")
	plugin.Dir = filepath.Join(root, "tools")
	plugin.Stdin = bytes.NewReader(in)
	plugin.Stderr = os.Stderr
	out, err := plugin.Output()
	if err != nil {
		return nil, fmt.Errorf("protoc-gen-go: %w", err)
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(out, &response); err != nil {
		return nil, fmt.Errorf("protoc-gen-go's answer: %w", err)
	}
	if response.Error != nil {
		return nil, fmt.Errorf("protoc-gen-go: %s", response.GetError())
	}
	return response.GetFile(), nil
}

func write(root string, files []*generated) error {
	for _, file := range files {
		path := filepath.Join(root, filepath.FromSlash(file.GetName()))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(file.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// compare fails if a file in the tree is missing, differs from what would be
// written, or would not be written at all any more.
func compare(root string, files []*generated) error {
	var stale []error
	wanted := map[string]bool{}
	for _, file := range files {
		path := filepath.Join(root, filepath.FromSlash(file.GetName()))
		wanted[path] = true
		if have, err := os.ReadFile(path); err != nil || string(have) != file.GetContent() {
			stale = append(stale, fmt.Errorf("%s is stale: run %s", file.GetName(), again))
		}
	}
	left, err := filepath.Glob(filepath.Join(root, "proto", "*", "*.pb.go"))
	if err != nil {
		return err
	}
	for _, path := range left {
		if !wanted[path] {
			stale = append(stale, fmt.Errorf("proto/%s/%s belongs to no .proto file: remove it", filepath.Base(filepath.Dir(path)), filepath.Base(path)))
		}
	}
	return errors.Join(stale...)
}
