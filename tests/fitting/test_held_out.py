"""How much each row that is held out counts."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray

from deepbasis import DeepBasisRegressor
from deepbasis.engine.batches import Rows
from deepbasis.engine.members import Ensemble
from deepbasis.fitting.held_out import limit_copies
from deepbasis.gp.calibration import calibrate

pytestmark = pytest.mark.usefixtures("one_thread")


def rows(counts: list[int], weight: list[float] | None = None) -> Rows:
    """Input k has so many copies; its targets differ."""
    x = torch.repeat_interleave(torch.arange(len(counts), dtype=torch.float32), torch.tensor(counts))[:, None]
    return Rows(x, torch.arange(len(x), dtype=torch.float32), None if weight is None else torch.tensor(weight))


def say(given: Rows) -> list[float]:
    """Of each input, relative to the first."""
    weight = torch.ones_like(given.y) if given.weight is None else given.weight
    of_input = torch.zeros(int(given.x.max()) + 1).index_add_(0, given.x[:, 0].long(), weight)
    return (of_input / of_input[0]).tolist()


@pytest.mark.parametrize("given", [rows([1, 1, 1]), rows([2, 2, 2]), rows([1, 2, 3]), rows([7])], ids=str)
def test_without_an_input_of_many_copies_nothing_changes(given: Rows) -> None:
    assert limit_copies(given, 3.0) is given


def test_none_changes_nothing() -> None:
    given = rows([1, 1, 1, 1, 96])
    assert limit_copies(given, None) is given


def test_an_input_counts_for_three_average_ones_at_most() -> None:
    given = rows([1] * 8 + [92])
    limited = limit_copies(given, 3.0)
    assert say(limited) == pytest.approx([1.0] * 8 + [4.0], rel=1e-6)  # 3 * (8 + 4) / 9
    assert torch.equal(limited.x, given.x)
    assert torch.equal(limited.y, given.y)
    assert limited.weight is not None
    assert limited.weight.dtype == given.y.dtype


@pytest.mark.parametrize(
    "counts", [[1] * 7 + [10_000] * 3, [1] * 67 + [10_000] * 33, [1, 2, 4, 8, 16, 32, 64], [5, 900]]
)
def test_many_inputs_of_many_copies_are_held_to_the_average_that_this_leaves(counts: list[int]) -> None:
    limited = torch.tensor(say(limit_copies(rows(counts), 3.0)), dtype=torch.float64)
    before = torch.tensor(counts) / counts[0]
    cut = limited < before * (1.0 - 1e-6)
    assert float(limited.max() / limited.mean()) <= 3.0 + 1e-6
    torch.testing.assert_close(limited[~cut], before[~cut].double(), rtol=1e-6, atol=0.0)
    if bool(cut.any()):
        torch.testing.assert_close(limited[cut], 3.0 * limited.mean().expand(int(cut.sum())), rtol=1e-5, atol=0.0)


def test_minus_zero_is_zero() -> None:
    given = rows([30, 1, 1, 1, 1, 1, 1, 1])
    given.x[0] = -0.0
    assert say(limit_copies(given, 2.0))[:2] == pytest.approx([1.0, 3.0 / 7.0])  # 2 * (7 + 7/3) / 8 = 7/3


@pytest.mark.parametrize("most", [1.5, 3.0])
def test_a_row_of_weight_k_is_as_good_as_k_copies(most: float) -> None:
    counts = [1, 2, 1, 40, 3, 1, 1, 1, 1, 1]
    weighted = rows([1] * len(counts), [float(count) for count in counts])
    assert say(limit_copies(rows(counts), most)) == pytest.approx(say(limit_copies(weighted, most)), rel=1e-6)


def test_rows_of_weight_zero_are_not_there() -> None:
    given = rows([1, 9, 1, 1], [1.0, *[1.0] * 9, 1.0, 0.0])
    limited = limit_copies(given, 1.5)
    assert say(limited) == pytest.approx([1.0, 2.0, 1.0, 0.0], rel=1e-6)  # 1.5 * (1 + 2 + 1) / 3


# --- in a fit


def table(copies: int, inputs: int = 40, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Some inputs, and one with many copies, whose targets are all but the same."""
    generator = np.random.default_rng(seed)
    X = np.concatenate([generator.normal(size=(inputs, 2)), np.zeros((copies, 2))])
    y = np.concatenate([X[:inputs, 0] + generator.normal(size=inputs), 1e-3 * generator.normal(size=copies)])
    return X, y


def small(**changes: Any) -> DeepBasisRegressor:
    settings = {"members": 1, "epochs": 4, "rank": 8, "width": 8, "blocks": 1, "random_state": 0, "device": "cpu"}
    return DeepBasisRegressor(**{**settings, "method": "dbk-silu", **changes})


def test_copies_neither_select_nor_calibrate_alone() -> None:
    """Ten times as many copies of one input hardly move the scales; without the bound they are all there is."""
    X, y = table(0, inputs=200, seed=1)

    def tail(copies: int, **changes: Any) -> float:
        model = small(**changes).fit(X, y, X_val=table(copies)[0], y_val=table(copies)[1])
        assert model.calibration_ is not None
        return model.calibration_.mean_scale

    few, many = tail(400), tail(4_000)
    assert many == pytest.approx(few, rel=0.1)
    paper = {"recipe": "paper", "calibrate": True, "alpha": 0.1, "beta": 0.1}
    assert tail(4_000, **paper) != pytest.approx(tail(400, **paper), rel=0.1)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_fit_selects_and_calibrates_on_limited_copies_and_scores_all_rows(tmp_path: Path, streamed: bool) -> None:
    """The scores are those of the rows as they are: half of all rows are copies, which count one by one."""
    for name, (X, y) in {"train": table(0, inputs=200, seed=1), "aside": table(400)}.items():
        (tmp_path / name).mkdir()
        pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y}).to_parquet(tmp_path / name / "part.parquet")
    model = small().fit_dataset(tmp_path / "train", "y", validation=tmp_path / "aside", stream=streamed)
    X, y = table(400)
    scores = model.evaluate(pd.DataFrame({"a": X[:, 0], "b": X[:, 1]}), y)
    assert model.validation_["crps"] == pytest.approx(scores["crps"], rel=1e-5)
    dtype = next(model.fitted_.models[0].parameters()).dtype
    x = torch.from_numpy(model.fitted_.preprocessor.transform(pd.DataFrame({"a": X[:, 0], "b": X[:, 1]}))).to(dtype)
    given = Rows(x, torch.from_numpy(model.fitted_.target.transform(y)).to(dtype))
    plain = Ensemble(model.fitted_.models, dtype=dtype).predict(x)
    limited = limit_copies(given, 3.0)
    assert model.calibration_.scales == pytest.approx(calibrate(plain, limited.y, limited.weight).scales, rel=1e-3)
    assert model.calibration_.scales != pytest.approx(calibrate(plain, given.y).scales, rel=1e-2)
