"""A small table takes one thread."""

from typing import Any

import pytest
import torch

from deepbasis import estimator
from deepbasis.engine import device as devices
from support.choosing import easy, small

pytestmark = pytest.mark.usefixtures("one_thread", "few_exact_steps")


@pytest.mark.parametrize(("rows", "threads"), [(100, 1), (2_300, 3)])
def test_a_small_table_takes_one_thread_and_gives_the_others_back(
    monkeypatch: pytest.MonkeyPatch, rows: int, threads: int
) -> None:
    seen: list[int] = []
    original = estimator.train

    def noted(*arguments: Any, **options: Any) -> Any:
        seen.append(torch.get_num_threads())
        return original(*arguments, **options)

    monkeypatch.setattr(estimator, "train", noted)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        small(epochs=1).fit(*easy(rows))
        assert set(seen) == {threads}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_fits_that_overlap_give_the_threads_back_when_the_last_has_ended() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        first, second = devices.one_thread(), devices.one_thread()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert torch.get_num_threads() == 1
        second.__exit__(None, None, None)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
