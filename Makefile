# Each target first sets up what it needs in .venv; when that is there, nothing is done again.
# PYTHON=python3.12 names the interpreter, ARGS="-k golden" goes to the command, JOBS=1 to pytest -n.
JOBS ?= 2
.NOTPARALLEL:
.PHONY: help reproduce test test-slow lint format clean core dev

help:  ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s  %s\n", $$1, $$2 }' Makefile

reproduce: core  ## Reproduce the paper's Figure 1, quickly; ARGS="--scale paper" for all of it
	@.venv/bin/randq reproduce figure1 $(ARGS)

test: dev  ## Run every test that is not slow
	@.venv/bin/python -m pytest -n $(JOBS) $(ARGS)

test-slow: dev  ## Run the slow, statistical tests
	@.venv/bin/python -m pytest -n $(JOBS) -m slow $(ARGS)

lint: dev  ## Check style, format and types
	@.venv/bin/ruff check
	@.venv/bin/ruff format --check
	@.venv/bin/mypy src

format: dev  ## Put the code into its standard format
	@.venv/bin/ruff check --fix-only --quiet
	@.venv/bin/ruff format

clean:  ## Remove .venv and every cache (never results)
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	@find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

core:
	@sh scripts/setup.sh

dev:
	@sh scripts/setup.sh dev
