module tpuvisor.dev/tpuvisor/tools

go 1.26.3

require (
	github.com/bufbuild/protocompile v0.14.1
	github.com/nishanths/exhaustive v0.17.1
	github.com/polyfloyd/go-errorlint v1.8.0
	google.golang.org/protobuf v1.36.11
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
	google.golang.org/protobuf/cmd/protoc-gen-go
	honnef.co/go/tools/cmd/staticcheck
)

replace tpuvisor.dev/tpuvisor => ../
