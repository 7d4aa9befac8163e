# Each target sets up what it needs: a .venv from pyproject.toml with constraints.txt, remade only when one of them changes.
# With LOCKED=1, as in continuous integration, from .ci/requirements.lock: the same packages, checked by their hashes.
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
LOCK   := .ci/requirements.lock
PYTEST := OMP_NUM_THREADS=1 $(RUN) -m pytest --numprocesses 2 --dist worksteal

.PHONY: demo test test-slow test-all coverage check format bench smoke lock clean

$(STAMP): pyproject.toml constraints.txt $(LOCK)
	$(PYTHON) -m venv $(VENV)
ifdef LOCKED
	$(RUN) -m pip install --quiet --require-hashes --only-binary :all: --requirement $(LOCK)
	$(RUN) -m pip install --quiet --no-deps --no-build-isolation --editable .
else
	$(RUN) -m pip install --quiet --upgrade pip
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
endif
	touch $@

lock: $(STAMP)    ## what continuous integration installs, with hashes: after a change of the dependencies
	$(RUN) .ci/lock.py

demo: $(STAMP)    ## the paper's 1-D example: a table of scores, and build/demo.png
	mkdir -p build
	$(RUN) -m deepbasis demo --out build

test: $(STAMP)    ## what a contributor runs: up to four minutes on two cores (each test is quickest on one thread)
	$(PYTEST) -m "not slow"

test-slow: $(STAMP)  ## the others: compiled, long and full-size tests
	$(PYTEST) -m slow

test-all: test test-slow  ## every test

coverage: $(STAMP)  ## the share of the product's lines that `make test` alone runs
	$(PYTEST) -m "not slow" --cov --cov-report=term-missing:skip-covered

check: $(STAMP)   ## format, lint, types
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy

format: $(STAMP)  ## mend what the formatter and the linter can mend
	$(RUN) -m ruff format .
	$(RUN) -m ruff check --fix .

bench: $(STAMP)   ## the committed benchmarks, at full size
	$(RUN) benchmarks/exact.py
	$(RUN) benchmarks/speed.py
	$(RUN) benchmarks/distributed.py
	$(RUN) benchmarks/out_of_core.py
	$(RUN) benchmarks/memory.py
	$(RUN) benchmarks/soak.py

smoke: $(STAMP)   ## the same, small: does every script still run?
	mkdir -p build
	$(RUN) -m deepbasis demo --quick --out build
	$(RUN) -m deepbasis reproduce step1d --quick --out build/quick/step1d
	if [ -n "$$DEEPBASIS_DATA" ]; then \
	  $(RUN) -m deepbasis reproduce uci --quick --out build/quick/uci && \
	  $(RUN) -m deepbasis reproduce ookla --quick --out build/quick/ookla && \
	  $(RUN) benchmarks/recipe.py --quick; \
	else echo "DEEPBASIS_DATA names no folder: the UCI and Ookla experiments and the recipe's ablation are left out"; fi
	$(RUN) benchmarks/quality.py --quick
	$(RUN) benchmarks/exact.py --quick
	$(RUN) benchmarks/speed.py --quick
	$(RUN) benchmarks/distributed.py --quick
	$(RUN) benchmarks/out_of_core.py --quick
	$(RUN) benchmarks/memory.py --quick
	$(RUN) benchmarks/soak.py --quick
	$(RUN) benchmarks/trust.py --quick
	$(RUN) benchmarks/bayesopt.py --quick
	$(RUN) benchmarks/export.py --quick
	$(RUN) benchmarks/updates.py --quick

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
