"""method="auto": what there is to choose from, and how each is trained."""

from dataclasses import replace
from typing import Any

import pytest
from deepbasis.planning import candidates
from deepbasis.recipes import RECIPES, weights_for

from deepbasis import DeepBasisRegressor, planning
from support.choosing import DEEP, KERNELS, easy, small

pytestmark = pytest.mark.usefixtures("one_thread", "few_exact_steps")


@pytest.mark.parametrize(
    ("changes", "rows", "expected"),
    [
        ({}, 2, [DEEP, *KERNELS]),
        ({}, 2_000, [DEEP, *KERNELS]),
        ({}, 2_001, [DEEP]),
        ({"members": 7, "patience": 3, "learning_rate": 1e-4, "epochs": 5, "compile": True}, 100, [DEEP, *KERNELS]),
        ({"calibrate": True}, 100, [DEEP, *({**kernel, "calibrate": True} for kernel in KERNELS)]),
        ({"calibrate": False}, 100, [DEEP, *KERNELS]),
        ({"objective": "mml"}, 100, [DEEP]),
        ({"embedding": "fourier"}, 100, [DEEP]),
        ({"embedding": "none"}, 100, [DEEP, *KERNELS]),
        ({"objective": "dppgp"}, 100, [DEEP]),
        ({"recipe": "paper"}, 2, [DEEP]),
        ({"method": "dbk-silu"}, 100, [DEEP]),
        ({"method": "sv-rbf"}, 100, [{"method": "sv-rbf"}]),
        ({"method": "dnn"}, 10**6, [{"method": "dnn"}]),
    ],
    ids=str,
)
def test_candidates(changes: dict[str, Any], rows: int, expected: list[dict[str, Any]]) -> None:
    assert candidates(DeepBasisRegressor(**changes), rows, 10) == expected


def test_a_linear_kernel_is_not_tried_on_more_columns_than_basis_functions() -> None:
    """An exact step costs the cube of both."""
    for columns, expected in ((8, [DEEP, *KERNELS]), (9, [DEEP, KERNELS[0]])):
        assert candidates(small(), 100, columns) == [*expected]


def test_auto_is_the_default() -> None:
    assert DeepBasisRegressor().method == "auto"


@pytest.mark.parametrize(("most", "rows"), [(99, [90]), (100, [90, 100, 100])])
def test_a_kernel_is_trained_on_all_rows(
    monkeypatch: pytest.MonkeyPatch, runs: list[dict[str, Any]], most: int, rows: list[int]
) -> None:
    """Nothing has to stop it: what it has not seen it is then asked about by its posterior without these rows."""
    monkeypatch.setattr(planning, "RECIPES", {"default": replace(RECIPES["default"], small_rows=most, exact_steps=5)})
    X, y = easy(100)
    model = small().fit(X, y)
    assert [len(run["data"]) for run in runs] == rows
    assert model.rows_ == 100
    runs.clear()
    small().fit(X[:60], y[:60], X_val=X[60:], y_val=y[60:])  # but not on rows to validate on that were given
    assert {len(run["data"]) for run in runs} == {60}


def test_each_candidate_is_trained_in_its_own_way(runs: list[dict[str, Any]]) -> None:
    X, y = easy()
    small(patience=3, learning_rate=1e-4, members=3, epochs=8).fit(X, y)
    deep, shallow, other = (run["settings"] for run in runs)
    assert [len(run["members"]) for run in runs] == [3, 1, 1]
    assert shallow == other
    assert (deep.objective, deep.corrected, deep.learning_rate, deep.patience) == ("dppgp", False, 1e-4, 3)
    assert (shallow.objective, shallow.corrected, shallow.learning_rate, shallow.patience) == ("mml", True, 0.05, 5)
    assert (deep.epochs, shallow.epochs) == (8, 10)
    assert (deep.average, shallow.average) == (0.995, None)
    assert deep.precision == shallow.precision == "float64"
    assert runs[1]["data"] is runs[2]["data"]
    assert runs[0]["validation"] is runs[1]["validation"] is runs[2]["validation"]


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ("dppgp", [(a, b) for a in (0.0, 0.01, 0.1, 1.0) for b in (0.0, 0.01, 0.1, 1.0)]),
        ("dppgp-detached", [(a, b) for a in (0.0, 0.01, 0.1, 1.0) for b in (0.0, 0.01, 0.1, 1.0)]),
        ("ppgp", [(0.0, b) for b in (0.0, 0.01, 0.1, 1.0)]),
        ("elbo", [(0.0, 1.0)]),
        ("mml", [(0.0, 0.0)]),
        ("mse", [(0.0, 0.0)]),
    ],
)
def test_weights_are_those_that_the_objective_has(objective: str, expected: list[tuple[float, float]]) -> None:
    assert weights_for(RECIPES["paper"], objective, "auto", "auto") == expected
