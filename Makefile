# make reproduce          run the experiments at the quick scale and write their report (minutes)
# make test               run the linter, the type checker and all tests except the slow ones
# make test-slow          run the slow tests: compiled steps, endurance, theorem checks, killed commands, examples, notebooks
# make test-oldest-torch  run the core tests with the oldest supported torch, in a separate environment
# make test-newest-torch  run the core tests with the newest released torch, in a separate environment
# make docs               build the documentation in site/
# make wheel              build the wheel in dist/, for any Python 3 on Linux with the glibc that its tag names
# make sdist              build the source distribution in dist/
# make lint               run the linter, the formatter's check and the type checker
# make check-version      compare TAG (v0.2.0) with the version of the package
# Each target creates its environment and installs its dependencies.

PYTHON ?= python3
SCRIPTS := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
BIN := .venv/$(SCRIPTS)
# torch is installed first, so that later installs find that requirement satisfied.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# The tests that need only torch.
CORE := tests/kernels tests/optimizers tests/baselines tests/schedules tests/losses tests/hypergradient tests/common
OLDEST := $(shell sed -n 's/^dependencies = \["torch>=\(.*\)"\]/\1/p' pyproject.toml)

.PHONY: reproduce test test-slow test-oldest-torch test-newest-torch lint docs wheel sdist check-version clean

reproduce: .venv/experiments
	$(BIN)/semaopt reproduce --scale quick

test: .venv/dev lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 -m "not slow"

test-slow: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 -m slow

test-oldest-torch: TORCH := torch==$(OLDEST).*
test-newest-torch: TORCH := torch
test-oldest-torch test-newest-torch:
	$(PYTHON) -m venv .venv-$@
	.venv-$@/$(SCRIPTS)/python -m pip install --quiet '$(TORCH)' numpy pytest pytest-xdist hypothesis expecttest 'setuptools>=77'
	.venv-$@/$(SCRIPTS)/python setup.py --quiet build_ext --inplace
	OMP_NUM_THREADS=1 .venv-$@/$(SCRIPTS)/python -m pytest --numprocesses 2 -m "not slow" $(CORE)

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open site/index.html; with search: $(BIN)/python -m http.server --directory site"

wheel: .venv/dev
	$(BIN)/python -m build --wheel --no-isolation --outdir build/wheel
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m auditwheel repair --wheel-dir dist build/wheel/*.whl

sdist: .venv/dev
	$(BIN)/python -m build --sdist --no-isolation --outdir dist

.venv/torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "the versions of constraints.txt need Python 3.11 or newer; set PYTHON=python3.11 or the like" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(INSTALL) torch
	@touch $@

# Runs need only rdkit from the extra [molecules]; torch-geometric is used only by a test of the network.
.venv/experiments: .venv/torch pyproject.toml
	$(INSTALL) --editable '.[experiments]'
	$(INSTALL) rdkit || echo "rdkit cannot be installed: the figures on molecules will be skipped" >&2
	@touch $@

.venv/dev: .venv/torch pyproject.toml
	$(INSTALL) --editable '.[experiments,molecules,docs,dev]'
	@touch $@ .venv/experiments .venv/docs

.venv/docs: .venv/torch pyproject.toml
	$(INSTALL) --editable '.[docs]'
	@touch $@

check-version:
	@$(PYTHON) -c 'import sys; sys.path.insert(0, "semaopt"); from _version import __version__ as v; \
	  sys.exit("$(TAG)" != f"v{v}" and f"the tag is $(TAG), but the version is {v}")'

clean:
	rm -rf .venv .venv-* build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
