"""method="auto": a network, or on a small table a shallow kernel: of two the likelier, if the validation rows agree."""

import functools
import math
import signal
import subprocess
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from sklearn.datasets import make_friedman1

from deepbasis import DeepBasisRegressor, choosing, estimator, planning
from deepbasis.engine import devices
from deepbasis.engine.batches import Rows
from deepbasis.engine.members import Member
from deepbasis.errors import NumericalError, UnfinishedError
from deepbasis.estimator import FitWarning
from deepbasis.gp.expansion import RBF
from deepbasis.gp.predictive import Gaussian
from deepbasis.planning import candidates
from deepbasis.recipes import RECIPES, weights_for
from deepbasis.starting import starting_noise, straight_line
from deepbasis.tables.resident import Table

Floats = NDArray[np.float64]
Workers = Callable[..., subprocess.CompletedProcess[str]]

DEFAULT = RECIPES["default"]
DEEP = {"method": "dbk-silu"}
SHALLOW = {
    "method": "sv-rbf-linear",
    "objective": "mml",
    "members": 1,
    "learning_rate": "auto",
    "epochs": "auto",
    "patience": "auto",
    "compile": False,
    "calibrate": False,
}
KERNELS = [{**SHALLOW, "method": "sv-rbf"}, SHALLOW]


def small(**changes: Any) -> DeepBasisRegressor:
    """A regressor that fits in a fraction of a second, as a network or as a shallow kernel.

    Its members hold out the same rows; those that do not are in test_folds.py.
    """
    settings = {"members": 2, "epochs": 8, "rank": 8, "width": 8, "blocks": 1, "random_state": 0, "device": "cpu"}
    return DeepBasisRegressor(**{**settings, "validation_fraction": 0.1, **changes})


def easy(rows: int = 100, seed: int = 0) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3))
    return X, np.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.normal(size=rows)


pytestmark = pytest.mark.usefixtures("one_thread", "few_exact_steps")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What each call of the engine was given."""
    genuine = estimator.train
    seen: list[dict[str, Any]] = []

    def noted(build: Any, members: Any, data: Any, validation: Any, settings: Any, **more: Any) -> Any:
        seen.append(
            {"build": build, "members": members, "data": data, "validation": validation, "settings": settings, **more}
        )
        return genuine(build, members, data, validation, settings, **more)

    monkeypatch.setattr(estimator, "train", noted)
    return seen


@pytest.fixture
def prefer(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make the rows speak for a method, whatever they say."""

    def prefer(method: str) -> None:
        monkeypatch.setattr(choosing, "bic", lambda kernel, data: float(kernel.method_ != method))
        monkeypatch.setattr(choosing, "is_as_good", lambda *of: method != "dbk-silu")

    return prefer


def assert_same(model: DeepBasisRegressor, other: DeepBasisRegressor, X: Any) -> None:
    np.testing.assert_array_equal(model.predict(X, return_std=True), other.predict(X, return_std=True))
    np.testing.assert_array_equal(model.noise_, other.noise_)
    assert (model.method_, model.calibration_, model.validation_) == (
        other.method_,
        other.calibration_,
        other.validation_,
    )
    assert [list(history["validation"]) for history in model.history_] == [
        list(history["validation"]) for history in other.history_
    ]


# --- what there is to choose from


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


# --- the choice


@pytest.mark.parametrize("chosen", ["dbk-silu", "sv-rbf", "sv-rbf-linear"])
def test_auto_is_the_fit_of_what_it_has_chosen(prefer: Callable[[str], None], chosen: str) -> None:
    X, y = easy()
    X_val, y_val = easy(20, 1)
    changes = DEEP if chosen == "dbk-silu" else {**SHALLOW, "method": chosen}
    alone = small(**changes).fit(X, y, X_val=X_val, y_val=y_val)
    prefer(chosen)
    model = small().fit(X, y, X_val=X_val, y_val=y_val)
    assert model.method_ == chosen
    assert len(model.models_) == len(model.history_) == len(model.noise_) == (2 if chosen == "dbk-silu" else 1)
    assert (model.calibration_ is None) == (chosen != "dbk-silu")
    assert_same(model, alone, X)
    np.testing.assert_array_equal(model.predict_quantiles(X, [0.1, 0.9]), alone.predict_quantiles(X, [0.1, 0.9]))
    np.testing.assert_array_equal(model.sample_functions(3, 0)(X), alone.sample_functions(3, 0)(X))
    assert model.evaluate(X, y) == alone.evaluate(X, y)
    assert model.get_params() == small().get_params()


def dense_gp(model: DeepBasisRegressor, table: Table, X_new: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation of the GP with kernel phi phi', and what phi misses of its own, given these rows."""
    gp, scale = model.models_[0].double(), model.target_.scale
    weight = torch.ones(len(table.y)) if table.weight is None else torch.from_numpy(table.weight)
    with torch.no_grad():
        old, new = (gp.features(torch.from_numpy(model.preprocessor_.transform(X))) for X in (table.X, X_new))
        Sigma = old.phi @ old.phi.mT + torch.diag(gp.noise() / weight)  # k equal rows are one with less noise
        k = new.phi @ old.phi.mT
        mean = gp.mean + k @ torch.linalg.solve(Sigma, torch.from_numpy(model.target_.transform(table.y)) - gp.mean)
        var = new.prior_var - (k @ torch.linalg.inv(Sigma) * k).sum(-1) + new.correction + gp.noise()
    return mean.numpy() * scale + model.target_.mean, var.sqrt().numpy() * scale


@pytest.mark.parametrize("how", ["held out", "weighted", "given", "asked for"])
def test_a_kernel_that_is_chosen_takes_in_the_rows_that_were_held_out(prefer: Callable[[str], None], how: str) -> None:
    """But none that the user gave to validate on, none twice, and not where the method was asked for."""
    prefer("sv-rbf-linear")
    X, y = easy(60)
    X_new, _ = easy(15, 2)
    weight = np.random.default_rng(0).integers(1, 4, size=60).astype(float) if how == "weighted" else None
    whole = Table(X, y, weight)
    inside, outside = whole.split(0.1)
    model = small(**(SHALLOW if how == "asked for" else {}))
    if how == "given":
        model.fit(inside.X, inside.y, X_val=outside.X, y_val=outside.y)
    else:
        model.fit(X, y, sample_weight=weight)
    assert model.method_ == "sv-rbf-linear"
    known = inside if how in ("given", "asked for") else whole
    np.testing.assert_allclose(model.predict(X_new, True), dense_gp(model, known, X_new), rtol=1e-6)
    other = whole if known is inside else inside
    assert not np.allclose(model.predict(X_new, True), dense_gp(model, other, X_new), rtol=1e-4)


def distance_to_the_exact_gp(model: DeepBasisRegressor, X: Floats, y: Floats, X_new: Floats) -> float:
    """Of the mean, in standard deviations of the target, with the kernel that the inducing points stand for."""
    gp = model.models_[0].double()
    with torch.no_grad():
        old, new = (torch.from_numpy(model.preprocessor_.transform(Z)) for Z in (X, X_new))
        Sigma = gp.expansion.kernel(old, old) + gp.noise() * torch.eye(len(X))
        z = torch.from_numpy(model.target_.transform(y)) - gp.mean
        mean = gp.mean + gp.expansion.kernel(new, old) @ torch.linalg.solve(Sigma, z)
    return float(np.abs((model.predict(X_new) - model.target_.mean) / model.target_.scale - mean.numpy()).max())


def test_with_points_enough_a_kernel_is_nearly_the_exact_gp(monkeypatch: pytest.MonkeyPatch) -> None:
    """The jitter is all that is between them: a hundredth of it, a tenth of the distance or less."""
    X, y = easy(60)
    X_new, _ = easy(15, 2)
    changes = {
        "method": "sv-rbf",
        "objective": "mml",
        "members": 1,
        "rank": 60,
        "epochs": 60,
        "validation_fraction": 0.02,
    }
    distances = []
    for jitter in (1e-4, DEFAULT.shallow_jitter):
        recipes = {**RECIPES, "default": replace(DEFAULT, shallow_jitter=jitter)}
        monkeypatch.setattr(planning, "RECIPES", recipes)
        model = small(**changes).fit(X, y)
        inside, _ = Table(X, y).split(0.02)
        distances.append(distance_to_the_exact_gp(model, inside.X, inside.y, X_new))
    assert distances[1] < 1e-4
    assert distances[1] < 0.1 * distances[0]


@pytest.mark.parametrize("method", ["sv-rbf", "sv-rbf-linear"])
def test_float32_has_digits_enough_for_the_small_jitter(method: str) -> None:
    """Tables of more than 256 rows are float32: means a thousandth of the target's spread apart at most."""
    X, y = easy(300)
    X_new, _ = easy(100, 2)
    changes = {"method": method, "objective": "mml", "members": 1, "rank": 64, "epochs": 80}
    single, double = (small(**changes, dtype=dtype).fit(X, y) for dtype in ("float32", "float64"))
    for ours, exactly in zip(single.predict(X_new, True), double.predict(X_new, True), strict=True):
        np.testing.assert_allclose(ours, exactly, rtol=0.0, atol=2e-3 * y.std())
    losses = [model.history_[0]["train_loss"][-1] for model in (single, double)]
    assert losses[0] == pytest.approx(
        losses[1], abs=2e-3
    )  # less than Schwarz' criterion asks for a number, of 300 rows


@pytest.mark.parametrize(
    ("changes", "jitter"),
    [
        ({"method": "sv-rbf", "objective": "mml"}, 1e-6),
        ({"method": "sv-rbf-linear", "objective": "mml"}, 1e-6),
        ({"method": "sv-rbf", "objective": "mml", "recipe": "paper"}, 1e-4),
        ({"method": "sv-rbf"}, 1e-4),
        ({"method": "sv-dkl", "objective": "mml"}, 1e-4),
        ({"method": "dbk-rbf"}, 1e-4),
    ],
    ids=str,
)
def test_only_a_shallow_kernel_that_is_trained_exactly_has_the_small_jitter(
    changes: dict[str, Any], jitter: float
) -> None:
    assert planning.jitter_of(DeepBasisRegressor(**changes)) == jitter


def test_the_scores_are_of_the_kernel_without_the_rows_that_are_scored(prefer: Callable[[str], None]) -> None:
    prefer("sv-rbf-linear")
    X, y = easy(60)
    inside, outside = Table(X, y).split(0.1)
    model = small().fit(X, y)
    mean, std = dense_gp(model, inside, outside.X)
    assert model.validation_["rmse"] == pytest.approx(np.sqrt(np.mean((outside.y - mean) ** 2)), rel=1e-6)
    z = (outside.y - mean) / std
    nll = np.mean(0.5 * z**2 + np.log(std) + 0.5 * np.log(2.0 * np.pi))
    assert model.validation_["nll"] == pytest.approx(nll, rel=1e-6)
    assert model.evaluate(outside.X, outside.y)["rmse"] < model.validation_["rmse"]


def says(log_density: list[float]) -> Gaussian:
    """A prediction under which targets of 0 have these log densities, but for a constant."""
    mean = (2.0 * (10.0 - torch.tensor(log_density, dtype=torch.float64))).sqrt()
    return Gaussian(mean, torch.ones_like(mean))


def chosen(shallow: list[float], deep: list[float], weight: list[float] | None = None) -> str:
    """Which of two is taken, with these log densities of the rows held out."""
    x = torch.zeros(len(deep), 1, dtype=torch.float64)
    rows = Rows(x, x[:, 0], None if weight is None else torch.tensor(weight, dtype=torch.float64))
    return "shallow" if choosing.is_as_good(says(shallow), says(deep), rows) else "deep"


@pytest.mark.parametrize(
    ("gain", "expected"),
    [
        ([1.0, 1.0, 1.0], "deep"),
        ([-1.0, -1.0, -1.0], "shallow"),
        ([0.0, 0.0, 0.0], "shallow"),
        ([-2.0, 0.0, 4.0], "deep"),
        ([-4.0, 0.0, 2.0], "shallow"),
    ],
)
def test_the_kernel_is_taken_unless_the_networks_are_better(gain: list[float], expected: str) -> None:
    shallow = [0.5 * k for k in range(len(gain))]
    assert chosen(shallow, [a + b for a, b in zip(shallow, gain, strict=True)]) == expected


@pytest.mark.parametrize(("count", "expected"), [([4, 4, 4], "deep"), ([1, 1, 1], "deep"), ([3, 1, 1], "shallow")])
def test_a_weight_of_a_row_held_out_is_so_many_rows(count: list[int], expected: str) -> None:
    gain = [-1.0, 0.0, 2.2]
    assert chosen([0.0] * sum(count), np.repeat(gain, count).tolist()) == expected
    assert chosen([0.0] * 3, gain, [float(k) for k in count]) == expected


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_what_has_no_finite_score_is_not_taken(bad: float) -> None:
    assert chosen([0.0, bad, 0.0], [-9.0, -9.0, -9.0]) == "deep"
    assert chosen([-9.0, -9.0, -9.0], [0.0, bad, 0.0]) == "shallow"


@pytest.mark.filterwarnings("ignore:on the 40 validation rows")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("calibrate", [True, False])
def test_the_validation_rows_choose(seed: int, calibrate: bool) -> None:
    """As the fitted models predict them, each with its calibration if it has one."""
    X, y = easy(60, seed)
    X_val, y_val = easy(40, 10 + seed)
    arguments = {"random_state": seed, "calibrate": calibrate, "epochs": 20}
    model = small(**arguments).fit(X, y, X_val=X_val, y_val=y_val)
    deep, *kernels = (
        small(**{**arguments, **changes, "calibrate": calibrate}).fit(X, y, X_val=X_val, y_val=y_val)
        for changes in (DEEP, *KERNELS)
    )
    shallow = min(kernels, key=criterion)
    gain = np.subtract(*(fit.predict_dist(X_val).log_prob(torch.from_numpy(y_val)).numpy() for fit in (deep, shallow)))
    best = deep if gain.mean() > 0.0 else shallow
    assert_same(model, best, X_val)


def smooth(rows: int, seed: int) -> tuple[Floats, Floats]:
    return make_friedman1(rows, n_features=5, noise=0.3, random_state=seed)


def stepped(rows: int, seed: int) -> tuple[Floats, Floats]:
    """Four squares of two heights, and far more noise on one side."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (rows, 2))
    noise = np.where(X[:, 0] > 0, 0.5, 0.02) * rng.normal(size=rows)
    return X, np.sign(X[:, 0]) * np.sign(X[:, 1]) + noise


def lines(rows: int, seed: int) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 4))
    return X, X @ [1.0, -0.5, 0.25, 0.0] + 0.1 * rng.normal(size=rows)


def wave(rows: int, seed: int) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (rows, 1))
    return X, np.sin(4.0 * np.pi * X[:, 0]) + 0.1 * rng.normal(size=rows)


def criterion(kernel: DeepBasisRegressor, rows: int = 60) -> float:
    """Schwarz' criterion: minus twice the bound, and log n for each lengthscale, for the variance and for the slope."""
    bound = -rows * float(kernel.history_[0]["train_loss"][-1])
    count = kernel.preprocessor_.width + (1 if kernel.method_ == "sv-rbf" else 2)
    return float(-2.0 * bound + count * np.log(rows))


@pytest.mark.parametrize(("table", "expected"), [(lines, "sv-rbf-linear"), (wave, "sv-rbf")])
def test_of_two_kernels_the_likelier_is_taken(
    monkeypatch: pytest.MonkeyPatch, table: Callable[[int, int], tuple[Floats, Floats]], expected: str
) -> None:
    X, y = table(60, 0)
    monkeypatch.setattr(planning, "RECIPES", {"default": replace(RECIPES["default"], exact_steps=100)})
    monkeypatch.setattr(choosing, "is_as_good", lambda *of: True)
    model = small(epochs=1).fit(X, y, X_val=X[:10], y_val=y[:10])
    alone = {changes["method"]: small(**changes).fit(X, y, X_val=X[:10], y_val=y[:10]) for changes in KERNELS}
    assert model.method_ == expected == min(alone, key=lambda method: criterion(alone[method]))
    assert_same(model, alone[expected], X)
    data = Rows(torch.zeros(60, 1), torch.zeros(60))
    weighted = Rows(torch.zeros(2, 1), torch.zeros(2), torch.tensor([25.0, 35.0]))
    for kernel in alone.values():
        assert choosing.bic(kernel, data) == pytest.approx(0.5 * criterion(kernel), rel=1e-9)
        assert choosing.bic(kernel, weighted) == pytest.approx(0.5 * criterion(kernel), rel=1e-6)


def test_groups_are_for_networks(prefer: Callable[[str], None]) -> None:
    """A kernel's likelihood takes rows of one group for independent ones, and would be far too sure of new groups."""
    X, y = easy()
    assert len(candidates(small(), len(X), 3)) == 3
    assert candidates(small(), len(X), 3, grouped=True) == [{"method": "dbk-silu"}]
    prefer("sv-rbf")
    assert small().fit(X, y).method_ == "sv-rbf"
    assert small().fit(X, y, groups=np.arange(len(X)) // 5).method_ == "dbk-silu"


KERNEL = {"method": "sv-rbf", "objective": "mml", "members": 1, "random_state": 0, "device": "cpu"}


def experiment(noise: float) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, size=(150, 2))
    return X, np.sin(3.0 * X[:, 0]) * np.cos(2.0 * X[:, 1]) + noise * rng.normal(size=len(X))


@pytest.mark.parametrize(("noise", "trainings"), [(0.003, 2), (0.3, 1)])
def test_a_kernel_finds_how_little_noise_there_is(
    monkeypatch: pytest.MonkeyPatch, runs: list[dict[str, Any]], noise: float, trainings: int
) -> None:
    """A computer experiment: the noise starts at half of what a line leaves, thousands of times too large."""
    monkeypatch.setattr(planning, "RECIPES", RECIPES)
    model = DeepBasisRegressor(**KERNEL, rank=64, dtype="float32").fit(*experiment(noise))
    assert math.sqrt(model.noise_[0]) == pytest.approx(noise, rel=0.5)
    assert len(runs) == trainings


@pytest.mark.parametrize(
    "changes", [{"epochs": 30}, {"recipe": "paper", "epochs": 30}, {"method": "dbk-silu"}], ids=str
)
def test_nothing_else_is_trained_twice(runs: list[dict[str, Any]], changes: dict[str, Any]) -> None:
    """Neither where the number of steps was asked for, nor a network, nor as the paper does it."""
    DeepBasisRegressor(**{**KERNEL, "rank": 8, "width": 8, **changes}).fit(*experiment(0.0))
    assert len(runs) == 1


@pytest.mark.parametrize("bad", [UnfinishedError("Ctrl-C"), NumericalError("NaN"), "interrupted", "failed"], ids=str)
def test_a_second_training_that_does_not_end_well_is_as_none(monkeypatch: pytest.MonkeyPatch, bad: Any) -> None:
    monkeypatch.setattr(planning, "RECIPES", {"default": replace(RECIPES["default"], exact_steps=40)})
    X, y = experiment(0.0)
    genuine, calls = estimator.train, []

    def trained(*given: Any, **more: Any) -> Any:
        outcomes = genuine(*given, **more)
        calls.append(outcomes)
        if len(calls) == 1:
            return outcomes
        if isinstance(bad, BaseException):
            raise bad
        return [replace(outcome, status=bad) for outcome in outcomes]

    monkeypatch.setattr(estimator, "train", trained)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        model = DeepBasisRegressor(**KERNEL).fit(X, y)
    assert len(calls) == 2
    first, second = (one[0].history["noise"].numpy() for one in calls)
    np.testing.assert_array_equal(model.history_[0]["noise"], first)
    assert second[-1] < first[-1]


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


@pytest.mark.parametrize(("table", "expected"), [(smooth, "kernel"), (stepped, "dbk-silu")])
def test_auto_takes_what_is_better_on_new_rows(
    table: Callable[[int, int], tuple[Floats, Floats]], expected: str
) -> None:
    """A smooth function of several columns is for the kernel; steps and a noise that varies are for the network."""
    X_new, y_new = table(1_000, 1)
    settings = {"members": 1, "rank": 32, "width": 16, "epochs": "auto"}
    seen: dict[str, float] = {}
    genuine = DeepBasisRegressor._calibrated

    def noted(self: DeepBasisRegressor, *arguments: Any) -> Any:
        calibrated = genuine(self, *arguments)
        seen["dbk-silu" if self.method_ == "dbk-silu" else "kernel"] = self.evaluate(X_new, y_new)["nll"]
        return calibrated

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "RECIPES", RECIPES)  # with all their steps
        patch.setattr(DeepBasisRegressor, "_calibrated", noted)
        model = small(**settings).fit(*table(300, 0))
    better, worse = seen[expected], seen["kernel" if expected == "dbk-silu" else "dbk-silu"]
    assert better < worse - 0.1
    assert (model.method_ == "dbk-silu") == (expected == "dbk-silu")
    assert model.evaluate(X_new, y_new)["nll"] == pytest.approx(better, abs=0.1)


@pytest.mark.parametrize("rank", [8, 18, 64])
def test_neither_order_nor_copies_change_the_choice_or_the_model(
    monkeypatch: pytest.MonkeyPatch, prefer: Callable[[str], None], rank: int
) -> None:
    """With fewer inducing points than the 18 distinct rows to train on, with as many, and with more asked for."""
    prefer("sv-rbf-linear")
    X, y = easy(20)
    count = np.random.default_rng(0).integers(1, 4, size=20)
    order = np.random.default_rng(1).permutation(count.sum())
    monkeypatch.setattr(planning, "RECIPES", {"default": replace(RECIPES["default"], exact_steps=100)})
    settings = {"rank": rank}
    weighted = small(**settings).fit(X, y, sample_weight=count)
    repeated = small(**settings).fit(np.repeat(X, count, axis=0)[order], np.repeat(y, count)[order])
    assert weighted.method_ == repeated.method_ == "sv-rbf-linear"
    np.testing.assert_allclose(weighted.predict(X, True), repeated.predict(X, True), rtol=1e-6, atol=1e-8)
    losses = [model.history_[0]["train_loss"] for model in (weighted, repeated)]
    np.testing.assert_allclose(*losses, rtol=1e-6)  # of inducing points at one place rounding would decide the ways


def test_a_later_fit_chooses_anew(prefer: Callable[[str], None]) -> None:
    X, y = easy()
    prefer("sv-rbf-linear")
    model = small().fit(X, y)
    assert model.method_ == "sv-rbf-linear"
    assert model.set_params(method="dnn").fit(X, y).method_ == "dnn"
    prefer("dbk-silu")
    assert model.set_params(method="auto").fit(X, y).method_ == "dbk-silu"
    assert_same(model, small(method="dbk-silu").fit(X, y), X)


def test_a_random_state_decides_for_both(prefer: Callable[[str], None]) -> None:
    prefer("sv-rbf-linear")
    X, y = easy()
    one, other = (small(random_state=np.random.RandomState(3)).fit(X, y) for _ in range(2))
    assert_same(one, other, X)
    assert not np.array_equal(one.predict(X), small(random_state=np.random.RandomState(4)).fit(X, y).predict(X))


# --- where members start


def test_members_start_with_the_noise_that_the_rows_suggest(runs: list[dict[str, Any]]) -> None:
    small().fit(*easy())
    for run in runs:
        (noise,) = {member.noise for member in run["members"]}
        assert noise == pytest.approx(starting_noise(straight_line(run["data"])), rel=5e-3)
        assert run["build"](run["members"][0]).noise().item() == pytest.approx(noise, rel=1e-6)


def test_a_shallow_kernel_starts_at_rows_to_train_on(runs: list[dict[str, Any]]) -> None:
    small().fit(*easy())
    small(method="dbk-rbf").fit(*easy())
    shallow, other, deep = runs[1:]
    assert torch.equal(*(run["build"](Member(seed=5)).expansion.Z for run in (shallow, other)))
    model = shallow["build"](Member(seed=5))
    there = (model.expansion.Z[:, None] == shallow["data"].x.float()[None]).all(-1)
    assert bool((there.sum(1) == 1).all())
    assert bool((there.sum(0) <= 1).all())
    assert not torch.equal(model.expansion.Z, shallow["build"](Member(seed=6)).expansion.Z)
    Z = deep["build"](Member(seed=5)).expansion.Z  # of a network's outputs nothing is known
    assert float(Z.detach().abs().max()) <= 1.0


def test_the_paper_s_recipe_starts_as_the_paper_says(runs: list[dict[str, Any]]) -> None:
    for method in ("dbk-silu", "sv-rbf-linear"):
        small(recipe="paper", method=method, alpha=0.1, beta=0.1).fit(*easy())
        assert {member.noise for member in runs[-1]["members"]} == {1e-2}
    model = runs[-1]["build"](Member(seed=5))
    assert float(model.expansion.Z.detach().abs().max()) <= 1.0
    assert not (model.expansion.Z[:, None] == runs[-1]["data"].x.float()[None]).all(-1).any()


# --- what goes wrong


def test_a_shallow_kernel_that_fails_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, runs: list[dict[str, Any]], prefer: Callable[[str], None]
) -> None:
    def spoil(self: RBF, *arguments: Any) -> None:
        self.Z.data.fill_(float("nan"))

    X, y = easy()
    alone = small(method="dbk-silu").fit(X, y)
    prefer("sv-rbf-linear")
    monkeypatch.setattr(RBF, "start_at", spoil)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = small().fit(X, y)
    assert len(runs) == 4
    assert_same(model, alone, X)
    with pytest.raises(NumericalError, match="no member could be trained"):
        small(method="sv-rbf", objective="mml").fit(X, y)


@pytest.mark.parametrize("failing", ["sv-rbf", "sv-rbf-linear"])
def test_a_kernel_that_fails_halfway_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, prefer: Callable[[str], None], failing: str
) -> None:
    """It has a model, that of its last good step, but no likelihood to be chosen by."""
    monkeypatch.setattr(choosing, "is_as_good", lambda *of: True)
    genuine, steps = RBF.forward, []

    def forward(self: RBF, g: torch.Tensor) -> Any:
        features = genuine(self, g)
        if (self.log_slope is None) == (failing == "sv-rbf-linear"):
            return features
        steps.append(True)
        return features._replace(phi=features.phi * (1.0 if len(steps) <= 20 else float("nan")))

    monkeypatch.setattr(RBF, "forward", forward)
    model = small().fit(*easy())
    assert len(steps) > 20
    assert model.method_ == ("sv-rbf" if failing == "sv-rbf-linear" else "sv-rbf-linear")


def test_both_kernels_start_alike_whatever_the_random_state(runs: list[dict[str, Any]]) -> None:
    for state in (0, None, np.random.RandomState(0)):
        small(random_state=state).fit(*easy())
        assert runs[-1]["members"] == runs[-2]["members"]


WORKER = """
import sys
from dataclasses import replace
from deepbasis import DeepBasisRegressor, choosing, planning
from deepbasis.commands.together import working_together
planning.RECIPES = {"default": replace(planning.RECIPES["default"], exact_steps=5)}
with working_together("cpu") as team:
    choosing.bic = lambda kernel, data: float((kernel.method_ == "sv-rbf") == team.first)
    choosing.is_as_good = lambda *of: team.first
    model = DeepBasisRegressor(
        members=2, epochs=3, rank=8, width=8, blocks=1, random_state=0, device="cpu"
    ).fit_dataset(sys.argv[1], "y", stream=False, team=team)
    found = team.gather_objects((model.method_, model.validation_))
    if team.first:
        print(*sorted({method for method, _ in found}), found[0] == found[1])
"""


def test_all_workers_choose_as_the_first_does(tmp_path: Path, two_workers: Workers) -> None:
    X, y = easy()
    pd.DataFrame(np.column_stack([X, y]), columns=["a", "b", "c", "y"]).to_parquet(tmp_path / "t.parquet")
    (tmp_path / "worker.py").write_text(WORKER)
    done = two_workers(tmp_path / "worker.py", tmp_path / "t.parquet")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "sv-rbf-linear True\n"


def test_a_network_that_fails_is_an_error(runs: list[dict[str, Any]]) -> None:
    with pytest.raises(NumericalError, match="smaller learning_rate"):
        small(learning_rate=1e300).fit(*easy())
    assert len(runs) == 1


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def power_failure() -> None:
    raise RuntimeError("the power failed")


def test_an_interrupt_ends_the_trials(pressing: Callable[..., Any], runs: list[dict[str, Any]]) -> None:
    pressing(0, 3, ctrl_c)
    X, y = easy()
    with pytest.warns(FitWarning, match="interrupted") as seen:
        model = small(epochs=10_000, verbose=True).fit(X, y)
    assert len(seen) == 1
    assert len(runs) == 1
    assert model.method_ == "dbk-silu"
    assert {len(history["validation"]) for history in model.history_} == {3}
    assert np.isfinite(model.predict(X, True)).all()


@pytest.mark.parametrize(("candidate", "left"), [(1, "dbk-silu"), (2, "sv-rbf")])
def test_an_interrupt_leaves_what_was_finished_before_it(
    pressing: Callable[..., Any], prefer: Callable[[str], None], candidate: int, left: str
) -> None:
    X, y = easy()
    prefer(left)
    alone = small().fit(X, y)
    assert alone.method_ == left
    pressing(candidate, 3, ctrl_c)
    prefer("sv-rbf-linear")
    with pytest.warns(FitWarning, match="interrupted") as seen:
        model = small(verbose=True).fit(X, y)
    assert len(seen) == 1
    assert seen[0].filename == __file__
    assert_same(model, alone, X)


def test_an_interrupt_before_the_last_trial_has_a_result_is_told_too(
    monkeypatch: pytest.MonkeyPatch, prefer: Callable[[str], None]
) -> None:
    """The networks stand; the command would otherwise end as if nothing had been pressed."""
    X, y = easy()
    alone = small(method="dbk-silu").fit(X, y)
    genuine = RBF.start_at
    pressed = []

    def start_at(self: RBF, *arguments: Any) -> None:
        pressed.append(True)
        if len(pressed) == 3:  # the engine looks at a model twice before it begins
            ctrl_c()
        genuine(self, *arguments)

    monkeypatch.setattr(RBF, "start_at", start_at)
    prefer("sv-rbf-linear")
    with pytest.warns(FitWarning, match="interrupted"):
        model = small().fit(X, y)
    assert_same(model, alone, X)


@pytest.mark.parametrize("candidate", [0, 1, 2])
@pytest.mark.parametrize("chosen", ["dbk-silu", "sv-rbf-linear"])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pressing: Callable[..., Any],
    prefer: Callable[[str], None],
    candidate: int,
    chosen: str,
) -> None:
    """The checkpoint is the network's: of that nothing is done twice, and the kernels are trained again."""
    monkeypatch.setattr(estimator, "train", functools.partial(estimator.train, checkpoint_seconds=0.0))
    prefer(chosen)
    X, y = easy()
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    table.assign(y=y).to_parquet(tmp_path / "t.parquet")
    expected = small().fit_dataset(tmp_path / "t.parquet", "y", stream=False)
    assert_same(expected, small().fit(table, y), table)
    arguments = {"stream": False, "checkpoint": tmp_path / "c"}
    pressing(candidate, 3, power_failure)
    with pytest.raises(RuntimeError, match="power"):
        small(verbose=True).fit_dataset(tmp_path / "t.parquet", "y", **arguments)
    bar = pressing()
    resumed = small(verbose=True).fit_dataset(tmp_path / "t.parquet", "y", **arguments)
    assert_same(resumed, expected, table)
    left = range(3, 9) if candidate == 0 else []  # the third epoch had not been written
    assert bar.seen == [
        *((0, epoch) for epoch in left),
        *((kernel, epoch) for kernel in (1, 2) for epoch in range(1, 11)),
    ]


def test_a_checkpoint_is_found_again_where_sums_are_rounded_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last digits of the starting noise depend on the number of threads: they are no part of what a run is."""
    monkeypatch.setattr(estimator, "train", functools.partial(estimator.train, checkpoint_seconds=0.0))
    X, y = easy()
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    table.assign(y=y).to_parquet(tmp_path / "t.parquet")
    arguments = {"stream": False, "checkpoint": tmp_path / "c"}
    expected = small().fit_dataset(tmp_path / "t.parquet", "y", **arguments)
    monkeypatch.setattr(estimator, "starting_noise", lambda rows: starting_noise(rows) * (1.0 + 1e-14))
    again = small().fit_dataset(tmp_path / "t.parquet", "y", **arguments)
    np.testing.assert_allclose(again.predict(table), expected.predict(table), rtol=1e-6, atol=1e-8)


# --- threads


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
