# Everything here works in a fresh clone with make, git and python3 (3.10 or newer, with venv
# and pip). Type `make` for the list.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BIN := .venv/bin

# make demo: a trace file (JSON lines), how many of its requests, more options of `kvlane replay`.
# ARGS also goes to bench and conformance.
TRACE ?=
REQUESTS ?= $(if $(TRACE),2000)
ARGS ?=

.PHONY: help setup demo test test-nojit warm-check conformance conformance-soak interop interop-upstream roce-soak fuzz-soak crash-soak lint format proto bench bench-peers clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' Makefile

# The stamps exist only while .venv is whole; scripts/venv takes them away before it changes it.
.venv/.core: pyproject.toml scripts/venv
	scripts/venv core

.venv/.test: pyproject.toml scripts/venv
	scripts/venv test

setup: .venv/.test ## Make .venv with everything that the tests need

demo: .venv/.core ## Replay a workload through driver, NIC and agent; TRACE=file REQUESTS=n ARGS=...
	$(BIN)/kvlane replay $(if $(TRACE),'$(TRACE)') $(if $(REQUESTS),--requests $(REQUESTS)) $(ARGS)

test: lint ## Lint, types, layers, then the whole suite
	$(BIN)/pytest -n auto

test-nojit: setup ## The same suite with every kernel as plain Python
	NUMBA_DISABLE_JIT=1 $(BIN)/pytest -n auto

warm-check: setup ## After kvlane agent --warm an agent compiles nothing; compiles all anew
	$(BIN)/pytest tests/warm/warm_agent.py

conformance: setup ## rdma-core's own tests on the emulated NIC; ARGS=...
	$(BIN)/python -m tests.conformance $(ARGS)

conformance-soak: setup ## The same twenty times over: no flake, no hang
	$(BIN)/python -m tests.conformance --repeat 20 $(ARGS)

interop: setup ## Linux soft-RoCE in a guest at the other end of the wire (root); ARGS=...
	scripts/install-interop
	$(BIN)/python -m tests.interop $(ARGS)

interop-upstream: setup ## rdma-core's own tests on soft-RoCE and on the emulator, into docs/
	scripts/install-interop --build
	$(BIN)/python -m tests.interop.upstream --write-docs $(ARGS)

roce-soak: setup ## A million operations over bad links; ARGS='--operations n --seed n'
	$(BIN)/python -m tests.soak.roce $(ARGS)

fuzz-soak: setup ## Five minutes of frames that are almost right; ARGS='--minutes n --seed n'
	$(BIN)/python -m tests.soak.fuzz $(ARGS)

crash-soak: setup ## 200 kills and 50 power failures of the segment log, then 200 kills of an agent over it
	$(BIN)/python -m tests.crash.segments $(ARGS)
	$(BIN)/python -m tests.crash.agent

lint: setup ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## Format the code and mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: setup ## Generate the gRPC code anew from proto/
	$(BIN)/python scripts/genproto

bench-peers: ## Install the stores that the benchmarks compare with (root)
	scripts/install-bench-peers

bench: .venv/.core ## Measure this machine's data path; ARGS='NAME --rounds n'
	$(BIN)/kvlane bench $(if $(ARGS),$(ARGS),all)

clean: ## Remove .venv and everything that was made
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		.import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
