# make prints the targets: each is described by the comment behind ## on its line.

.DEFAULT_GOAL := help

export PATH := $(PATH):/usr/local/go/bin:/usr/sbin:/sbin
# Go must not download another version of itself.
export GOTOOLCHAIN := local

# Variables that a target's description names.
FUZZTIME ?= 30s
SEEDS ?= 5000
SOAK ?= 1h
TORTURE ?= 10m
E2E_KERNEL ?= linux-image-amd64
E2E_RUN ?= .
E2E_TIMEOUT ?= 30m
BENCH ?=
PREFIX ?= /usr/local
SYSCONFDIR ?= /etc

# make build, libs, install and deb with GOARCH=arm64 are for arm64, on any machine. What is not for
# this machine has a folder of its own.
GOARCH ?= $(shell PATH='$(PATH)' go env GOARCH 2>/dev/null)
ifneq ($(GOARCH),$(shell PATH='$(PATH)' go env GOHOSTARCH 2>/dev/null))
BIN = bin/$(GOARCH)
export CROSS = aarch64-linux-gnu-
# Headers of rdma-core are the same for all architectures.
CROSSFLAGS = CC=$(CROSS)gcc CFLAGS='-O2 -g -idirafter /usr/include'
else
BIN = bin
endif

# A release sets these to its tag, without the "v", and its commit.
RELEASE_VERSION ?=
RELEASE_COMMIT ?=
RELEASE_FLAGS = $(if $(RELEASE_VERSION),-ldflags '-X main.tag=$(RELEASE_VERSION) -X main.commit=$(RELEASE_COMMIT)')

# The packages that use several goroutines. transport and packet do not, but their tests are cheap.
RACE = ./packet/... ./mrtable/... ./transport/... ./wire/... ./nic/... ./attach/... ./cm/... ./verbs/... ./capture/... \
	./internal/check/... ./internal/replay/... ./internal/liveplay/... ./internal/control/... ./internal/abi ./internal/daemon/... \
	./internal/run/... ./internal/show/... ./internal/metrics/... ./internal/web/...

.PHONY: help build libs install deb test e2e matrix arm64 image wide simulate soak torture demo bench bench-check profile fuzz lint race coverage mutate clean

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | \
		while IFS='	' read -r target text; do printf 'make %-12s %s\n' "$$target" "$$text"; done

build: libs ## bin/softroce, with the libraries in it
	@scripts/setup build
	GOARCH=$(GOARCH) go build $(RELEASE_FLAGS) -o $(BIN)/ ./cmd/softroce

# internal/run/lib/GOARCH is embedded in the binary: see internal/run/libraries.go. A library that
# has not changed is left alone, since another make may be building with it.
EMBEDDED = internal/run/lib/$(GOARCH)

libs: ## bin/lib: libibverbs.so.1 and librdmacm.so.1, on which unmodified programs run
	@scripts/setup libs
	$(MAKE) -j2 -C libverbs OUT=../$(BIN)/lib $(CROSSFLAGS)
	mkdir -p $(EMBEDDED)
	for lib in $(BIN)/lib/lib*.so.1; do \
		stripped=$(EMBEDDED)/$${lib##*/}; \
		$(CROSS)strip --strip-unneeded -o $$stripped.new $$lib || exit; \
		if cmp -s $$stripped.new $$stripped; then rm $$stripped.new; else mv $$stripped.new $$stripped; fi || exit; \
	done

install: build ## binary, libraries, manual and systemd unit into DESTDIR/PREFIX
	BIN=$(BIN) DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' SYSCONFDIR='$(SYSCONFDIR)' scripts/install

# The package contains what `make install` installs.
deb: ## a Debian package in dist/
	rm -rf dist
	$(MAKE) install DESTDIR='$(CURDIR)/dist/root' PREFIX=/usr SYSCONFDIR=/etc
	GOARCH=$(GOARCH) VERSION='$(RELEASE_VERSION)' scripts/deb

# The test cache is off: the programs that the end-to-end tests run are not among their imports.
# Those tests run by themselves: a guest that shares the processors with others may not reply before
# its peer gives up. The benchmarks of the data path run once each, to see that they work.
test: libs ## go vet and every test; as root the end-to-end tests too
	@scripts/setup test
	go vet ./...
	go run ./scripts/testreport -count 1 -timeout 30m $$(go list ./... | grep -v '/e2e$$')
	go test -run '^$$' -bench . -benchtime 1x ./packet ./transport ./internal/abi ./mrtable ./nic ./verbs ./wire
	go run ./scripts/testreport -count 1 -timeout 30m ./e2e

e2e: libs ## the end-to-end tests that match E2E_RUN, with E2E_KERNEL in the guests (root)
	@scripts/setup test
	SOFTROCE_E2E_KERNEL=$(E2E_KERNEL) go run ./scripts/testreport -count 1 -timeout $(E2E_TIMEOUT) -run '$(E2E_RUN)' ./e2e/...

# make matrix E2E_KERNEL=linux-image-6.12-amd64
matrix: export SOFTROCE_E2E_MATRIX = whole
matrix: E2E_RUN = Programs
matrix: E2E_TIMEOUT = 2h
matrix: e2e ## every row of docs/use/programs.md, over both address families and in both roles (root)

# Tests whose subject qemu-user lacks are left out. Without process_vm_readv, other tests access
# memory through /proc/PID/mem. The tests of the C libraries emulate the program alone: see
# libverbs/check/arm64_test.go.
ARM64 = ./packet/... ./wire/fault ./capture ./internal/abi ./internal/ib ./transport/... ./cm ./mrtable ./nic
QEMU_ARM64 = qemu-aarch64 -L /usr/aarch64-linux-gnu
# process_vm_readv, of another process and of the memory that this process guards:
ARM64_SKIP = ProcessVMCannotWrite|GuardedMemory|MapGuarded|RegionsOfOneFileShareMemory|RandomAccessesMatchModel
# madvise, which it ignores:
ARM64_SKIP := $(ARM64_SKIP)|ClientCannotRemoveMappedPages|ScarcePagesStay|SmallMappingsArePopulated
# MFD_HUGETLB of memfd_create:
ARM64_SKIP := $(ARM64_SKIP)|HugePagesStay
# userfaultfd:
ARM64_SKIP := $(ARM64_SKIP)|PageFaultWaits|PlacementOfTheEngine|UserWithSlowMemory|ActivityOfAThread/sleeps_in_a_copy

arm64: libs ## unit tests, and those of the C libraries, for arm64 under qemu-user
	@scripts/setup test
	$(MAKE) build GOARCH=arm64
	GOARCH=arm64 CGO_ENABLED=0 MRTABLE_TEST_EMULATOR='$(QEMU_ARM64)' \
		go test -short -timeout 30m -skip '$(ARM64_SKIP)' -exec '$(QEMU_ARM64)' $(ARM64)
	go run ./scripts/testreport -count 1 -run ARM64 ./libverbs/check

image: deb ## OCI images of daemon, libraries and tools, and of the daemon alone, in dist/ (root)
	@scripts/setup wide
	scripts/image

wide: arm64 ## what takes over five minutes: arm64, images, Debian 13 (root)
	@scripts/setup wide
	go run ./scripts/testreport -tags wide -count 1 -timeout 1h -run Wide ./e2e

simulate: ## SEEDS seeds of the simulation in virtual time
	go run ./scripts/testreport -count 1 -timeout 20m -run TestSeeds ./internal/sim -sim.seeds $(SEEDS)

soak: build ## mixed traffic with loss and killed clients for SOAK, all of it judged
	go run ./scripts/soak -time $(SOAK)

# The daemons drive NICs on packet, udp and xdp with two or four engines, and the programs have
# several queue pairs. rdma-core's tests use UD, XRC and multicast, too, with both ends on one NIC.
# A daemon that has found a race does not exit cleanly.
RACE_PROGRAMS = ^TestPrograms$$/^veth,/-q,|^TestRDMACoreTestSuite$$/engines=4$$

race: libs ## the tests of the core packages, and daemons with several engines, under the race detector (root)
	@scripts/setup lint
	@scripts/setup test
	CGO_ENABLED=1 go run ./scripts/testreport -race -timeout 20m $(RACE)
	CGO_ENABLED=1 go build -race -o bin/race/softroce ./cmd/softroce
	SOFTROCE_E2E_BINARY='$(CURDIR)/bin/race/softroce' go run ./scripts/testreport -count 1 -run '$(RACE_PROGRAMS)' ./e2e

coverage: ## statement coverage of packet, mrtable and transport: at least 90 %
	scripts/coverage

mutate: ## break the rules of transport and nic one at a time; takes minutes
	go run ./scripts/mutate

fuzz: ## every fuzz target, for FUZZTIME each
	scripts/fuzz $(FUZZTIME)

lint: ## formatting, static analysis, dead code, spelling, links: see scripts/lint
	@scripts/setup lint
	scripts/lint

torture: libs ## the C libraries under threads, fork, exec, cancellation, a dying daemon, TORTURE each
	@scripts/setup test
	SOFTROCE_TORTURE=$(TORTURE) go test ./libverbs/check -run Torture -count 1 -timeout 24h -v

demo: build ## a daemon, two clients, all RC operations, demo.pcapng
	@scripts/setup demo
	scripts/demo

bench: build ## softroce beside TCP, UCX and the kernel; also in bench.json; BENCH="-rows …" (root)
	@scripts/setup bench
	go build -o bin/ ./scripts/bench
	go test -c -o bin/ ./wire
	bin/bench -o bench.json $(BENCH)

bench-check: override BENCH += -check scripts/bench/recorded
bench-check: bench ## the same, and fails if a ratio is worse than the recorded one by a quarter (root)

# The compiler reads default.pgo by itself: it inlines what the profile shows as hot. A profile that
# is out of date does no harm.
profile: ## cmd/softroce/default.pgo: a profile of the engine and of simulated networks, for the compiler
	mkdir -p bin
	go test -o /dev/null ./nic -run '^$$' -bench '8B|64KiB|Wire' -benchtime 2s -cpuprofile '$(CURDIR)/bin/nic.prof'
	go test -o /dev/null ./internal/netsim -run '^$$' -bench LeafSpine -benchtime 1x -cpuprofile '$(CURDIR)/bin/netsim.prof'
	go tool pprof -proto -output cmd/softroce/default.pgo bin/nic.prof bin/netsim.prof

clean: ## remove what was built
	rm -rf bin dist demo.pcapng internal/run/lib/*
