# Everything is built and tested from here, and from here alone: the seam (seam/) has
# to be laid before anything that links gVisor's control package is built.

GO ?= go
BIN := bin
OVERLAY := $(CURDIR)/build/overlay.json

# A checkpoint can be restored by a runsc of the same version string only, so it is made
# of what decides about the image, and of nothing that differs between two builds of one
# source: our version, and gVisor's.
GVISOR_VERSION := $(shell sed -n 's/^\(require\)\{0,1\}[[:space:]]*gvisor\.dev\/gvisor v[0-9.]*-//p' go.mod)
VERSION := $(shell cat VERSION)+gvisor.$(GVISOR_VERSION)

# A sandbox starts in a chroot without a loader, so runsc has to be static. Tests are
# built the same way: what is compiled for one is there for the other.
export CGO_ENABLED := 0
BUILD_FLAGS := -trimpath -buildvcs=false
# For tests that ask go/build: -trimpath leaves them without it.
export GOROOT := $(shell $(GO) env GOROOT)
LDFLAGS := -X gvisor.dev/gvisor/runsc/version.version=$(VERSION)
SEAM := -overlay=$(OVERLAY)

# Tests that run the built runsc. Those that need more of the machine than root have a
# build tag and a target of their own; vet and lint look at them too.
SYSTEM_TESTS := ./test/e2e/... ./test/operator/... ./test/devices/...
TAGS := vfio,engines,faults
UNIT_TESTS = $(filter-out $(shell $(GO) list $(SYSTEM_TESTS)),\
	$(shell $(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...))
TESTFLAGS ?=

# What the system tests and the demo run.
export TPUVISOR_RUNSC := $(CURDIR)/$(BIN)/runsc

.DEFAULT_GOAL := help

##@ For everyone

.PHONY: help
help: ## print this list
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@/ { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: runsc ## checkpoint and restore a workload on a simulated TPU, and print what happens
	$(GO) run $(BUILD_FLAGS) ./test/cmd/demo

.PHONY: test
test: unit e2e ## every test there is for a machine without a TPU; needs root

##@ Building

.PHONY: runsc
runsc: seam ## bin/runsc
	$(GO) build $(BUILD_FLAGS) $(SEAM) -ldflags '$(LDFLAGS)' -o $(BIN)/runsc ./runsc

.PHONY: shim
shim: vendor ## bin/containerd-shim-runsc-v1: gVisor's shim for containerd, with checkpoints
	$(GO) build $(BUILD_FLAGS) -o $(BIN)/containerd-shim-runsc-v1 ./shim

.PHONY: upstream
upstream: vendor ## bin/runsc-upstream: gVisor's own, from the same module, without the seam
	$(GO) build $(BUILD_FLAGS) -ldflags '$(LDFLAGS)' -o $(BIN)/runsc-upstream ./seam/upstream

.PHONY: seam
seam: vendor ## build/overlay.json, which puts our files in place of gVisor's
	@$(GO) run ./seam

.PHONY: vendor
vendor: vendor/modules.txt ## the dependencies' source, anew when go.mod or an import has changed
	@$(GO) list -deps -test ./... >/dev/null 2>&1 || $(GO) mod vendor || true

vendor/modules.txt: go.mod go.sum
	$(GO) mod vendor

##@ Testing

.PHONY: unit
unit: seam ## every test that runs in a plain `go test`
	$(GO) test $(BUILD_FLAGS) $(SEAM) $(TESTFLAGS) $(UNIT_TESTS)

.PHONY: e2e
e2e: runsc ## the built runsc with real sandboxes and images; needs root
	$(GO) test $(BUILD_FLAGS) -count=1 $(TESTFLAGS) $(SYSTEM_TESTS)

# Once more, but for what only measures. The fault matrix is crossed with less there.
RACE_TESTS = $(filter-out %/test/bench/presave,$(UNIT_TESTS))

.PHONY: test-race
test-race: seam ## the unit tests with the race detector; needs a C compiler
	CGO_ENABLED=1 $(GO) test -race $(BUILD_FLAGS) $(SEAM) $(TESTFLAGS) $(RACE_TESTS)

.PHONY: test-lockdep
test-lockdep: seam ## the unit tests with gVisor's check of the order of locks
	$(GO) test -tags lockdep $(BUILD_FLAGS) $(SEAM) $(TESTFLAGS) $(RACE_TESTS)

# Targets for machines with more than Go, make and root, or with more time, go here:
# one block each, with its ## line.

# RUNSC may be another runsc: bin/runsc-upstream, for the difference.
.PHONY: faults
faults: $(if $(RUNSC),,runsc) ## every fault, in process and with the built runsc, or with RUNSC=… alone, and a table of results; needs root
	$(if $(RUNSC),,TPUVISOR_FAULTS=$(CURDIR)/build/faults.json $(GO) test $(BUILD_FLAGS) $(SEAM) -count=1 ./test/faults/inprocess)
	$(if $(RUNSC),,TPUVISOR_FAULTS=$(CURDIR)/build/faults.json) TPUVISOR_RUNSC=$(abspath $(or $(RUNSC),$(BIN)/runsc)) \
		$(GO) -C test/faults/sandboxed test $(BUILD_FLAGS) -tags faults -count=1 -timeout 60m $(TESTFLAGS)

# CYCLES and SEED make it another one, or the same one again.
CYCLES ?= 200
SEED ?= 0

.PHONY: soak
soak: runsc ## 200 checkpoints of one job, with random faults among them; needs root
	TPUVISOR_RUNSC=$(abspath $(BIN)/runsc) $(GO) -C test/faults/sandboxed test $(BUILD_FLAGS) -tags faults \
		-count=1 -timeout 60m -run '^TestSoak$$' $(TESTFLAGS) -args -cycles $(CYCLES) -seed $(SEED)

# By count: a time makes go test fail now and then, when it ends in the middle of an input.
FUZZCOUNT ?= 50000x

.PHONY: fuzz-short
fuzz-short: ## every fuzz target for some seconds, or FUZZCOUNT=…
	@$(GO) list -f '{{$$p := .ImportPath}}{{$$d := .Dir}}{{range .TestGoFiles}}{{$$p}} {{$$d}}/{{.}}{{"\n"}}{{end}}' ./pkg/... | \
		while read -r package file; do \
			for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(f .*/\1/p' $$file); do \
				$(GO) test $(BUILD_FLAGS) $(SEAM) -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZCOUNT) $$package </dev/null || exit 1; \
			done; \
		done

.PHONY: test-engines
test-engines: runsc shim crictl ## Docker, containerd and Podman with the built runsc; needs root and their packages
	$(GO) test $(BUILD_FLAGS) -tags engines -count=1 -timeout 20m $(TESTFLAGS) ./test/engines/...
	$(GO) -C test/engines/kubernetes test $(BUILD_FLAGS) $(TESTFLAGS) ./...

.PHONY: crictl
crictl:
	@$(GO) -C test/engines/kubernetes build $(BUILD_FLAGS) -o ../../../$(BIN)/crictl sigs.k8s.io/cri-tools/cmd/crictl

.PHONY: test-vfio
test-vfio: runsc ## the built runsc on real VFIO, in an emulated machine that is downloaded; needs root
	$(GO) test $(BUILD_FLAGS) -tags vfio -count=1 -timeout 30m -v $(TESTFLAGS) ./test/vfio

# Both runsc are run in turn, pair by pair. BENCHFLAGS may name rows, and a number of
# pairs; docs/performance.md has more.
BENCHFLAGS ?=

.PHONY: bench
bench: bench-build ## measure ours against upstream, and write docs/performance.md and its plots; needs root
	build/bench/bench -docs docs $(BENCHFLAGS)

.PHONY: bench-short
bench-short: bench-build ## see whether every measurement works, with small sizes; needs root
	build/bench/bench -short

.PHONY: bench-build
bench-build: runsc upstream
	@mkdir -p build/bench
	@$(GO) build $(BUILD_FLAGS) -o build/bench/ ./test/bench ./test/bench/guest
	@$(GO) test -c $(BUILD_FLAGS) $(SEAM) -o build/bench/presave-ours.test ./test/bench/presave
	@$(GO) test -c $(BUILD_FLAGS) -o build/bench/presave-upstream.test ./test/bench/presave
	@$(GO) -C tools test -c -trimpath -o ../build/bench/framing.test ./framingbench

##@ Bazel

# It builds and tests the same with the same go command, and learns the flags, the
# versions and the list of system tests from here. docs/bazel.md has more.
BAZEL ?= bazel
GAZELLE = $(BIN)/tools/gazelle -external=static
BUILDIFIER = git ls-files -co --exclude-standard WORKSPACE '*.bazel' '*.bzl' | xargs $(BIN)/tools/buildifier

.PHONY: bazel-build
bazel-build: runsc ## build everything with Bazel, and want the runsc of both builds to be the same
	$(BAZEL) build --jobs=2 //...
	cmp $(BIN)/runsc build/bazel-bin/runsc/runsc_/runsc

.PHONY: bazel-test
bazel-test: seam ## the unit and system tests with Bazel; needs root
	@rm -f build/bazel-events.json
	@$(BAZEL) test --jobs=2 --keep_going --build_event_json_file=build/bazel-events.json //...; \
		status=$$?; bazel/count.sh build/bazel-events.json && exit $$status

.PHONY: bazel-gazelle
bazel-gazelle: bazel-tools ## write the BUILD.bazel files anew
	$(GAZELLE)
	$(BUILDIFIER) -lint=fix

.PHONY: bazel-check
bazel-check: bazel-tools vendor ## fail when Gazelle or buildifier would change a file, or Bazel lacks a test
	$(GAZELLE) -mode=diff
	$(BUILDIFIER) -mode=check -lint=warn
	@mkdir -p build
	@$(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | sort >build/go-tests
	@$(BAZEL) query 'kind(_go_test, //...)' --output=package | sed "s|^|$$($(GO) list -m)/|" | sort >build/bazel-tests
	@diff build/go-tests build/bazel-tests || { echo 'the packages with tests are not the same for go (<) and for Bazel (>)'; exit 1; }

.PHONY: bazel-tools
bazel-tools:
	@$(GO) -C tools build -trimpath -o ../$(BIN)/tools/ github.com/bazelbuild/bazel-gazelle/cmd/gazelle github.com/bazelbuild/buildtools/buildifier

# What Bazel takes from here, for bazel/host.bzl.
.PHONY: bazel-settings
bazel-settings:
	@printf '%s = "%s"\n' BUILD_FLAGS '$(BUILD_FLAGS)' CGO_ENABLED '$(CGO_ENABLED)' LDFLAGS '$(LDFLAGS)' SYSTEM_TESTS '$(SYSTEM_TESTS)'

##@ Keeping the source in order

# The packages of gVisor that the seam changes are looked at with ours, and what is said
# about gVisor's own files in them is left out. All in one go: go vet keeps nothing but
# facts of a package that it met as a dependency, and later, asked about that package
# itself, finds the facts cached and says nothing. For the same reason -c=-1, the default:
# it keeps this cache apart from that of a go vet by hand.
SEAM_PACKAGES = $(sort $(patsubst seam/_overlay/%/,%,$(dir $(shell find seam/_overlay -name '*.go'))))
VET = ! $(GO) vet $(BUILD_FLAGS) $(SEAM) -c=-1 -tags $(TAGS) $(1) ./... $(SEAM_PACKAGES) 2>&1 | grep -vE '^(\#|-: )|(^|/)vendor/|\.pb\.go:'

.PHONY: vet
vet: seam ## go vet, on the files of the seam too
	$(call VET)
	$(GO) -C tools vet ./...

.PHONY: lint
lint: seam lint-tools ## gofmt, go mod tidy, staticcheck, gVisor's checklocks and other analyzers
	@unformatted=$$(git ls-files '*.go' | xargs gofmt -l); \
		if [ -n "$$unformatted" ]; then printf 'not formatted by gofmt:\n%s\n' "$$unformatted"; exit 1; fi
	$(GO) mod tidy -diff
	$(GO) -C tools mod tidy -diff
	$(call VET,-vettool=$(CURDIR)/$(BIN)/tools/lint)
	GOFLAGS=-trimpath $(BIN)/tools/staticcheck -tags $(TAGS) ./...
	cd tools && GOFLAGS=-trimpath ../$(BIN)/tools/staticcheck ./...

.PHONY: lint-tools
lint-tools:
	@$(GO) -C tools build -trimpath -o ../$(BIN)/tools/ ./lint honnef.co/go/tools/cmd/staticcheck

.PHONY: generate
generate: ## write the Go of proto/ anew
	$(GO) -C tools run ./genproto

.PHONY: check-generated
check-generated: ## fail when the Go of proto/ is not what its .proto says
	$(GO) -C tools run ./genproto -check

.PHONY: clean
clean: ## remove what was built; vendor/ stays
	rm -rf $(BIN) build
