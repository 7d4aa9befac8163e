"""Small tables: members that hold out different rows, and what these rows together are for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from deepbasis import DeepBasisRegressor
from deepbasis.errors import NumericalError
from deepbasis.fitting.held_out import Fold, join_rows
from deepbasis.fitting.train import Execution, Runner
from deepbasis.gp.calibration import calibrate
from deepbasis.gp.predictive import mixture
from support.choosing import kernel, network
from support.recipes import DEFAULT, FEW_STEPS, only, recipe
from support.runs import Watch, as_model, ctrl_c, fit, power_failure, prepared, watched
from support.splits import Table

Floats = NDArray[np.float64]

pytestmark = pytest.mark.usefixtures("one_thread")


def small(**changes: Any) -> DeepBasisRegressor:
    settings = {"members": 4, "epochs": 12, "rank": 8, "width": 8, "blocks": 1, "random_state": 0, "device": "cpu"}
    settings |= {"embedding": "none"}
    return DeepBasisRegressor(**{**settings, "method": "dbk-silu", "learning_rate": 3e-2, **changes})


def easy(rows: int = 80, seed: int = 0) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3))
    return X, np.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.normal(size=rows)


def folds_of(model: DeepBasisRegressor, X: Floats, y: Floats, **more: Any) -> list[Fold]:
    _, plan, data = prepared(model, X, y, **more)
    return data.folds(plan)


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


@pytest.mark.parametrize(("members", "parts"), [(2, 2), (4, 4), (6, 4)])
def test_every_member_has_a_part_of_the_rows_to_hold_out(members: int, parts: int) -> None:
    """All are trained together."""
    X, y = easy()
    fitted, watch = watched(small(members=members), X, y)
    assert (watch.trainings, watch.reports[0].members) == (1, members)
    assert len(fitted.models) == len(fitted.history) == len(fitted.noise) == members
    assert len({round(float(noise), 12) for noise in fitted.noise}) == members
    everything = set(map(tuple, fitted.preprocessor.transform(X).tolist()))
    folds = folds_of(small(members=members), X, y)[:parts]
    held_out = [set(map(tuple, fold.held_out.x.tolist())) for fold in folds]
    for fold, outside in zip(folds, held_out, strict=True):
        assert set(map(tuple, fold.data.x.tolist())) == everything - outside
    assert sum(map(len, held_out)) == len(set.union(*held_out)) == pytest.approx(len(y) * parts / 4, abs=1)


def test_given_rows_to_validate_on_are_those_of_all() -> None:
    X, y = easy()
    given = {"X_val": X[60:], "y_val": y[60:]}
    assert [(len(fold.data), len(fold.held_out)) for fold in folds_of(small(), X[:60], y[:60], **given)] == [(60, 20)]
    _, watch = watched(small(), X[:60], y[:60], **given)
    assert (watch.trainings, watch.reports[0].members) == (1, 4)


# --- what the rows held out are for


@pytest.mark.parametrize("members", [4, 6])
def test_all_rows_held_out_calibrate_and_score(members: int) -> None:
    """Each as it is predicted by the members that have not seen it."""
    X, y = easy()
    model = small(members=members).fit(X, y)
    folds = folds_of(model, X, y)
    parts = []
    for k, fold in enumerate(folds):
        with torch.no_grad():
            mine = [one.predict(fold.held_out.x) for one in model.fitted_.models[k::4]]
        parts.append(mixture(mine[: members // 4]))  # as many as every fold has
    held_out = join_rows([fold.held_out for fold in folds])
    predicted = parts[0].followed_by(parts[1:])
    expected = calibrate(predicted, held_out.y)
    assert model.calibration_ is not None
    np.testing.assert_allclose(model.calibration_.scales, expected.scales, rtol=1e-6)
    nll = -expected.apply(predicted).log_prob(held_out.y).mean().item() + np.log(model.fitted_.target.scale)
    assert model.validation_["nll"] == pytest.approx(nll, rel=1e-6)


def dense(model: DeepBasisRegressor, known: Table, new: Floats) -> tuple[Floats, Floats]:
    """Mean and variance of the GP that was chosen, at new rows, given others."""
    gp, scale = model.fitted_.models[0].double(), model.fitted_.target.scale
    weight = torch.ones(len(known.y)) if known.weight is None else torch.from_numpy(known.weight)
    with torch.no_grad():
        old, there = (gp.features(torch.from_numpy(model.fitted_.preprocessor.transform(x))) for x in (known.X, new))
        Sigma = old.phi @ old.phi.mT + torch.diag(gp.noise() / weight)
        k = there.phi @ old.phi.mT
        target = torch.from_numpy(model.fitted_.target.transform(known.y)) - gp.mean
        mean = gp.mean + k @ torch.linalg.solve(Sigma, target)
        var = there.prior_var - (k @ torch.linalg.inv(Sigma) * k).sum(-1) + there.correction + gp.noise()
    return mean.numpy() * scale + model.fitted_.target.mean, var.numpy() * scale**2


def told(model: DeepBasisRegressor, splits: list[tuple[Table, Table]]) -> float:
    """The mean NLL of rows, each given those of the other side."""
    losses, weights = [], []
    for inside, outside in splits:
        mean, var = dense(model, inside, outside.X)
        losses.append(0.5 * ((outside.y - mean) ** 2 / var + np.log(2.0 * np.pi * var)))
        weights.append(np.ones(len(outside.y)) if outside.weight is None else outside.weight)
    return float(np.average(np.concatenate(losses), weights=np.concatenate(weights)))


def test_a_kernel_is_scored_on_rows_that_its_posterior_has_not_seen() -> None:
    """Against the dense GP given the other rows; and in the end given all."""
    X, y = easy(252)
    model = small(method="auto", recipe=FEW_STEPS, learning_rate=1e-9).fit(X, y)
    assert model.method_.startswith("sv-rbf")
    assert not model.plan_.candidates[1].trained_apart
    assert model.validation_["nll"] == pytest.approx(told(model, Table(X, y).folds(4)), rel=1e-5)
    mean, var = dense(model, Table(X, y), X[:9] + 0.1)
    np.testing.assert_allclose(model.predict(X[:9] + 0.1, return_std=True), (mean, np.sqrt(var)), rtol=1e-5)


@pytest.mark.parametrize("how", ["each row once", "copies", "a row that most is about"])
def test_a_line_is_scored_on_rows_whose_copies_it_has_not_seen_either(how: str) -> None:
    """Each row given all others, if all rows differ and each is held out; otherwise those that it is not held out with.

    A row of more than half of the weight is not held out, but the others are predicted given it too.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 20))
    y = X[:, 0] + 0.5 * rng.normal(size=40)
    weight = np.where(np.arange(40) == 7, 60.0, 1.0) if how == "a row that most is about" else None
    if how == "copies":
        X, y = np.repeat(X, 3, axis=0), np.repeat(y, 3)
    model = small(method="auto", recipe=only("linear"), learning_rate=1e-9).fit(X, y, sample_weight=weight)
    assert model.method_ == "linear"
    table, n = Table(X, y, weight), np.arange(len(y))
    splits = [(table.rows(n != k), table.rows(n == k)) for k in n] if how == "each row once" else table.folds(4)
    assert model.validation_["nll"] == pytest.approx(told(model, splits), rel=1e-5)


@pytest.mark.parametrize("method", ["dbk-silu", "sv-rbf"])
def test_no_member_sees_the_rows_that_it_holds_out(method: str) -> None:
    """What they are makes a difference to the others alone."""
    X, y = easy()
    _, plan, data = prepared(small(method="auto", recipe=FEW_STEPS), X, y)
    folds, runner = data.folds(plan), Runner(plan, data.preprocessor.width)
    candidate = next(one for one in plan.candidates if one.architecture.method == method)
    changed = torch.where(torch.from_numpy(data.held_out[1]), 3.0, data.encoded.y)
    others = replace(data, encoded=replace(data.encoded, y=changed))
    one, other = (runner.train(candidate, [1, 2, 3, 4], *some.by_turns(folds, 4)) for some in (data, others))
    same = [
        all(torch.equal(a, b) for a, b in zip(mine.parameters(), theirs.parameters(), strict=True))
        for mine, theirs in zip(one.models, other.models, strict=True)
    ]
    assert same == [False, method == "sv-rbf", False, False]  # a network's best epoch is chosen by these rows


@pytest.mark.parametrize("state", [3, None, "RandomState"])
def test_members_differ_and_a_seed_decides_them(state: Any) -> None:
    X, y = easy()
    one, other = (
        small(random_state=np.random.RandomState(3) if state == "RandomState" else state).fit(X, y) for _ in range(2)
    )
    assert np.array_equal(one.predict(X), other.predict(X)) == (state is not None)
    assert len({model.noise().item() for model in one.fitted_.models}) == 4


def test_a_dnn_has_the_variance_of_rows_that_it_has_not_seen() -> None:
    X, y = easy()
    model = small(method="dnn", calibrate=False).fit(X, y)
    for one, fold in zip(model.fitted_.models, folds_of(model, X, y), strict=True):
        with torch.no_grad():
            left = (fold.held_out.y - one(fold.held_out.x).mean).square().mean()
        assert one.noise().item() == pytest.approx(float(left), rel=1e-5)


def test_a_fit_of_all_steps_has_several_passes_an_epoch() -> None:
    """As the default does it, but for their number."""
    few = recipe("a hundred steps", small=replace(DEFAULT.small, fewest_steps=100, epochs=1))
    X, y = easy(200)
    model = small(epochs="auto", learning_rate="auto", recipe=few).fit(X, y)
    assert {len(history["validation"]) for history in model.history_} == {10}
    assert model.validation_["nll"] < model.validation_["nll_constant"] - 0.1
    assert model.evaluate(*easy(200, 1))["nll"] < model.validation_["nll"] + 0.2


# --- what goes wrong


def test_a_kernel_that_cannot_predict_is_passed_over() -> None:
    """Its features are spoilt when its training has ended, after that of the networks."""
    factor = [1.0]

    def spoil() -> None:
        factor[0] = float("nan")

    failing = kernel("sv-cannot-predict", lambda: factor[0])
    model = small(method="auto", recipe=only(failing), learning_rate=1e-9)
    assert fit(model, *easy(300), Execution()).architecture.method == failing
    assert fit(model, *easy(300), Execution(progress=Watch(1, 10, spoil))).architecture.method == "dbk-silu"


def test_a_second_ctrl_c_ends_it_at_once() -> None:
    """Only an interrupt that the engine has waited for leaves a model."""

    def abrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(small(), *easy(), Execution(progress=Watch(0, 3, abrupt)))


def test_a_part_that_fails_is_left_out() -> None:
    X, y = easy()
    model = small(method=network("half-failing", 0.5)).fit(X, y)
    assert 0 < len(model.fitted_.models) == len(model.history_) < 4
    assert np.isfinite(model.predict(X)).all()
    with pytest.raises(NumericalError, match="no member could be trained"):
        small(method=network("all-failing", 1.0)).fit(X, y)


def test_an_interrupt_leaves_all_parts_as_they_are() -> None:
    watch = Watch(0, 3, ctrl_c)
    X, y = easy()
    fitted = fit(small(method="auto", recipe=FEW_STEPS), X, y, Execution(progress=watch))
    assert len([text for text in fitted.warnings if "interrupted" in text]) == 1
    assert watch.trainings == 1
    assert fitted.architecture.method == "dbk-silu"
    assert [len(history["validation"]) for history in fitted.history] == [3] * 4
    assert np.isfinite(as_model(fitted).predict(X, True)).all()


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    X, y = easy()
    expected = small().fit(X, y)
    kept = {"checkpoint": tmp_path / "c", "checkpoint_seconds": 0.0}
    with pytest.raises(RuntimeError, match="power"):
        fit(small(), X, y, Execution(**kept, progress=Watch(0, 5, power_failure)))
    watch = Watch()
    resumed = fit(small(), X, y, Execution(**kept, progress=watch))
    np.testing.assert_array_equal(as_model(resumed).predict(X, True), expected.predict(X, True))
    assert resumed.validation == expected.validation_
    assert [report.epoch for report in watch.of(0)] == list(range(5, 13))
    assert watch.trainings == 1
    assert {file.name for file in tmp_path.iterdir()} == {"c"}
