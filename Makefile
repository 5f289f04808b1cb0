# make install   create .venv and install everything that the other targets need
# make demo      train four models of a million parameters on the sources of Python's library and compare them
# make test      what CI runs
# make lint      style and types
# make sanitize  run the kernels under the sanitizers for addresses and undefined behaviour
# make bench     measure the kernels beside other implementations and the limits of this machine (about five minutes)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: install demo test lint sanitize bench

install: $(INSTALLED)

# torch comes first, and by its pinned version: without the pin pip may choose another build of it.
$(INSTALLED): pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/*/*)
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

# An environment of its own holds the sanitized build and borrows everything else. The sanitizer for addresses must be
# loaded before Python; Python's own leaks at its end are not ours.
SANITIZED := build/sanitized
SITE := import sysconfig; print(sysconfig.get_path("purelib"))
SETS := from lavagna import native; print(*native.module().instruction_sets())
CXX ?= c++

sanitize: install
	$(BIN)/python -m venv $(SANITIZED)
	$(BIN)/python -c '$(SITE)' > $$($(SANITIZED)/bin/python -c '$(SITE)')/borrowed.pth
	LAVAGNA_REQUIRE_NATIVE=1 $(SANITIZED)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --no-build-isolation --no-deps --force-reinstall --config-settings=build-dir=$(SANITIZED)/objects \
	  --config-settings=cmake.define.LAVAGNA_SANITIZE=ON .
	set -e; \
	export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1; \
	export LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so.6)"; \
	sets=$$($(SANITIZED)/bin/python -c '$(SETS)'); \
	for set in $$sets; do \
	  echo "sanitized kernels on $$set"; \
	  LAVAGNA_CPU_ISA=$$set $(SANITIZED)/bin/python -m pytest -m subset \
	    -k 'cpu or test_shapes or elementwise or skinny_linear or rms_norm' --numprocesses auto --dist worksteal; \
	done

bench: install
	$(BIN)/python -m benchmarks
