"""Torch's threads and Python's."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from deepbasis.engine import device as devices
from deepbasis.fitting.train import Execution
from support.choosing import easy, small
from support.runs import fit


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("rows", "changes", "threads"), [(100, {}, 1), (2_300, {}, 1), (2_300, {"inner": 20_000, "members": 1}, 3)], ids=str
)
def test_small_products_take_one_thread_and_give_the_others_back(rows: int, changes: Any, threads: int) -> None:
    seen: list[int] = []
    told = Execution(progress=lambda report: seen.append(torch.get_num_threads()))
    fit(small(epochs=1, **changes), *easy(rows), told)
    assert seen[0] == threads
    assert set(seen) == {threads, 1}  # kernels and a straight line have one
    assert torch.get_num_threads() == 3


def bits(rows: int, n_jobs: int | str, torch_threads: int, **changes: Any) -> tuple[Any, ...]:
    """Everything that a fit has found."""
    torch.set_num_threads(torch_threads)
    model = small(n_jobs=n_jobs, method="dbk-silu", **changes).fit(*easy(rows))
    values = [value.tolist() for one in model.fitted_.models for value in one.state_dict().values()]
    histories = [[numbers.tolist() for numbers in history.values()] for history in model.history_]
    return values, histories, model.calibration_, model.validation_


@pytest.mark.parametrize("rows", [100, 600], ids=["one stack", "members in threads"])
def test_a_model_is_the_same_to_the_last_bit_with_any_number_of_threads(rows: int) -> None:
    """Members are trained in pairs, whoever trains them, and all else has one thread up to 2,000 rows."""
    several = {"members": 5, "epochs": 2}
    expected = bits(rows, 1, 3, **several)
    for n_jobs, threads in ((2, 3), ("auto", 3), ("auto", 1)):
        assert bits(rows, n_jobs, threads, **several) == expected


@pytest.mark.slow
def test_members_of_a_long_table_are_the_same_with_any_number_of_threads() -> None:
    """But torch calibrates them with all that it may have, and sums in another order with another number of them."""
    several = {"members": 5, "epochs": 2}
    expected = bits(2_300, 1, 3, **several)[:2]
    for n_jobs, threads in ((2, 3), ("auto", 3), ("auto", 1)):
        assert bits(2_300, n_jobs, threads, **several)[:2] == expected
    for n_jobs in (1, 2, 3):
        assert bits(2_300, n_jobs, 3, **several) == bits(2_300, n_jobs, 1, **several)


@pytest.mark.slow
def test_large_products_depend_on_the_number_of_threads_and_on_nothing_else() -> None:
    """torch sums in another order with another number of threads: what is the same is the model of a number."""
    large = {"members": 1, "epochs": 1, "inner": 20_000}
    by_one, by_two = (bits(2_300, jobs, 3, **large) for jobs in (1, 2))
    assert bits(2_300, 1, 2, **large) == bits(2_300, "auto", 1, **large) == by_one
    assert bits(2_300, 2, 1, **large) == bits(2_300, "auto", 2, **large) == by_two


def test_fits_that_overlap_give_the_threads_back_when_the_last_has_ended() -> None:
    first, second = devices.torch_threads(1), devices.torch_threads(1)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert torch.get_num_threads() == 1
    second.__exit__(None, None, None)
    assert torch.get_num_threads() == 3


FIRST_CALLS = """
from concurrent.futures import ThreadPoolExecutor
import numpy as np, torch
from deepbasis import DeepBasisRegressor
torch.set_num_threads(1)
rng = np.random.default_rng(0)
X, new = rng.normal(size=(400, 6)), rng.normal(size=(7, 6))
model = DeepBasisRegressor(
    method="dbk-silu", members=1, epochs=5, rank=64, width=64, blocks=2, random_state=0, device="cpu"
).fit(X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=400))
expected = model.predict_interval(new)
for _ in range(5):
    with ThreadPoolExecutor(1) as pool:
        assert np.array_equal(pool.submit(model.predict_interval, new).result(), expected)
"""


@pytest.mark.slow
def test_the_first_call_of_a_new_thread_computes_with_as_many_threads_as_the_others() -> None:
    """Its last bits differed: MKL took all cores until torch had told it the number in this thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FIRST_CALLS],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


FORKED = """
import numpy as np, torch
from joblib import Parallel, delayed
from deepbasis import DeepBasisRegressor
torch.set_num_threads(2)
X = np.random.default_rng(0).normal(size=(20_000, 3))
model = DeepBasisRegressor(
    method="dbk-silu", members=2, epochs=2, rank=8, width=64, blocks=1, random_state=0, device="cpu"
).fit(X[:200], X[:200, 0])
expected = model.predict(X)
found = Parallel(n_jobs=2, backend="multiprocessing")(delayed(model.predict)(X) for _ in range(2))
assert all(np.allclose(one, expected, rtol=1e-6, atol=1e-6) for one in found)
print(torch.get_num_threads())
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_predicts_though_its_parent_computed_with_several_threads() -> None:
    """It hung: OpenMP waits for threads that a fork does not take along."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], env=environment, capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.returncode) == ("2\n", 0), done.stderr
