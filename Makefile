# make reproduce   the experiments in small and their report (minutes)
# make test        lint, types, all tests
# Each makes its own .venv and installs what it needs.

PYTHON ?= python3
BIN := .venv/bin
# torch first: whatever is installed after it then finds its requirement met.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: reproduce test lint clean

reproduce: .venv/experiments
	$(BIN)/semaopt reproduce --scale quick

test: .venv/dev lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "semaopt needs Python 3.10 or newer; set PYTHON=python3.11 or the like" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(INSTALL) torch
	@touch $@

.venv/experiments: .venv/torch pyproject.toml
	$(INSTALL) --editable '.[experiments]'
	@touch $@

.venv/dev: .venv/torch pyproject.toml
	$(INSTALL) --editable '.[experiments,molecules,dev]'
	@touch $@ .venv/experiments

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
