# All tools run in .venv, which is made of the pinned requirements on demand, and anew when they change.
# Needs Python 3.11 or later and make; PYTHON=/path/to/python chooses another one.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PINNED := .venv/.pinned
READY := .venv/.ready
SHARED := ../shared
CASES = $(BIN)/python $(SHARED)/tools/check_cases.py "$(CURDIR)/$(BIN)/chargeback" $(SHARED)/cases
PIP_TOOLS := pip-tools==7.6.2

.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help venv demo test slow bench check format cases cases-prometheus wheel lock clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | expand -t 18

venv: $(READY) ## Make .venv

demo: $(READY) ## Bill the example month; the pages are in chargeback-demo/
	$(BIN)/chargeback demo

test: $(READY) ## Run the tests but the slow ones
	$(BIN)/python -m pytest -n 2

slow: $(READY) ## Run the slow tests
	$(BIN)/python -m pytest -n 2 -m slow || test $$? -eq 5 # there may be none

check: $(READY) ## Lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict chargeback

format: $(READY) ## Mend what can be mended by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

ifneq ($(wildcard $(SHARED)/tools/check_cases.py),)
cases: $(READY) ## Compare the charges of all cases with what the accounting model gives
	$(CASES)

cases-prometheus: $(READY) ## The same through a real Prometheus; needs prometheus and promtool on PATH
	$(CASES) --prometheus
else
cases cases-prometheus:
	@echo "$@: $(SHARED)/tools/check_cases.py is not there; nothing to run"
endif

bench: $(READY) ## Measure collecting and allocating, beside others; some minutes. Writes docs/benchmarks.md
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes --requirement requirements/bench.txt
	PYTHONPATH=.:tests:$$(ls -d .venv-bench/lib/python*/site-packages) $(BIN)/python -m tests.benchmarks --write docs/benchmarks.md

wheel: $(READY) ## Build wheel and source archive into dist/
	$(BIN)/python -m build --no-isolation

# The tool that pins is not among the pins: it has a venv of its own, for the time of this target.
lock: ## Pin requirements/*.txt anew, with hashes; use the oldest Python that is supported
	@set -e; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	$(PYTHON) -m venv "$$tmp"; \
	"$$tmp/bin/python" -m pip --disable-pip-version-check --quiet install $(PIP_TOOLS); \
	pin() { CUSTOM_COMPILE_COMMAND='make lock' "$$tmp/bin/pip-compile" --quiet --upgrade --generate-hashes \
		--strip-extras --allow-unsafe --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
		"$$@" pyproject.toml; }; \
	pin --output-file requirements/runtime.txt; \
	pin --extra dev --constraint requirements/runtime.txt --output-file requirements/dev.txt; \
	pin --only-build-deps --build-deps-for wheel --constraint requirements/dev.txt --output-file requirements/build.txt

clean: ## Remove all that was made, .venv included
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find chargeback tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(PINNED): requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=...")'
	$(PYTHON) -m venv --clear .venv
	$(PIP) install --require-hashes --requirement requirements/dev.txt
	@touch $@

$(READY): $(PINNED) pyproject.toml
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@
