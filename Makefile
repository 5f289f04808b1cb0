# make install   create .venv and install everything that the other targets need
# make demo      train four small models on the sources of Python's library and compare them
# make test      what CI runs
# make lint      style and types
# make bench     measure the kernels beside other implementations and the limits of this machine (about five minutes)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: install demo test lint bench

install: $(INSTALLED)

# torch comes first, and by its pinned version: without the pin pip may choose another build of it.
$(INSTALLED): pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/*)
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("Lavagna needs Python 3.11 or newer, and $(PYTHON) is %d.%d; set PYTHON=..." % v[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch scikit-build-core nanobind cmake ninja
	$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@

demo: install
	$(BIN)/lavagna compare --demo --out runs/demo

test: install
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal

lint: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: install
	$(BIN)/python -m benchmarks
