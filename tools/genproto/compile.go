package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

// module is the Go module that the generated packages belong to.
const module = "tpuvisor.dev/tpuvisor"

// compile reads all .proto files under dir and returns the request that a protoc
// plugin expects.
func compile(ctx context.Context, dir string) (*pluginpb.CodeGeneratorRequest, error) {
	names, err := protoFiles(dir)
	if err != nil {
		return nil, err
	}
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{dir}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	linked, err := compiler.Compile(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("compile: %w", err)
	}
	request := &pluginpb.CodeGeneratorRequest{
		FileToGenerate: names,
		Parameter:      proto.String("module=" + module),
	}
	seen := map[string]bool{}
	for _, file := range linked {
		request.ProtoFile = appendWithImports(request.ProtoFile, file, seen)
	}
	return request, nil
}

// protoFiles lists the .proto files under dir, by their import paths, sorted.
func protoFiles(dir string) ([]string, error) {
	var names []string
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(path, ".proto") {
			names = append(names, path)
		}
		return err
	})
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("no .proto files in %s", filepath.Base(dir))
	}
	slices.Sort(names)
	return names, err
}

// appendWithImports appends file after everything that it imports, which is the
// order that plugins rely on.
func appendWithImports(list []*descriptorpb.FileDescriptorProto, file protoreflect.FileDescriptor, seen map[string]bool) []*descriptorpb.FileDescriptorProto {
	if seen[file.Path()] {
		return list
	}
	seen[file.Path()] = true
	imports := file.Imports()
	for i := range imports.Len() {
		list = appendWithImports(list, imports.Get(i).FileDescriptor, seen)
	}
	return append(list, protodesc.ToFileDescriptorProto(file))
}
