# Sanstone: the commands for users and developers; the scripts behind them are in tools/.

CARGO ?= cargo
ARGS ?=
# Runs a measurement program of tests/src/bin with the release binary.
MEASURE = tools/install bench && tools/with-rust env SANSTONE_BIN="$$(tools/built release)" \
	$(CARGO) run --quiet --locked --package sanstone-tests --bin
# Tests as tools/test compiles and runs them.
TESTED = tools/with-rust env RUSTC_WORKSPACE_WRAPPER="$$PWD/tools/rustc" SANSTONE_BIN="$$(tools/built tested)" \
	$(CARGO) test --workspace --locked --profile tested

.DEFAULT_GOAL := help
.PHONY: help build install deb demo test test-long test-package conformance bench bench-kernel links attach-bench mirror-bench oltp lab fuzz clean

help: ## show this list
	@echo 'Sanstone: block storage for databases over iSCSI.'
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22
	@echo
	@echo 'Options of a command go in ARGS, for example: make demo ARGS="--shares 4 --link 1"'

build: ## build target/release/sanstone (installs the compiler if missing)
	@tools/install build
	@tools/with-rust $(CARGO) build --release --locked --package sanstone

# Where `make install` puts things: DESTDIR is the root, PREFIX below it.
DESTDIR ?=
PREFIX ?= /usr/local

install: build ## install it here, without a package: PREFIX=/usr/local, DESTDIR for a root elsewhere
	@tools/install-here "$(DESTDIR)" "$(PREFIX)"

deb: build ## build the Debian package, target/debian/*.deb
	@tools/with-rust tools/deb

demo: build ## run the demo on this machine: two shares, one stripe, SQL on it; writes report.html
	@tools/with-rust $(CARGO) run --quiet --release --locked --package sanstone -- demo $(ARGS)

test: ## install what the tests need, then run every check and every test
	@tools/install test
	@tools/with-rust tools/test

test-long: ## run the hour-long tests: the mirror's rules explored deeper and simulated longer, databases whose volume is killed again and again
	@tools/install test
	@$(TESTED) --no-run --quiet
	@$(TESTED) --test explore -- --ignored --nocapture
	@SANSTONE_SEEDS=10000 $(TESTED) --test scenarios -- mirrors::a_mirror
	@$(TESTED) --test databases -- --ignored --nocapture --test-threads 1

test-package: deb ## test the Debian package: built twice, in clean Debians, booted by systemd in a virtual machine; needs root
	@tools/install package
	@tests/package/twice
	@tests/package/installs
	@tests/package/boots

conformance: build ## run libiscsi's conformance suite on Sanstone, tgt and istgt, and count the results
	@tools/install test
	@tools/with-rust env SANSTONE_BIN="$$(tools/built release)" \
		$(CARGO) run --quiet --locked --package sanstone-tests --bin conformance -- $(ARGS)

bench: build ## compare the target with tgt and bare TCP: I/Os, latency, CPU per I/O; `lab history` reads target/bench/*.json
	@tools/install bench
	@mkdir -p target/bench
	@tools/with-rust env SANSTONE_BIN="$$(tools/built release)" $(CARGO) run --quiet --release --locked --package sanstone-bench \
		-- --json "target/bench/$$(date -u +%Y-%m-%dT%H%M%S).json" $(ARGS)

bench-kernel: build ## count the instructions of an I/O with the target and with Linux's own, in a virtual machine
	@tools/install test
	@tools/with-rust env SANSTONE_BIN="$$(tools/built release)" \
		$(CARGO) run --quiet --locked --package sanstone-tests --bin bench-kernel -- $(ARGS)

links: build ## measure bandwidth over 1, 2 and 4 virtual links, the loss of one of two, CPU per I/O; needs root
	@$(MEASURE) links -- $(ARGS)

attach-bench: build ## compare an attached volume (file, NBD) with nbdkit, nbdfuse, qemu-nbd and the bare file; needs root
	@$(MEASURE) attach-bench -- $(ARGS)

mirror-bench: build ## compare a mirror with each of its copies alone: latency and CPU time of 4 KiB writes and reads
	@tools/install bench
	@tools/with-rust env SANSTONE_BIN="$$(tools/built release)" $(CARGO) run --quiet --release --locked --package sanstone-tests \
		--bin mirror-bench -- $(ARGS)

oltp: build ## compare database transactions on a file, on attach over a file and over iSCSI, on nbdfuse; needs root
	@tools/install bench
	@SANSTONE_BIN="$$(tools/built release)" tools/oltp $(ARGS)

lab: build ## run every lab profile, in about 35 minutes; writes target/lab, and tables to docs/results (QUICK=1: a few minutes)
	@tools/install bench
	@SANSTONE_BIN="$$(tools/built release)" QUICK=$(QUICK) DATA="$(DATA)" tools/lab

fuzz: ## fuzz the protocol, the disk and the clients, a minute for each target (ARGS="SECONDS TARGET...")
	@tools/install fuzz
	@tools/with-rust tools/fuzz $(ARGS)

clean: ## remove what the build and the demo created
	$(CARGO) clean
	rm -f report.html demo.json
