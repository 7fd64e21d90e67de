# The commands of this repository. `make help` lists them.

BUILT  := $(or $(CARGO_TARGET_DIR),target)
CARGO  := cargo
FLAGS  := --locked
# The package of the binary.
PACKAGE := uxfrm-cli

.DEFAULT_GOAL := help
.PHONY: help demo test packages image test-packages book sim loom miri endure check lint layers bench bench-gate fuzz fuzz-seeds fmt deny sbom deps

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## Two gateways in network namespaces, real traffic through ESP between them (ARGS=… for `uxfrm demo`)
	@scripts/prerequisites build
	$(CARGO) build $(FLAGS) --release --bin uxfrm
	$(BUILT)/release/uxfrm demo $(ARGS)

test: ## All tests: unit, property, vectors; beside them against a real Linux kernel and scapy (needs root for those)
	@scripts/prerequisites build
	@scripts/prerequisites test
	scripts/test $(ARGS)

book: ## The documentation as a book, by mdBook, into target/book
	scripts/book

sim: ## Whole gateways by seed, on machines, disks and a wire that fail (SEEDS=10000; SEED=N replays one; docs/simulation.md)
	@scripts/prerequisites build
	UXFRM_SEED=$(SEED) UXFRM_SEEDS=$(or $(SEEDS),10000) $(CARGO) test $(FLAGS) --release -p uxfrm-daemon --lib \
		simulation::whatever -- --nocapture

endure: ## Kills, stops, upgrades and lost stores beneath traffic in host and inline mode, so many of each (ROUNDS=300 SEED=1): no IV twice, nothing plain
	@scripts/prerequisites test
	$(CARGO) build $(FLAGS) -p $(PACKAGE) -p uxfrm-redirect
	UXFRM_ROUNDS=$(or $(ROUNDS),300) UXFRM_SEED=$(or $(SEED),1) UXFRM=$(BUILT)/debug/uxfrm JOBS=0 scripts/interop -q -k test_endurance

loom: ## What threads share without locks, in all orders, with loom (ARGS=replay: those models only; loom/README.md)
	@scripts/prerequisites build
	$(CARGO) build $(FLAGS) --release --manifest-path loom/Cargo.toml --target-dir $(BUILT)/loom
	$(BUILT)/loom/release/uxfrm-loom $(ARGS)

# What calls C can't run there: of crypto, only what knows algorithms and compares.
miri: ## Packet, classify, and what of crypto calls no C, under Miri with nightly Rust: undefined behaviour is an error
	@$(CARGO) +nightly miri --version >/dev/null 2>&1 || { echo "make miri needs nightly Rust with Miri and its sources:"; \
		echo "rustup toolchain install nightly --component miri,rust-src"; exit 1; }
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=4 $(CARGO) +nightly miri test $(FLAGS) -p uxfrm-packet -p uxfrm-classify --lib
	MIRIFLAGS=-Zmiri-disable-isolation $(CARGO) +nightly miri test $(FLAGS) -p uxfrm-crypto --lib -- \
		icv:: transform:: material::tests::debug material::tests::equal a_crypter_moves keys_of_the_wrong_length

check: ## Before each commit: formatting, clippy, layers, unit tests of what has changed; no root (ARGS=all for all crates)
	@scripts/prerequisites build
	@scripts/check $(ARGS)

lint: layers ## Formatting, clippy, the arrows between crates, documentation, licences: no warning is let through
	$(CARGO) fmt --all --check
	$(CARGO) clippy $(FLAGS) --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc $(FLAGS) --workspace --no-deps --document-private-items --quiet
	RUSTFLAGS='--cfg fuzzing' $(CARGO) check $(FLAGS) --quiet --manifest-path fuzz/Cargo.toml --target-dir $(BUILT)/fuzz
	$(CARGO) check $(FLAGS) --quiet --manifest-path loom/Cargo.toml --target-dir $(BUILT)/loom
	scripts/deny

layers: ## Only the tests of the design: crates and modules use none but those that ARCHITECTURE.md lets them use
	@scripts/prerequisites build
	$(CARGO) test $(FLAGS) -p uxfrm-design --no-fail-fast --quiet

bench: ## One bench on this machine: ARGS="lookup --only …" as for `uxfrm bench`; without, crypto
	@scripts/prerequisites build
	$(CARGO) build $(FLAGS) --release --bin uxfrm
	$(BUILT)/release/uxfrm bench $(or $(ARGS),crypto)

bench-gate: ## Count the data path's instructions under callgrind; over 2 % more than bench/gate.txt is a failure (ARGS=--update writes it)
	@scripts/prerequisites build
	@scripts/prerequisites test
	scripts/bench-gate $(ARGS)

fuzz: ## Fuzz one target of fuzz/README.md with nightly Rust (TARGET=packet SECONDS=60)
	@$(CARGO) +nightly fuzz --version >/dev/null 2>&1 || { echo "make fuzz needs nightly Rust and cargo-fuzz:"; \
		echo "rustup toolchain install nightly && cargo install --locked cargo-fuzz"; exit 1; }
	@mkdir -p fuzz/found/$(or $(TARGET),packet)
	env -u CARGO_TARGET_DIR $(CARGO) +nightly fuzz run $(or $(TARGET),packet) fuzz/found/$(or $(TARGET),packet) fuzz/corpus/$(or $(TARGET),packet) -- \
		-max_total_time=$(or $(SECONDS),60) -max_len=4096

fuzz-seeds: ## Write the inputs anew that the corpora of fuzz/ began with
	$(CARGO) test $(FLAGS) -p uxfrm-testkit -p uxfrm-daemon -p uxfrm-netlink -p uxfrm-runtime -p uxfrm-tunnel --test corpus -- --ignored
	$(CARGO) test $(FLAGS) -p uxfrm-io -p uxfrm-redirect --lib fuzz -- --ignored

fmt: ## Format all Rust code
	$(CARGO) fmt --all

deny: ## Licences, bans, sources and, where the list can be fetched, advisories of all dependencies (deny.toml)
	@scripts/prerequisites build
	@scripts/deny

sbom: ## What the binary is made of, as CycloneDX: target/uxfrm.cdx.json (TARGET=x86_64-unknown-linux-gnu)
	@mkdir -p $(BUILT)
	scripts/sbom $(TARGET) >$(BUILT)/uxfrm.cdx.json
	@echo $(BUILT)/uxfrm.cdx.json

packages: ## .deb, .rpm and tarball of a release build, with SHA256SUMS, in target/packages (ARGS=deb: that one; docs/install.md)
	@scripts/prerequisites build
	scripts/packages $(ARGS)

image: ## An OCI image of a release build, FROM scratch, by buildah: target/packages/uxfrm-….oci.tar (docs/install.md)
	@scripts/prerequisites packages
	scripts/packages stage
	scripts/image

test-packages: ## All packages and the image of a release build: installed in a clean Debian, compared, run by runc
	@scripts/prerequisites build
	@scripts/prerequisites test
	@scripts/prerequisites packages
	scripts/packages
	scripts/image
	UXFRM_PACKAGES=$(BUILT)/packages UXFRM=$(BUILT)/release/uxfrm JOBS=0 scripts/interop \
		tests/interop/test_packages.py tests/interop/test_release_packages.py

deps: ## Install the Debian packages for the build and the tests
	@scripts/prerequisites build
	@scripts/prerequisites test
