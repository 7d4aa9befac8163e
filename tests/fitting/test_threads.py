"""A small table takes one thread."""

from collections.abc import Iterator

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


@pytest.mark.parametrize(("rows", "threads"), [(100, 1), (2_300, 3)])
def test_a_small_table_takes_one_thread_and_gives_the_others_back(rows: int, threads: int) -> None:
    seen: list[int] = []
    fit(small(epochs=1), *easy(rows), Execution(progress=lambda report: seen.append(torch.get_num_threads())))
    assert set(seen) == {threads}
    assert torch.get_num_threads() == 3


def test_fits_that_overlap_give_the_threads_back_when_the_last_has_ended() -> None:
    first, second = devices.one_thread(), devices.one_thread()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert torch.get_num_threads() == 1
    second.__exit__(None, None, None)
    assert torch.get_num_threads() == 3
