# Each target does its own set-up: it makes .venv and installs what it needs, with uv if there is one, else pip.
.PHONY: demo test stress soak lint format bench docs docs-serve proto servers release-check clean
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin

# The tests start hundreds of processes: without bytecode each of them would compile all that it imports.
export PYTHONDONTWRITEBYTECODE :=

define install
	@if command -v uv >/dev/null 2>&1; then \
	  { [ -x $(BIN)/python ] || uv venv --quiet --python $(PYTHON) .venv; } && uv pip install --quiet --python $(BIN)/python -e '.[$(1)]'; \
	else \
	  { [ -x $(BIN)/python ] || $(PYTHON) -m venv .venv; } && $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(1)]'; \
	fi
	@touch $@
endef

.PHONY: help
help:
	@echo "make demo    several processes share one limit, live (about 15 seconds)"
	@echo "make test    lint, types and all tests"
	@echo "make stress  workers killed at random, on every store, for a minute"
	@echo "make soak    all load tests, longer"
	@echo "make bench   headgate and its peers in one run"
	@echo "make docs    the documentation as a site, in site/"
	@echo "make lint    lint and types only"
	@echo "make format  let ruff format the code"
	@echo "make release-check  build, check and install the packages, and run the demo and the README from them"

.venv/cli: pyproject.toml
	$(call install,cli)

.venv/dev: pyproject.toml
	$(call install,dev)

.venv/bench: pyproject.toml
	$(call install,bench)

demo: .venv/cli
	$(BIN)/headgate demo

test: .venv/dev
	@$(MAKE) --no-print-directory -j 2 lint servers
	$(BIN)/python -m pytest -n 6 --dist worksteal

stress: .venv/dev servers
	HEADGATE_STRESS=1 $(BIN)/python -m pytest tests/load/test_slots_stress.py --timeout 600

soak: .venv/dev servers
	HEADGATE_STRESS=1 $(BIN)/python -m pytest tests/load --timeout 600

lint: lint-types lint-code lint-imports lint-workflows

.PHONY: lint-types lint-code lint-imports lint-workflows
lint-types: .venv/dev
	$(BIN)/mypy

lint-code: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-imports: .venv/dev
	$(BIN)/lint-imports

lint-workflows: .venv/dev
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/bench servers
	$(BIN)/python -m bench

docs: .venv/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

docs-serve: .venv/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --no-strict

# What Envoy and the service say to each other, compiled from its .proto.
proto: .venv/dev
	cd src/headgate/service/envoy && ../../../../$(BIN)/python -m grpc_tools.protoc -I. --include_imports \
	  --descriptor_set_out=ratelimit.binpb --pyi_out=. ratelimit.proto

release-check: .venv/dev
	@sh tests/release_check.sh

servers:
	@sh tests/servers/install.sh
	@sh tests/servers/install_postgres.sh
	@sh tests/servers/install_dynamodb.sh

clean:
	rm -rf .venv .engines site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
