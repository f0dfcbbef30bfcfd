# `make parity` and `make test` set up all they need in .venv; each alone is enough on a fresh machine.
# PYTHON=/path/to/python picks the interpreter, ARGS="..." goes to run_parity.py, pytest or the benchmark.
SHELL := /bin/bash
BOOT := $(or $(PYTHON),python3)
VENV := .venv/bin/python

# The user's own paths must not leak in. Tests run in a process a core, hence one thread in each. They start
# hundreds of processes, so that Python has to keep its bytecode.
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE
test test-full: export OMP_NUM_THREADS := 1
# Tests of a group (`xdist_group`) share a process. In the order of collection, short tests come last.
PYTEST := $(VENV) -m pytest -n auto --maxprocesses 8 --dist loadgroup --no-loadscope-reorder

.PHONY: parity test test-full lint bench setup clean

parity: setup
	@$(VENV) run_parity.py $(ARGS)

# `test` and `test-full` run every test once between them: pyproject.toml and tests/selection.py have the marks.
test: lint
	@$(PYTEST) -m "not full" $(ARGS)

test-full: setup
	@$(PYTEST) -m full $(ARGS)

bench: setup
	@$(VENV) portable/benchmarks/run.py $(ARGS)

lint: setup
	@$(VENV) -m ruff check .
	@$(VENV) -m mypy
	@$(VENV) .venv/bin/lint-imports --no-cache --no-logo

setup:
	@$(BOOT) -c 'import sys; sys.exit(sys.version_info < (3, 8))' \
	  || { echo "$(BOOT) is missing or too old. Name another: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(BOOT) -I tools/setup_env.py $(PYTHON)

clean:
	rm -rf .venv .pytest_cache .ruff_cache .mypy_cache .hypothesis portable/build portable/src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
