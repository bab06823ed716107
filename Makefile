# make           build bin/softroce
# make libs      build bin/lib/libibverbs.so.1, which unmodified programs run on, and give it to the binary
# make install   put both, manual, systemd unit … into DESTDIR/PREFIX
# make deb       a Debian package of the same, in dist/
# make test      go vet and every test; as root the end-to-end ones too
# make demo      a daemon, two clients, all RC operations, a table, demo.pcapng
# make bench     RDMA WRITE beside TCP on the same veth pair (root)
# make fuzz      every fuzz target, FUZZTIME each
# make lint      gofmt, go vet, staticcheck, clang-format
# make simulate  SEEDS seeds of the simulation, virtual time
# make coverage  statement coverage of packet, mrtable and transport, 90 % at least
# make mutate    break the rules of transport, one at a time; some minutes
# make race      the tests of the core packages under the race detector

export PATH := $(PATH):/usr/local/go/bin:/usr/sbin:/sbin
# Go is not to fetch another version of itself.
export GOTOOLCHAIN := local

FUZZTIME ?= 30s
E2E_KERNEL ?= linux-image-amd64
E2E_RUN ?= .
E2E_TIMEOUT ?= 30m

# What runs on several goroutines, or is run by them. transport and packet have none,
# but their tests are cheap.
RACE = ./packet/... ./mrtable/... ./transport/... ./wire/... ./nic/... ./attach/... ./cm/... ./verbs/... ./capture/... \
	./internal/check/... ./internal/replay/... ./internal/liveplay/... ./internal/control/... ./internal/abi/... ./internal/daemon/... \
	./internal/run/... ./internal/show/... ./internal/metrics/...

SEEDS ?= 5000

PREFIX ?= /usr/local
SYSCONFDIR ?= /etc

.PHONY: build libs install deb test e2e matrix simulate demo bench fuzz lint race coverage mutate clean

build: libs
	@scripts/setup build
	go build -o bin/ ./cmd/softroce

# What is in internal/run/lib/GOARCH goes into the binary: see internal/run/libraries.go. What has not changed is
# left alone: another make may build with it at this moment.
EMBEDDED = internal/run/lib/$(shell go env GOARCH)

libs:
	@scripts/setup libs
	$(MAKE) -C libverbs
	mkdir -p $(EMBEDDED)
	for lib in bin/lib/lib*.so.1; do \
		stripped=$(EMBEDDED)/$${lib##*/}; \
		strip --strip-unneeded -o $$stripped.new $$lib || exit; \
		if cmp -s $$stripped.new $$stripped; then rm $$stripped.new; else mv $$stripped.new $$stripped; fi || exit; \
	done

# Nothing is taken from the cache: what the end-to-end tests run is not among their imports. They come
# first, since they take longest, and the others run beside them.
test: libs
	@scripts/setup test
	go vet ./...
	go run ./scripts/testreport -count 1 -timeout 30m ./e2e ./...

# The end-to-end tests alone, those with another kernel: make e2e E2E_KERNEL=linux-image-6.12-amd64 E2E_RUN=Kernel
e2e: libs
	@scripts/setup test
	SOFTROCE_E2E_KERNEL=$(E2E_KERNEL) go run ./scripts/testreport -count 1 -timeout $(E2E_TIMEOUT) -run '$(E2E_RUN)' ./e2e/...

# Every row of docs/use/programs.md everywhere, over both address families, with a kernel in both roles: make matrix E2E_KERNEL=linux-image-6.12-amd64
matrix: export SOFTROCE_E2E_MATRIX = whole
matrix: E2E_RUN = Programs
matrix: E2E_TIMEOUT = 2h
matrix: e2e

simulate:
	go test ./internal/sim -run TestSeeds -count 1 -timeout 20m -v -sim.seeds $(SEEDS)

coverage:
	scripts/coverage

mutate:
	go run ./scripts/mutate

race:
	@scripts/setup lint
	CGO_ENABLED=1 go run ./scripts/testreport -race -timeout 20m $(RACE)

install: build
	DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' SYSCONFDIR='$(SYSCONFDIR)' scripts/install

# What the package holds is what install puts in place.
deb:
	rm -rf dist
	$(MAKE) install DESTDIR='$(CURDIR)/dist/root' PREFIX=/usr SYSCONFDIR=/etc
	scripts/deb

demo: build
	@scripts/setup demo
	scripts/demo

bench: build
	@scripts/setup bench
	scripts/bench

fuzz:
	scripts/fuzz $(FUZZTIME)

lint:
	@scripts/setup lint
	scripts/lint

clean:
	rm -rf bin dist demo.pcapng internal/run/lib/*
