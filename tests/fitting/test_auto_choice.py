"""method="auto": a network, or on a small table a shallow kernel: of two the likelier, if the validation rows agree."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import make_friedman1

from deepbasis import DeepBasisRegressor
from deepbasis.engine.batches import Rows
from deepbasis.engine.checkpoint import Outcome
from deepbasis.engine.members import Member
from deepbasis.fitting.criteria import is_as_good, schwarz_criterion
from deepbasis.fitting.train import Trained
from deepbasis.gp.predictive import Gaussian
from support.choosing import DEEP, KERNELS, SHALLOW, TAKING, Floats, assert_same, easy, small
from support.recipes import DEFAULT, only, recipe
from support.splits import Table

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("chosen", ["dbk-silu", "sv-rbf", "sv-rbf-linear"])
def test_auto_is_the_fit_of_what_it_has_chosen(chosen: str) -> None:
    X, y = easy()
    X_val, y_val = easy(20, 1)
    changes = DEEP if chosen == "dbk-silu" else {**SHALLOW, "method": chosen}
    alone = small(**{**TAKING[chosen], **changes}).fit(X, y, X_val=X_val, y_val=y_val)
    model = small(**TAKING[chosen]).fit(X, y, X_val=X_val, y_val=y_val)
    assert model.method_ == chosen
    assert len(model.fitted_.models) == len(model.history_) == len(model.noise_) == (2 if chosen == "dbk-silu" else 1)
    assert (model.calibration_ is None) == (chosen != "dbk-silu")
    assert_same(model, alone, X)
    np.testing.assert_array_equal(model.predict_quantiles(X, [0.1, 0.9]), alone.predict_quantiles(X, [0.1, 0.9]))
    np.testing.assert_array_equal(model.sample_functions(3, 0)(X), alone.sample_functions(3, 0)(X))
    assert model.evaluate(X, y) == alone.evaluate(X, y)
    assert model.get_params() == small(**TAKING[chosen]).get_params()


def dense_gp(model: DeepBasisRegressor, table: Table, X_new: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation of the GP with kernel phi phi', and what phi misses of its own, given these rows."""
    gp, scale = model.fitted_.models[0].double(), model.fitted_.target.scale
    weight = torch.ones(len(table.y)) if table.weight is None else torch.from_numpy(table.weight)
    with torch.no_grad():
        old, new = (gp.features(torch.from_numpy(model.fitted_.preprocessor.transform(X))) for X in (table.X, X_new))
        Sigma = old.phi @ old.phi.mT + torch.diag(gp.noise() / weight)  # k equal rows are one with less noise
        k = new.phi @ old.phi.mT
        mean = gp.mean + k @ torch.linalg.solve(
            Sigma, torch.from_numpy(model.fitted_.target.transform(table.y)) - gp.mean
        )
        var = new.prior_var - (k @ torch.linalg.inv(Sigma) * k).sum(-1) + new.correction + gp.noise()
    return mean.numpy() * scale + model.fitted_.target.mean, var.sqrt().numpy() * scale


@pytest.mark.parametrize("how", ["held out", "weighted", "given", "asked for"])
def test_a_kernel_that_is_chosen_takes_in_the_rows_that_were_held_out(how: str) -> None:
    """But none that the user gave to validate on, none twice, and not where the method was asked for."""
    X, y = easy(60)
    X_new, _ = easy(15, 2)
    weight = np.random.default_rng(0).integers(1, 4, size=60).astype(float) if how == "weighted" else None
    whole = Table(X, y, weight)
    inside, outside = whole.split(0.1)
    model = small(**{**TAKING["sv-rbf-linear"], **(SHALLOW if how == "asked for" else {})})
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
    gp = model.fitted_.models[0].double()
    with torch.no_grad():
        old, new = (torch.from_numpy(model.fitted_.preprocessor.transform(Z)) for Z in (X, X_new))
        Sigma = gp.expansion.kernel(old, old) + gp.noise() * torch.eye(len(X))
        z = torch.from_numpy(model.fitted_.target.transform(y)) - gp.mean
        mean = gp.mean + gp.expansion.kernel(new, old) @ torch.linalg.solve(Sigma, z)
    return float(
        np.abs((model.predict(X_new) - model.fitted_.target.mean) / model.fitted_.target.scale - mean.numpy()).max()
    )


def test_with_points_enough_a_kernel_is_nearly_the_exact_gp() -> None:
    """The jitter is all that is between them: a hundredth of it, a tenth of the distance or less."""
    X, y = easy(60)
    X_new, _ = easy(15, 2)
    settings = {**SHALLOW, "method": "sv-rbf", "rank": 60, "epochs": 60, "validation_fraction": 0.02}
    inside, _ = Table(X, y).split(0.02)
    distances = []
    for jitter in (1e-4, DEFAULT.shallow_jitter):
        model = small(**settings, recipe=recipe(f"jitter {jitter}", shallow_jitter=jitter, shallow_prior=False)).fit(
            X, y
        )
        distances.append(distance_to_the_exact_gp(model, inside.X, inside.y, X_new))
    assert distances[1] < 3e-4
    assert distances[1] < 0.1 * distances[0]


@pytest.mark.parametrize("method", ["sv-rbf", "sv-rbf-linear"])
def test_float32_has_digits_enough_for_the_small_jitter(method: str) -> None:
    """Tables of more than 256 rows are float32: means a thousandth of the target's spread apart at most."""
    X, y = easy(252)
    X_new, _ = easy(100, 2)
    changes = {"method": method, "objective": "mml", "members": 1, "rank": 64, "epochs": 15, "optimiser": "adamw"}
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
    plan = DeepBasisRegressor(**changes, device="cpu").plan(*easy(20))
    assert [candidate.architecture.jitter for candidate in plan.candidates] == [jitter]


def test_the_scores_are_of_the_kernel_without_the_rows_that_are_scored() -> None:
    X, y = easy(252)
    inside, outside = Table(X, y).split(0.1)
    model = small(**TAKING["sv-rbf-linear"]).fit(X, y)
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
    return "shallow" if is_as_good(says(shallow), says(deep), rows) else "deep"


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
@pytest.mark.parametrize(("seed", "calibrate"), [(0, True), pytest.param(1, True, marks=pytest.mark.slow), (2, False)])
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
    gain = np.subtract(*(fit.predict_dist(X_val).log_prob(y_val) for fit in (deep, shallow)))
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
    count = kernel.fitted_.preprocessor.width + (1 if kernel.method_ == "sv-rbf" else 2)
    return float(-2.0 * bound + count * np.log(rows))


@pytest.mark.parametrize(("table", "expected"), [(lines, "sv-rbf-linear"), (wave, "sv-rbf")])
def test_of_two_kernels_the_likelier_is_taken(
    table: Callable[[int, int], tuple[Floats, Floats]], expected: str
) -> None:
    X, y = table(60, 0)
    settings = {
        "recipe": only("sv-rbf", "sv-rbf-linear", search_steps=30),
        "learning_rate": 1e-9,
        "epochs": 30,
    }
    model = small(**settings).fit(X, y, X_val=X[:10], y_val=y[:10])
    alone = {
        changes["method"]: small(**{**settings, **changes}).fit(X, y, X_val=X[:10], y_val=y[:10]) for changes in KERNELS
    }
    assert model.method_ == expected == min(alone, key=lambda method: criterion(alone[method]))
    assert_same(model, alone[expected], X)


@pytest.mark.parametrize("method", ["sv-rbf", "sv-rbf-linear"])
def test_the_criterion_is_that_of_schwarz(method: str) -> None:
    """Half of it; a row of weight k is k rows."""
    X, y = easy(60)
    kernel = small(**{**SHALLOW, "method": method}).fit(X, y, X_val=X, y_val=y)
    for weight in (None, torch.full((60,), 0.5)):
        data = Rows(torch.zeros(60, 1), torch.zeros(60), weight)
        rows = 60 if weight is None else 30
        assert schwarz_criterion(trained(kernel), data) == pytest.approx(0.5 * criterion(kernel, rows), rel=1e-6)


def trained(kernel: DeepBasisRegressor) -> Trained:
    """What the engine gave."""
    fitted = kernel.fitted_
    history = {name: torch.from_numpy(values) for name, values in fitted.history[0].items()}
    outcome = Outcome(Member(), "finished", "", 1, 0.0, history, {})
    return Trained(
        kernel.plan_.candidates[0], fitted.architecture, (outcome,), (0,), fitted.models, fitted.device, False
    )


def test_groups_are_for_networks() -> None:
    """A kernel's likelihood takes rows of one group for independent ones, and would be far too sure of new groups."""
    X, y = easy()
    settings = TAKING["sv-rbf"]
    assert small(**settings).fit(X, y).method_ == "sv-rbf"
    assert small(**settings).fit(X, y, groups=np.arange(len(X)) // 5).method_ == "dbk-silu"


@pytest.mark.slow
@pytest.mark.parametrize(("table", "expected"), [(smooth, "kernel"), (stepped, "dbk-silu")])
def test_auto_takes_what_is_better_on_new_rows(
    table: Callable[[int, int], tuple[Floats, Floats]], expected: str
) -> None:
    """A smooth function of several columns is for the kernel; steps and a noise that varies are for the network."""
    X_new, y_new = table(1_000, 1)
    settings = {"members": 1, "rank": 32, "width": 16, "epochs": "auto", "recipe": "default"}
    network, kernel = (
        small(**{**settings, **changes}).fit(*table(300, 0)).evaluate(X_new, y_new)["nll"]
        for changes in (DEEP, SHALLOW)
    )
    model = small(**settings).fit(*table(300, 0))
    assert (model.method_ == "dbk-silu") == (expected == "dbk-silu") == (network < kernel)
    assert abs(network - kernel) > 0.1
    assert model.evaluate(X_new, y_new)["nll"] == pytest.approx(min(network, kernel), abs=0.1)


@pytest.mark.parametrize("rank", [8, 30, 64])
def test_neither_order_nor_copies_change_the_choice_or_the_model(rank: int) -> None:
    """With fewer inducing points than the 30 distinct rows, with as many, and with more asked for."""
    X, y = easy(30)
    count = np.random.default_rng(0).integers(1, 4, size=30)
    order = np.random.default_rng(1).permutation(count.sum())
    settings = {**TAKING["sv-rbf-linear"], "rank": rank, "validation_fraction": 0.3}
    weighted = small(**settings).fit(X, y, sample_weight=count)
    repeated = small(**settings).fit(np.repeat(X, count, axis=0)[order], np.repeat(y, count)[order])
    assert weighted.method_ == repeated.method_ == "sv-rbf-linear"
    np.testing.assert_allclose(weighted.predict(X, True), repeated.predict(X, True), rtol=1e-6, atol=1e-8)
    losses = [model.history_[0]["train_loss"] for model in (weighted, repeated)]
    np.testing.assert_allclose(*losses, rtol=1e-6)  # of inducing points at one place rounding would decide the ways


@pytest.mark.slow
def test_a_later_fit_chooses_anew() -> None:
    X, y = easy()
    model = small(**TAKING["sv-rbf-linear"]).fit(X, y)
    assert model.method_ == "sv-rbf-linear"
    assert model.set_params(method="dnn").fit(X, y).method_ == "dnn"
    assert model.set_params(method="auto", **TAKING["dbk-silu"]).fit(X, y).method_ == "dbk-silu"
    assert_same(model, small(**TAKING["dbk-silu"], method="dbk-silu").fit(X, y), X)


def test_a_random_state_decides_for_both() -> None:
    X, y = easy()
    one, other, third = (
        small(**TAKING["sv-rbf-linear"], random_state=np.random.RandomState(seed)).fit(X, y) for seed in (3, 3, 4)
    )
    assert one.method_ == "sv-rbf-linear"
    assert_same(one, other, X)
    assert not np.array_equal(one.predict(X), third.predict(X))


def test_numbers_fitted_to_the_judging_rows_cost_a_nat_each() -> None:
    """Networks that are a hundredth of a nat better on each of 300 rows: three nats in all, of which five are due."""
    rows = Rows(torch.zeros(300, 1), torch.zeros(300))

    def says(nll: float) -> Gaussian:
        """A Gaussian whose density at 0 has this NLL."""
        return Gaussian(torch.zeros(300), torch.full((300,), float(np.exp(2.0 * nll) / (2.0 * np.pi))))

    assert not is_as_good(says(1.01), says(1.0), rows)
    assert not is_as_good(says(1.01), says(1.0), rows, 2)
    assert is_as_good(says(1.01), says(1.0), rows, 5)
    half = Rows(rows.x, rows.y, torch.full((300,), 0.5))
    assert is_as_good(says(1.01), says(1.0), half, 2)  # they count as 150 rows


@pytest.mark.slow
@pytest.mark.parametrize("table", [lines, wave])
def test_held_out_rows_choose_between_a_line_and_the_likelier_of_the_others(
    table: Callable[[int, int], tuple[Floats, Floats]],
) -> None:
    X, y = table(80, 0)
    given = {"X_val": X[60:], "y_val": y[60:]}
    settings = {
        "recipe": recipe("thirty evaluations", search_steps=30),
        "learning_rate": 1e-9,
        "epochs": 30,
        "rank": 40,
    }
    model = small(**settings).fit(X[:60], y[:60], **given)
    kinds = [{**SHALLOW, "method": name} for name in ("sv-rbf", "sv-rbf-linear", "linear")]
    *others, line = (small(**{**settings, **kind}).fit(X[:60], y[:60], **given) for kind in kinds)
    finalists = [min(others, key=criterion), line]
    assert model.method_ == min(finalists, key=lambda one: one.validation_["nll"]).method_
