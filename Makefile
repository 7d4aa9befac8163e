# Each target sets up what it needs: a .venv from pyproject.toml with constraints.txt, remade only when one of them changes.
# With LOCKED=1, as in continuous integration, from .ci/requirements.lock: the same packages, checked by their hashes. The lock is
# complete, hence --no-deps: pip would otherwise look for newer files of what has an extra (coverage[toml]), and refuse them.
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
# What runs with the lowest versions of the dependencies: where they matter most.
LOWEST := tests/tables tests/test_storage.py tests/fitting/test_mixed_tables.py tests/fitting/test_scikit_learn.py
LOCK   := .ci/requirements.lock
PYTEST := OMP_NUM_THREADS=1 $(RUN) -m pytest --numprocesses 2 --dist worksteal

.PHONY: demo test test-slow test-kernels test-all coverage check format bench smoke lock docs release lowest skpro clean

$(STAMP): pyproject.toml constraints.txt $(LOCK)
	$(PYTHON) -m venv $(VENV)
ifdef LOCKED
	$(RUN) -m pip install --quiet --require-hashes --no-deps --only-binary :all: --requirement $(LOCK)
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

test-kernels: $(STAMP)  ## the fused kernels, in Triton's interpreter
	TRITON_INTERPRET=1 $(PYTEST) tests/engine/test_fused.py

# An environment of its own, of a few packages, and after them those of .venv.
build/skpro/.installed: .ci/skpro.txt $(STAMP)
	rm -rf build/skpro && $(PYTHON) -m venv build/skpro
	build/skpro/bin/python -m pip install --quiet --no-deps --requirement .ci/skpro.txt
	$(RUN) -c "import sysconfig; print('$(CURDIR)/src', sysconfig.get_path('purelib'), sep='\n')" \
	  > "$$(build/skpro/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/after.pth"
	touch $@

skpro: build/skpro/.installed  ## the adapter for skpro by skpro's own tests, beside the pandas that it needs
	OMP_NUM_THREADS=1 build/skpro/bin/python -m pytest tests/interop/test_skpro.py

test-all: test test-slow test-kernels  ## every test

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
	$(RUN) benchmarks/fuzz.py
	$(RUN) benchmarks/trust_far.py

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
	$(RUN) benchmarks/quality_time.py --quick
	$(RUN) benchmarks/drawn_tables.py --quick
	$(RUN) benchmarks/categories.py --quick
	$(RUN) benchmarks/exact.py --quick
	$(RUN) benchmarks/speed.py --quick
	$(RUN) benchmarks/likelihood_cost.py --quick
	$(RUN) benchmarks/costs.py --quick
	$(RUN) benchmarks/time_limit.py --quick
	$(RUN) benchmarks/distributed.py --quick
	$(RUN) benchmarks/out_of_core.py --quick
	$(RUN) benchmarks/memory.py --quick
	$(RUN) benchmarks/soak.py --quick
	$(RUN) benchmarks/fuzz.py --quick tables
	$(RUN) benchmarks/trust.py --quick
	$(RUN) benchmarks/trust_cross.py --quick
	$(RUN) benchmarks/trust_gaps.py --quick
	$(RUN) benchmarks/trust_copies.py --quick
	$(RUN) benchmarks/trust_far.py --quick
	$(RUN) benchmarks/bayesopt.py --quick
	$(RUN) benchmarks/export.py --quick
	$(RUN) benchmarks/updates.py --quick

docs: $(STAMP)    ## the site, in build/docs: the gallery is run, and a warning is an error
	OMP_NUM_THREADS=1 $(RUN) -m sphinx --fail-on-warning --keep-going --quiet -E -b html -d build/doctrees docs build/docs
	$(RUN) -m sphinx --fail-on-warning --quiet -b doctest -d build/doctrees -D plot_gallery=False docs build/doctest

release: $(STAMP) ## build wheel and sdist into dist/, check them, and use the wheel in an environment of its own
	rm -rf dist build/wheel
	$(RUN) -m build --no-isolation --outdir dist .
	$(RUN) -m twine check --strict dist/*
	$(RUN) .ci/check_tag.py
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	cd build && OMP_NUM_THREADS=1 wheel/bin/python ../.ci/try_wheel.py
	build/wheel/bin/python -m pip install --quiet --constraint constraints.txt "$$(ls dist/*.whl)[cli]"
	cd build && OMP_NUM_THREADS=1 wheel/bin/python ../.ci/try_wheel.py cli

lowest: $(STAMP)  ## the package with the lowest versions that pyproject.toml allows
	rm -rf build/lowest && mkdir -p build && $(RUN) .ci/lowest.py > build/lowest.txt
	$(PYTHON) -m venv build/lowest
	build/lowest/bin/python -m pip install --quiet --constraint build/lowest.txt ".[cli,plots]" pytest pytest-timeout hypothesis polars
	cd build && OMP_NUM_THREADS=1 lowest/bin/python ../.ci/try_wheel.py cli
	OMP_NUM_THREADS=1 build/lowest/bin/python -m pytest -m "not slow" -W ignore::DeprecationWarning $(LOWEST)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
