# make reproduce   the experiments in small and their report (minutes)
# make test        lint, types, all tests but the slow ones
# make test-slow   the slow ones: compiled steps, endurance, all theorem checks, whole commands killed, the examples
# make docs        the documentation, into site/
# Each makes its own .venv and installs what it needs.

PYTHON ?= python3
BIN := .venv/bin
# torch first: whatever is installed after it then finds its requirement met.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: reproduce test test-slow lint docs clean

reproduce: .venv/experiments
	$(BIN)/semaopt reproduce --scale quick

test: .venv/dev lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 -m "not slow"

test-slow: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 -m slow

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open site/index.html; with search: $(BIN)/python -m http.server --directory site"

.venv/torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "semaopt needs Python 3.10 or newer; set PYTHON=python3.11 or the like" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(INSTALL) torch
	@touch $@

# rdkit is all of [molecules] that a run needs; torch-geometric only checks the network against its slow twin.
.venv/experiments: .venv/torch pyproject.toml
	$(INSTALL) --editable '.[experiments]'
	$(INSTALL) rdkit || echo "rdkit cannot be installed here: the figures on molecules will be left out" >&2
	@touch $@

.venv/dev: .venv/torch pyproject.toml
	$(INSTALL) --editable '.[experiments,molecules,docs,dev]'
	@touch $@ .venv/experiments .venv/docs

.venv/docs: .venv/torch pyproject.toml
	$(INSTALL) --editable '.[docs]'
	@touch $@

clean:
	rm -rf .venv build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
