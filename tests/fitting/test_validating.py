"""How much each row to validate on has to say."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray

from deepbasis import DeepBasisRegressor, estimator, validating
from deepbasis.engine.batches import Rows
from deepbasis.validating import fair_say

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
    assert fair_say(given, 3.0) is given


def test_none_changes_nothing() -> None:
    given = rows([1, 1, 1, 1, 96])
    assert fair_say(given, None) is given


def test_an_input_counts_for_three_average_ones_at_most() -> None:
    given = rows([1] * 8 + [92])
    judged = fair_say(given, 3.0)
    assert say(judged) == pytest.approx([1.0] * 8 + [4.0], rel=1e-6)  # 3 * (8 + 4) / 9
    assert torch.equal(judged.x, given.x)
    assert torch.equal(judged.y, given.y)
    assert judged.weight is not None
    assert judged.weight.dtype == given.y.dtype


@pytest.mark.parametrize(
    "counts", [[1] * 7 + [10_000] * 3, [1] * 67 + [10_000] * 33, [1, 2, 4, 8, 16, 32, 64], [5, 900]]
)
def test_many_inputs_of_many_copies_are_held_to_the_average_that_this_leaves(counts: list[int]) -> None:
    judged = torch.tensor(say(fair_say(rows(counts), 3.0)), dtype=torch.float64)
    before = torch.tensor(counts) / counts[0]
    cut = judged < before * (1.0 - 1e-6)
    assert float(judged.max() / judged.mean()) <= 3.0 + 1e-6
    torch.testing.assert_close(judged[~cut], before[~cut].double(), rtol=1e-6, atol=0.0)
    if bool(cut.any()):
        torch.testing.assert_close(judged[cut], 3.0 * judged.mean().expand(int(cut.sum())), rtol=1e-5, atol=0.0)


def test_minus_zero_is_zero() -> None:
    given = rows([30, 1, 1, 1, 1, 1, 1, 1])
    given.x[0] = -0.0
    assert say(fair_say(given, 2.0))[:2] == pytest.approx([1.0, 3.0 / 7.0])  # 2 * (7 + 7/3) / 8 = 7/3


@pytest.mark.parametrize("most", [1.5, 3.0])
def test_a_row_of_weight_k_is_as_good_as_k_copies(most: float) -> None:
    counts = [1, 2, 1, 40, 3, 1, 1, 1, 1, 1]
    weighted = rows([1] * len(counts), [float(count) for count in counts])
    assert say(fair_say(rows(counts), most)) == pytest.approx(say(fair_say(weighted, most)), rel=1e-6)


def test_rows_of_weight_zero_are_not_there() -> None:
    given = rows([1, 9, 1, 1], [1.0, *[1.0] * 9, 1.0, 0.0])
    judged = fair_say(given, 1.5)
    assert say(judged) == pytest.approx([1.0, 2.0, 1.0, 0.0], rel=1e-6)  # 1.5 * (1 + 2 + 1) / 3


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
def test_a_fit_selects_and_calibrates_on_what_is_fair_and_scores_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streamed: bool
) -> None:
    seen: dict[str, Any] = {}
    train, calibrate, evaluate = estimator.train, estimator.calibrate, validating.metrics.evaluate

    def noted(name: str, genuine: Any, place: int) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            given = arguments[place]
            seen[name] = given.weight if isinstance(given, Rows) else given
            return genuine(*arguments, **more)

        return call

    monkeypatch.setattr(estimator, "train", noted("select", train, 3))
    monkeypatch.setattr(estimator, "calibrate", noted("calibrate", calibrate, 2))
    monkeypatch.setattr(validating.metrics, "evaluate", noted("score", evaluate, 2))
    for name, (X, y) in {"train": table(0, inputs=200, seed=1), "aside": table(400)}.items():
        (tmp_path / name).mkdir()
        pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y}).to_parquet(tmp_path / name / "part.parquet")
    small().fit_dataset(tmp_path / "train", "y", validation=tmp_path / "aside", stream=streamed)
    assert seen["score"] is None
    say = 3.0 * 40 / (41 - 3)  # = 3 * (40 + say) / 41
    for name in ("select", "calibrate"):
        assert seen[name].unique().tolist() == pytest.approx([say / 400, 1.0], rel=1e-5)
