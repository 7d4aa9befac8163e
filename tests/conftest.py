"""Shapes and dtypes of every annotated function are checked while the tests run, and only then.

torch.compile cannot trace through those checks. Tests marked `compiled` therefore run in a second pytest without them,
which `test_compiled.py` starts.
"""

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import pytest
import torch

import support.shapes

CHECK_SHAPES = os.environ.get("DEEPBASIS_CHECK_SHAPES", "1") == "1"
if CHECK_SHAPES and find_spec("beartype"):
    support.shapes.install()

import support.own  # noqa: E402  before a test registers a name of its own

SEVERAL_PROCESSES = {"workers", "two_workers", "three_workers"}
"""Fixtures whose tests are all slow: each process imports torch, and two cores have two tests to run already."""


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    away = [item for item in items if bool(item.get_closest_marker("compiled")) == CHECK_SHAPES]
    no_gpu = pytest.mark.skip(reason="no CUDA device here")
    items[:] = [item for item in items if item not in away]
    config.hook.pytest_deselected(items=away)
    for item in items:
        if SEVERAL_PROCESSES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("cuda") and not torch.cuda.is_available():
            item.add_marker(no_gpu)


@pytest.fixture(scope="session", autouse=True)
def imports_are_no_garbage() -> Iterator[None]:
    """A full collection need not go through all that was imported."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tables this small gain nothing from a second thread, and on a busy machine lose much by it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def two_workers() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a script, or with "-m" a module, at two workers on this machine."""

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [*launcher, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    return run


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(scope="session")
def few_exact_steps() -> str:
    """The name of a recipe with five steps of exact training."""
    from support.recipes import FEW_STEPS  # after the hook above

    return FEW_STEPS


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
    support.shapes.forget()
