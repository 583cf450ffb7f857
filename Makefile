# `make demo` or `make test` is the first command to type: each makes .venv by itself.
# Nothing is installed again until pyproject.toml changes.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for name in python3.11 python3 python3.12 python3.13; do \
    "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
        && echo "$$name" && break; done)

# Three files run at a time, those of several processes first: these often wait. The
# equality matrix, whose modules share processes, counts as one (tests/conftest.py).
PARALLEL := -n 3 --dist loadfile --no-loadscope-reorder
EVERYTHING := $(PARALLEL) $(addprefix tests/,distributed unit malformed architecture)

# What the oldest TensorFlow and Keras of pyproject.toml must pass: the patches, and how
# two processes train, by TensorFlow's collectives and by Horovod's in turn.
OLDEST_TESTS := $(PARALLEL) $(addprefix tests/distributed/test_,strategy.py \
    equality_fit.py equality_optimizers.py) tests/unit/compat tests/unit/strategies

.PHONY: help demo test test-all test-slow test-gpu test-oldest lint types docs notebook bench package clean

help: ## list what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/examples.installed ## train on one process, then on two: how many times as fast?
	$(BIN)/python examples/demo.py

# TESTS is what to hand to pytest instead: make test TESTS="tests/unit -k cluster".
test: $(VENV)/horovod.built ## run the tests: every engine, every option, in minutes
ifdef TESTS
	$(BIN)/python -m pytest $(TESTS)
else
	$(BIN)/python -m pytest -m "not slow and not gpu" $(EVERYTHING)
endif

test-all: test test-slow test-oldest ## run every test, the oldest versions too

test-slow: $(VENV)/horovod.built ## run what `make test` leaves to `make test-all`
	$(BIN)/python -m pytest -m slow $(EVERYTHING)

test-gpu: $(VENV)/test.installed ## run the tests that need a graphics card
	@$(BIN)/python -c 'import sys, tensorflow as tf; \
	    gpus = tf.config.list_physical_devices("GPU"); \
	    print(f"TensorFlow finds {len(gpus)} GPUs."); sys.exit(not gpus)'
	$(BIN)/python -m pytest -m gpu tests/distributed/test_on_gpu.py

test-oldest: ## run a part of the tests with the oldest TensorFlow and Keras
	PIP_CONSTRAINT=tests/oldest.txt $(MAKE) test VENV=.venv-oldest \
	    TESTS='$(or $(TESTS),-m "not slow" $(OLDEST_TESTS))'

lint: $(VENV)/dev.installed ## check style and imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/dev.installed ## check types
	@mkdir -p $(VENV)/types && ln -sfn ../../cli $(VENV)/types/tfdist_cli
	$(BIN)/mypy

# The variable silences the theme's word about its successor; CONTRIBUTING.md has it.
docs: $(VENV)/docs.installed ## build the documentation as a site, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The site is in site/. To read it, with its search, which needs a server:" \
	    "$(BIN)/python -m http.server -b 127.0.0.1 -d site 8000," \
	    "then open http://127.0.0.1:8000. site/index.html opens as a file, too."

notebook: $(VENV)/docs.installed $(VENV)/examples.installed ## run the notebook; its output stays in it
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/jupyter nbconvert --execute --to notebook \
	    --ExecutePreprocessor.coalesce_streams=True \
	    --ExecutePreprocessor.record_timing=False --inplace examples/two_processes.ipynb

bench: $(VENV)/examples.installed ## measure the all-reduce and the training speed
	$(BIN)/tfdist bench allreduce
	$(BIN)/python benchmarks/training.py

# In an empty environment, with the first program of the README.
package: $(VENV)/dev.installed ## build wheel and sdist, install the wheel and train with it
	rm -rf build dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	"$(PYTHON)" -m venv build/venv
	build/venv/bin/python -m pip install --quiet dist/*.whl
	awk '/^```/ { inside = /python/ && !n++; next } inside' README.md >build/train.py
	cd build && venv/bin/tfdist --version
	cd build && venv/bin/tfdist config build -H node1:4,node2:4 --to sbatch
	cd build && venv/bin/tfdist run -np 2 train.py

clean: ## delete .venv and every cache
	rm -rf $(VENV) .venv-oldest build dist site *.egg-info .mypy_cache .ruff_cache \
	    .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/made:
	@[[ -n "$(PYTHON)" ]] || { echo "tfdist needs Python 3.11 or newer, and none was" \
	    "found on PATH. Install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tfdist" \
	    "needs Python 3.11 or newer. Received: PYTHON=$(PYTHON)." \
	    "Name another: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make" \
	    "a virtual environment: its modules venv and ensurepip are not installed." \
	    "On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	"$(PYTHON)" -m venv --clear $(VENV)
	@touch $@

# One stamp per set of extras; each holds what the one before it holds.
$(VENV)/%.installed: pyproject.toml $(VENV)/made
	@echo "Installing tfdist[$*] into $(VENV); the first time, TensorFlow takes minutes."
	$(BIN)/python -m pip install --quiet --editable ".[$*]"
	@touch $@

# Compiled for the TensorFlow that is there; nothing is done if that is so already. Without
# a compiler the tests that need Horovod are skipped, but in CI a skip would be a failure.
$(VENV)/horovod.built: $(VENV)/test.installed
	@if $(BIN)/tfdist horovod install; then touch $@; \
	elif [[ "$${CI:-}" == true ]]; then exit 1; \
	else echo "Without Horovod, the tests that need it are skipped." >&2; fi

.venv-oldest/test.installed: tests/oldest.txt
