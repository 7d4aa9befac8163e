"""Small tables: members that hold out different rows, and what these rows together are for."""

import functools
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from deepbasis.estimator import FitWarning
from deepbasis.planning import folds_of
from deepbasis.recipes import RECIPES
from deepbasis.validating import joined, joined_predictions
from numpy.typing import NDArray

from deepbasis import DeepBasisRegressor, choosing, estimator, planning
from deepbasis.engine.batches import Rows
from deepbasis.errors import NumericalError
from deepbasis.gp.calibration import calibrate
from deepbasis.gp.predictive import GaussianMixture
from deepbasis.tables.resident import Table

Floats = NDArray[np.float64]

pytestmark = pytest.mark.usefixtures("one_thread", "few_exact_steps")


def small(**changes: Any) -> DeepBasisRegressor:
    settings = {"members": 4, "epochs": 12, "rank": 8, "width": 8, "blocks": 1, "random_state": 0, "device": "cpu"}
    return DeepBasisRegressor(**{**settings, "method": "dbk-silu", "learning_rate": 3e-2, **changes})


def easy(rows: int = 80, seed: int = 0) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3))
    return X, np.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.normal(size=rows)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Rows, Rows]]:
    """The members, the rows to fit and the rows held out of each call of the engine."""
    genuine = estimator.train
    seen: list[tuple[Any, Rows, Rows]] = []

    def noted(build: Any, members: Any, data: Rows, validation: Rows, *more: Any, **options: Any) -> Any:
        seen.append((members, data, validation))
        return genuine(build, members, data, validation, *more, **options)

    monkeypatch.setattr(estimator, "train", noted)
    return seen


def rows_of(table: Table) -> set[tuple[float, ...]]:
    return set(map(tuple, np.column_stack([table.X, table.y]).tolist()))


# --- cutting a table


def test_each_row_is_held_out_once() -> None:
    X, y = easy(83)
    folds = Table(X, y).folds(4)
    assert [len(outside.y) for _, outside in folds] == pytest.approx([83 / 4] * 4, abs=1)
    assert set.union(*(rows_of(outside) for _, outside in folds)) == rows_of(Table(X, y))
    for inside, outside in folds:
        assert len(inside.y) + len(outside.y) == 83
        assert not rows_of(inside) & rows_of(outside)


def test_neither_order_nor_weights_for_copies_change_the_folds() -> None:
    X, y = easy(40)
    count = np.random.default_rng(0).integers(1, 4, size=40)
    order = np.random.default_rng(1).permutation(count.sum())
    weighted = Table(X, y, count.astype(float)).folds(4)
    repeated = Table(np.repeat(X, count, axis=0)[order], np.repeat(y, count)[order]).folds(4)
    assert [rows_of(outside) for _, outside in weighted] == [rows_of(outside) for _, outside in repeated]


def test_a_group_is_on_one_side() -> None:
    X, y = easy(200)
    groups = np.random.default_rng(0).integers(0, 12, size=200)
    for inside, outside in Table(X, y, None, groups).folds(4):
        assert inside.groups is not None
        assert outside.groups is not None
        assert not set(inside.groups.tolist()) & set(outside.groups.tolist())


@pytest.mark.parametrize(
    ("sizes", "held_out"),
    [([90, 10], {10}), ([50, 50], {50}), ([60, 39, 1], {39, 40}), ([49, 49, 1, 1], {49, 50})],
    ids=str,
)
@pytest.mark.parametrize("seed", range(3))
def test_neither_most_rows_nor_a_few_are_held_out(sizes: list[int], held_out: set[int], seed: int) -> None:
    """Which of the groups come to lie side by side depends on the rows."""
    X, y = easy(100, seed)
    folds = Table(X, y, None, np.repeat(np.arange(len(sizes)), sizes)).folds(4)
    assert 1 <= len(folds) <= 2
    assert {len(outside.y) for _, outside in folds} <= held_out


# --- who holds out what


@pytest.mark.parametrize(
    ("changes", "rows", "expected"),
    [
        ({}, 2, 4),
        ({}, 2_000, 4),
        ({"method": "pp-dkl"}, 100, 4),
        ({"members": 2}, 100, 4),
        ({}, 2_001, 1),
        ({"members": 1}, 100, 1),
        ({"validation_fraction": 0.1}, 100, 1),
        ({"method": "sv-rbf"}, 100, 1),
        ({"recipe": "paper"}, 100, 1),
    ],
    ids=str,
)
def test_where_members_hold_out_different_rows(changes: dict[str, Any], rows: int, expected: int) -> None:
    assert folds_of(DeepBasisRegressor(**changes), rows) == expected


@pytest.mark.parametrize(("members", "turns"), [(2, [1, 1]), (4, [1, 1, 1, 1]), (6, [2, 2, 1, 1])])
def test_every_member_has_a_part_of_the_rows_to_hold_out(
    runs: list[tuple[Any, Rows, Rows]], members: int, turns: list[int]
) -> None:
    X, y = easy()
    model = small(members=members).fit(X, y)
    assert [len(own) for own, _, _ in runs] == turns
    assert len({member.seed for own, _, _ in runs for member in own}) == members
    assert len(model.models_) == len(model.history_) == len(model.noise_) == members
    everything = set(map(tuple, model.preprocessor_.transform(X).tolist()))
    held_out = [set(map(tuple, outside.x.tolist())) for _, _, outside in runs]
    for (_, inside, _), outside in zip(runs, held_out, strict=True):
        assert set(map(tuple, inside.x.tolist())) == everything - outside
    assert sum(map(len, held_out)) == len(set.union(*held_out)) == pytest.approx(len(y) * len(turns) / 4, abs=1)


def test_given_rows_to_validate_on_are_those_of_all(runs: list[tuple[Any, Rows, Rows]]) -> None:
    X, y = easy()
    small().fit(X[:60], y[:60], X_val=X[60:], y_val=y[60:])
    assert [(len(own), len(inside), len(outside)) for own, inside, outside in runs] == [(4, 60, 20)]


# --- what the rows held out are for


@pytest.mark.parametrize("members", [4, 6])
def test_all_rows_held_out_calibrate_and_score(runs: list[tuple[Any, Rows, Rows]], members: int) -> None:
    """Each as it is predicted by the members that have not seen it."""
    X, y = easy()
    model = small(members=members).fit(X, y)
    everyone = model.models_.copy()
    lots = []
    for own, _, outside in runs:
        with torch.no_grad():
            terms = [everyone.pop(0)(outside.x) for _ in own]
        lots.append(
            GaussianMixture(torch.stack([t.mean for t in terms]), torch.stack([t.var + t.noise for t in terms]))
        )
    held_out = joined([outside for _, _, outside in runs])
    predicted = joined_predictions(lots)
    expected = calibrate(predicted, held_out.y)
    assert model.calibration_ is not None
    np.testing.assert_allclose(model.calibration_.scales, expected.scales, rtol=1e-6)
    nll = -expected.apply(predicted).log_prob(held_out.y).mean().item() + np.log(model.target_.scale)
    assert model.validation_["nll"] == pytest.approx(nll, rel=1e-6)


@pytest.mark.parametrize(("counts", "common"), [([1, 1], 1), ([2, 1], 1), ([3, 2, 3], 2)])
def test_predictions_of_some_members_each_are_joined_as_they_are(counts: list[int], common: int) -> None:
    """Of as many members as each lot has."""
    generator = torch.Generator().manual_seed(0)
    lots = [
        GaussianMixture(
            torch.randn(count, 5, generator=generator, dtype=torch.float64),
            torch.rand(count, 5, generator=generator, dtype=torch.float64) + 0.1,
        )
        for count in counts
    ]
    y = torch.linspace(-1, 1, 5, dtype=torch.float64)
    found = joined_predictions(lots).log_prob(y.repeat(len(counts)))
    some = [GaussianMixture(lot.means[:common], lot.variances[:common]) for lot in lots]
    torch.testing.assert_close(found, torch.cat([lot.log_prob(y) for lot in some]))


def test_a_kernel_is_scored_on_rows_that_its_posterior_has_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the dense GP given the other rows; and in the end given all."""
    monkeypatch.setattr(choosing, "is_as_good", lambda *of: True)
    X, y = easy(60)
    model = small(method="auto").fit(X, y)
    assert model.method_.startswith("sv-rbf")
    gp, scale = model.models_[0].double(), model.target_.scale

    def dense(known: Table, new: Floats) -> tuple[Floats, Floats]:
        with torch.no_grad():
            old, there = (gp.features(torch.from_numpy(model.preprocessor_.transform(x))) for x in (known.X, new))
            Sigma = old.phi @ old.phi.mT + gp.noise() * torch.eye(len(known.y), dtype=torch.float64)
            k = there.phi @ old.phi.mT
            target = torch.from_numpy(model.target_.transform(known.y)) - gp.mean
            mean = gp.mean + k @ torch.linalg.solve(Sigma, target)
            var = there.prior_var - (k @ torch.linalg.inv(Sigma) * k).sum(-1) + there.correction + gp.noise()
        return mean.numpy() * scale + model.target_.mean, var.numpy() * scale**2

    told = [(dense(inside, outside.X), outside.y) for inside, outside in Table(X, y).folds(4)]
    nll = [0.5 * ((z - mean) ** 2 / var + np.log(2.0 * np.pi * var)) for (mean, var), z in told]
    assert model.validation_["nll"] == pytest.approx(np.concatenate(nll).mean(), rel=1e-5)
    mean, var = dense(Table(X, y), X[:9] + 0.1)
    np.testing.assert_allclose(model.predict(X[:9] + 0.1, return_std=True), (mean, np.sqrt(var)), rtol=1e-5)


@pytest.mark.parametrize("state", [3, None, "RandomState"])
def test_members_differ_and_a_seed_decides_them(state: Any) -> None:
    X, y = easy()
    one, other = (
        small(random_state=np.random.RandomState(3) if state == "RandomState" else state).fit(X, y) for _ in range(2)
    )
    assert np.array_equal(one.predict(X), other.predict(X)) == (state is not None)
    assert len({model.noise().item() for model in one.models_}) == 4


def test_a_dnn_has_the_variance_of_rows_that_it_has_not_seen(runs: list[tuple[Any, Rows, Rows]]) -> None:
    X, y = easy()
    model = small(method="dnn", calibrate=False).fit(X, y)
    for one, (_, _, outside) in zip(model.models_, runs, strict=True):
        with torch.no_grad():
            left = (outside.y - one(outside.x).mean).square().mean()
        assert one.noise().item() == pytest.approx(float(left), rel=1e-5)


def test_a_fit_of_all_steps_has_several_passes_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the default does it, but for their number."""
    recipe = replace(RECIPES["default"], small_steps=100, epochs=1)
    monkeypatch.setattr(planning, "RECIPES", {"default": recipe})
    X, y = easy(200)
    model = small(epochs="auto", learning_rate="auto").fit(X, y)
    assert {len(history["validation"]) for history in model.history_} == {10}
    assert model.validation_["nll"] < model.validation_["nll_constant"] - 0.1
    assert model.evaluate(*easy(200, 1))["nll"] < model.validation_["nll"] + 0.2


# --- what goes wrong


def test_a_kernel_that_cannot_predict_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*arguments: Any) -> None:
        raise NumericalError("not positive")

    monkeypatch.setattr(choosing, "leave_out", failing)
    assert small(method="auto").fit(*easy()).method_ == "dbk-silu"


def test_a_second_ctrl_c_ends_it_at_once(pressing: Callable[..., Any]) -> None:
    """Only an interrupt that the engine has waited for leaves a model."""

    def abrupt() -> None:
        raise KeyboardInterrupt

    pressing(2, 3, abrupt)
    with pytest.raises(KeyboardInterrupt):
        small(verbose=True).fit(*easy())


def test_a_part_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = easy()
    genuine, calls = DeepBasisRegressor._train, []

    def failing(self: DeepBasisRegressor, *arguments: Any) -> Any:
        calls.append(True)
        if len(calls) in bad:
            raise NumericalError("no member could be trained: tried")
        return genuine(self, *arguments)

    monkeypatch.setattr(DeepBasisRegressor, "_train", failing)
    bad = {1, 3}
    model = small().fit(X, y)
    assert len(model.models_) == len(model.history_) == 2
    assert np.isfinite(model.predict(X)).all()
    calls.clear()
    bad = {1, 2, 3, 4}
    with pytest.raises(NumericalError, match="tried"):
        small().fit(X, y)


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def power_failure() -> None:
    raise RuntimeError("the power failed")


@pytest.mark.parametrize("part", [0, 2])
def test_an_interrupt_leaves_the_parts_so_far(pressing: Callable[..., Any], part: int) -> None:
    bar = pressing(part, 3, ctrl_c)
    X, y = easy()
    with pytest.warns(FitWarning, match="interrupted") as seen:
        model = small(method="auto", verbose=True).fit(X, y)
    assert len([warning for warning in seen if "interrupted" in str(warning.message)]) == 1
    assert bar.begun == part
    assert model.method_ == "dbk-silu"
    assert [len(history["validation"]) for history in model.history_] == [12] * part + [3]
    assert np.isfinite(model.predict(X, True)).all()


@pytest.mark.parametrize("part", [0, 2])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pressing: Callable[..., Any], part: int
) -> None:
    """Each part has a checkpoint of its own: of those that had ended nothing is done twice."""
    monkeypatch.setattr(estimator, "train", functools.partial(estimator.train, checkpoint_seconds=0.0))
    X, y = easy()
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    table.assign(y=y).to_parquet(tmp_path / "t.parquet")
    expected = small().fit(table, y)
    arguments = {"stream": False, "checkpoint": tmp_path / "c"}
    pressing(part, 5, power_failure)
    with pytest.raises(RuntimeError, match="power"):
        small(verbose=True).fit_dataset(tmp_path / "t.parquet", "y", **arguments)
    bar = pressing()
    resumed = small(verbose=True).fit_dataset(tmp_path / "t.parquet", "y", **arguments)
    np.testing.assert_array_equal(resumed.predict(table, True), expected.predict(table, True))
    assert resumed.validation_ == expected.validation_
    assert [epoch for begun, epoch in bar.seen if begun == part] == list(range(5, 13))
    assert not [epoch for begun, epoch in bar.seen if begun < part]
    assert {file.name for file in tmp_path.iterdir()} == {"t.parquet", "c.1", "c.2", "c.3", "c.4"}
