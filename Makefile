# Toolhost: `make` lists what can be made.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
export PATH := $(HOME)/.cargo/bin:$(PATH)

# The agent runs in whatever image a tenant brings, so it is linked statically, in a
# target folder of its own: other flags, and it does not wait for the workspace's lock.
triple = $(shell rustc -vV | sed -n 's/^host: //p')
agent := target/toolhost-agent
agent_built = target/agent-build/$(triple)/agent/toolhost-agent

# The tests find everything else by themselves.
export TOOLHOST_AGENT_PATH := $(CURDIR)/$(agent)

# The version that the tests are run with here; newer ones need a newer Rust in time.
nextest_version := 0.9.143

# What runs on gVisor once more: attacks that meet the runtime, and not only what reads their output. docs/attacks.md is compared with it.
gvisor_modules := attacks|sandbox_attacks|node_attacks|nasty_paths|swaps|bad_files|files|http_files::archives|http_files::forms|http_files::watch
gvisor_left_out := flood|odd_bytes|forges|hundred|large_form|go_up_and_down|before_it_is_changed|found_searched|why_it_does_not
gvisor_attacks := package(tests) & test(/^($(gvisor_modules))::/) & !test(/$(gvisor_left_out)/)

.PHONY: help setup run test test-gvisor test-s3 test-pooler test-next-schema lint bench bench-docs bench-peers bench-instructions openapi sandbox-image \
	agent server-binary compose-test test-binaries bench-binaries nextest clean clean-host

help: ## List what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-19s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install missing system packages and start a Docker engine if none answers
	@deploy/host/setup.sh

run: setup ## Start everything on 127.0.0.1:8080 and run a demo call; Ctrl-C ends it (dev build)
	@deploy/host/with-image.sh $(MAKE) --no-print-directory -j2 agent server-binary
	@exec target/debug/toolhost dev

test: setup nextest ## Run all tests, those with real sandboxes included
	@deploy/host/with-image.sh $(MAKE) --no-print-directory -j2 agent test-binaries
	@if grep -rqE '//[/!] *```' crates --include='*.rs'; then cargo test --quiet --doc --workspace; fi
	@deploy/compose/test.sh --check
	@# What fails in the first round must not hide what fails on gVisor.
	@filter='all()'; again='$(gvisor_attacks)'; failed=; trap 'exit 130' INT TERM; \
		deploy/host/gvisor.sh || { [[ $$? == 3 ]] || exit 1; filter='not binary(gvisor)'; again='none()'; }; \
		cargo nextest run --workspace -E "$$filter" || failed='the first round'; \
		TOOLHOST_TEST_RUNTIME=runsc cargo nextest run --workspace --no-tests=pass -E "$$again" || failed+="$${failed:+ and }the round on gVisor"; \
		[[ -z $$failed ]] || { echo "make test: $$failed failed" >&2; exit 1; }

test-gvisor: setup nextest ## Try the attacks on gVisor once more, without the other tests
	@deploy/host/gvisor.sh
	@deploy/host/with-image.sh $(MAKE) --no-print-directory -j2 agent test-binaries
	@TOOLHOST_TEST_RUNTIME=runsc cargo nextest run --workspace -E '$(gvisor_attacks)'

compose-test: setup ## Bring docker-compose.yml up without a network, run a call through it, take it down
	@deploy/host/with-image.sh $(MAKE) --no-print-directory -j2 agent server-binary
	@deploy/compose/test.sh

test-s3: ## Test artifacts against a server that speaks S3 (moto, from PyPI, in a folder of its own)
	@python3 -m venv target/moto && target/moto/bin/pip install --quiet 'moto[server,s3]==5.*'
	@target/moto/bin/moto_server -H 127.0.0.1 -p 5005 >target/moto/log 2>&1 & server=$$!; trap "kill $$server" EXIT; \
	until curl -sf -X PUT http://127.0.0.1:5005/artifacts -o /dev/null; do kill -0 $$server; sleep 0.2; done; \
	TOOLHOST_TEST_S3=http://127.0.0.1:5005 cargo nextest run -p store --run-ignored only -E 'test(in_a_bucket)'

test-pooler: setup nextest ## Test the store and the API with PgBouncer in transaction mode before Postgres
	@# Plans are read from direct connections: a pooler's were open before the test has them explained.
	@TOOLHOST_TEST_POOLER=1 cargo nextest run -p store -p api -E 'not test(/^plans/)'

test-next-schema: setup nextest ## Test the store and the API on a schema that a next release has expanded
	@TOOLHOST_TEST_NEXT_SCHEMA=1 cargo nextest run -p store -p api -E 'not test(/^upgrades|the_process_tells_how_it_is|reading_usage/)'

lint: ## Check the format, clippy and the documentation
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

bench: setup ## Measure a release build against its goals (ARGS="--quick --only P1,P4")
	@deploy/host/with-image.sh $(MAKE) --no-print-directory -j2 agent bench-binaries
	@target/release/toolhost-bench $(ARGS)

bench-docs: ## Put the tables and pictures of the last runs into docs/performance.md
	@awk '/^<!-- [a-z]+: begin/ { print; file = "target/bench/" substr($$2, 1, length($$2) - 1) ".md"; \
			if ((getline line < file) > 0) { old = 1; print ""; print line; while ((getline line < file) > 0) print line; print "" } next } \
		/^<!-- [a-z]+: end/ { old = 0 } !old' docs/performance.md > target/bench/performance.new
	@for picture in results waterfall; do [[ ! -e target/bench/$$picture.svg ]] || cp target/bench/$$picture.svg docs/performance-$$picture.svg; done
	@mv target/bench/performance.new docs/performance.md

bench-instructions: ## Count the instructions of what a call needs of the processor alone (installs valgrind where it is missing)
	@deploy/host/setup.sh valgrind
	@cargo build --release -p tests --bin toolhost-instructions
	@target/release/toolhost-instructions

bench-peers: ## Install what `make bench` compares us with (PyPI, npm), below target/bench-peers
	@deploy/bench-peers/install.sh

openapi: ## Write openapi/toolhost.json
	@cargo build -p server --bin toolhost
	@target/debug/toolhost openapi > target/openapi.json && mv target/openapi.json openapi/toolhost.json

sandbox-image: setup ## Build the default sandbox image, if this content has not been built yet
	@deploy/sandbox/build.sh

agent: ## Build the static agent that is put into every sandbox
	@cargo build --profile agent -p agent --bin toolhost-agent --target $(triple) \
		--target-dir target/agent-build --config 'target.$(triple).rustflags=["-Ctarget-feature=+crt-static"]'
	@if readelf -lW $(agent_built) | grep INTERP >/dev/null; then \
		echo "the agent is not statically linked: $(agent_built)" >&2; exit 1; fi
	@cmp -s $(agent_built) $(agent) || { cp $(agent_built) $(agent).new && mv $(agent).new $(agent); }

server-binary:
	@cargo build -p server --bin toolhost

test-binaries:
	@cargo build --workspace --bins
	@cargo nextest run --workspace --no-run

bench-binaries:
	@cargo build --release -p server --bin toolhost -p tests --bin toolhost-bench

# Installed from the registry only where it is missing; a quick build is fast enough.
nextest:
	@cargo nextest --version >/dev/null 2>&1 || { \
		echo "installing cargo-nextest $(nextest_version) (once; some minutes)"; \
		cargo install cargo-nextest --version $(nextest_version) --locked --debug \
			--no-default-features --features default-no-update; }

clean: ## Remove what cargo built
	cargo clean

clean-host: ## Remove our sandboxes; stop our Postgres, and the engine if setup started it
	@deploy/host/clean.sh
