module tpuvisor.dev/tpuvisor/tools

go 1.26.3

require (
	github.com/bufbuild/protocompile v0.14.1
	github.com/nishanths/exhaustive v0.17.1
	github.com/polyfloyd/go-errorlint v1.8.0
	google.golang.org/protobuf v1.36.11
)

require (
	github.com/bazel-contrib/bazel-gazelle/v2 v2.0.0-3 // indirect
	github.com/bazelbuild/bazel-gazelle v0.53.0 // indirect
	github.com/bazelbuild/buildtools v0.0.0-20260904073137-eaa4d125b423 // indirect
	github.com/bmatcuk/doublestar/v4 v4.9.1 // indirect
	github.com/golang/protobuf v1.5.4 // indirect
	github.com/google/safeopen v0.0.0-20260327150837-43626d6f4685 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/tools/go/vcs v0.1.0-deprecated // indirect
)

require (
	github.com/BurntSushi/toml v1.4.1-0.20240526193622-a339e1f7089c // indirect
	golang.org/x/exp/typeparams v0.0.0-20231108232855-2478ac86f678 // indirect
	golang.org/x/mod v0.42.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/tools v0.52.0
	gvisor.dev/gvisor v0.0.0-20260905035102-160fafc42237
	honnef.co/go/tools v0.8.2 // indirect
	tpuvisor.dev/tpuvisor v0.0.0
)

tool (
	github.com/bazelbuild/bazel-gazelle/cmd/gazelle
	github.com/bazelbuild/buildtools/buildifier
	google.golang.org/protobuf/cmd/protoc-gen-go
	honnef.co/go/tools/cmd/staticcheck
)

replace tpuvisor.dev/tpuvisor => ../
