# The commands of this project. What they make is below target/; what they need of Debian, tests/setup installs.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test clients bench soak fuzz check

target := $(or $(CARGO_TARGET_DIR),target)
tier := @tests/setup/tier.sh

# A machine that runs this must not change what was committed.
locked := $(if $(CI),--locked)

# Two tools of the Rust world are not in Debian; they stay in target/ and out of anybody's ~/.cargo.
deny_version := 0.20.2
deny := target/tools/cargo-deny-$(deny_version)/bin/cargo-deny
fuzz_version := 0.13.2
fuzzer := target/tools/cargo-fuzz-$(fuzz_version)/bin/cargo-fuzz

# Tests that make namespaces and attach programs need root. `test = false` in their manifest keeps them out of a plain
# `cargo test`; they are named here, and sudo runs them where we are not root.
kernel_tests := --test verdicts --test links --test kernel
guest_tests := --test guests
client_tests := --test clients
soak_tests := --test soak
host := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p' | tr a-z- A-Z_)
as_root := $(if $(filter-out 0,$(shell id -u)),env CARGO_TARGET_$(host)_RUNNER='sudo $(if $(CI),-n )-E')

help: ## Say what there is to run
	@sed -n 's/^\([a-z]*\):[^#]*## /\1\t/p' Makefile | while IFS=$$'\t' read -r name text; do printf 'make %-8s %s\n' "$$name" "$$text"; done

demo: ## Boot two real machines on a pretend node and watch each get its own metadata (under a minute, once built)
	@tests/setup/machine.sh
	@tests/setup/packages.sh build demo
	@tests/guest/build.sh
	cargo build $(locked) --bin pve-imds
	@tests/demo/demo.sh $(target)/debug/pve-imds

test: ## Install what the tests need and run every tier, from formatting to real guests; stops at the first that fails
	@tests/setup/machine.sh
	@tests/setup/packages.sh build test
	$(tier) --begin
	$(tier) "format" cargo fmt --all --check
	$(tier) "lints" cargo clippy $(locked) --workspace --all-targets -- -D warnings
	$(tier) "lints of the kernel tier" cargo clippy $(locked) --workspace $(kernel_tests) $(guest_tests) $(client_tests) $(soak_tests) -- -D warnings
	@$(MAKE) --silent $(deny)
	$(tier) "dependencies" $(deny) check -D unnecessary-skip bans licenses sources
	$(tier) "house" cargo test $(locked) --workspace --test house
	$(tier) "unit and in-memory" cargo test $(locked) --workspace
	$(tier) "kernel" $(as_root) cargo test $(locked) --workspace $(kernel_tests) -- --test-threads=1
	@tests/guest/build.sh
	@tests/guest/debian.sh
	$(tier) "guests" $(as_root) cargo test $(locked) --workspace $(guest_tests) -- --test-threads=1
	$(tier) --totals

clients: ## Have every real client fetch one VM's metadata, and print client x dialect (minutes the first time; ONLY=name)
	@tests/setup/machine.sh
	@tests/setup/packages.sh build test clients
	@tests/guest/debian.sh
	@tests/clients/build.sh
	@$(as_root) cargo test $(locked) --quiet $(client_tests) -- $(ONLY)

bench: ## Measure what is promised, against nginx and kernel TCP, and print the table (QUICK=1: under three minutes)
	@tests/setup/machine.sh
	@tests/setup/packages.sh build bench
	cargo build $(locked) --release --bin pve-imds
	cargo build $(locked) --release --package pve-imds-bpf --example cost
	cargo build $(locked) --release --bench server --test kernel
	@built() { cargo build $(locked) --quiet --release --$$1 $$2 --message-format json | sed -n "/\"kind\":\[\"$$1\"\]/s/.*\"executable\":\"\([^\"]*\)\".*/\1/p"; }; \
	server=$$(built bench server) floods=$$(built test kernel); \
	tests/bench/run.sh $(target)/release/pve-imds "$$server" $(target)/release/examples/cost "$$floods" $(target)/bench $(ROWS)

soak: ## Do everything at once, MINUTES=30: churn, floods, restarts, with captures on; fails on a leak, a wrong answer, growth
	@tests/setup/machine.sh
	@tests/setup/packages.sh build test
	MINUTES=$(or $(MINUTES),30) $(as_root) cargo test $(locked) $(soak_tests) -- --nocapture --test-threads=1

fuzz: ## Try what guests may send, SECONDS=60 for each target, with a nightly compiler (TARGETS="frame path": only these)
	@tests/setup/packages.sh build
	@tests/fuzz/run.sh --check
	@$(MAKE) --silent $(fuzzer)
	@tests/fuzz/run.sh $(fuzzer) $(target)/fuzz $(or $(SECONDS),60) $(TARGETS)

check: ## Formatting and lints only
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo clippy --workspace $(kernel_tests) $(guest_tests) $(client_tests) $(soak_tests) -- -D warnings

$(deny):
	$(tier) "cargo-deny, once" cargo install --quiet --locked cargo-deny --version $(deny_version) --root target/tools/cargo-deny-$(deny_version)

$(fuzzer):
	$(tier) "cargo-fuzz, once" cargo install --quiet --locked cargo-fuzz --version $(fuzz_version) --root target/tools/cargo-fuzz-$(fuzz_version)
