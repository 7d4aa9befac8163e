"""The prior mean as a straight line: what it adds, what training does with it, and when half of the members have it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from sklearn.linear_model import Ridge

from deepbasis import DeepBasisRegressor
from deepbasis.engine.batches import Rows
from deepbasis.engine.members import Ensemble, Member
from deepbasis.engine.settings import settings_for
from deepbasis.engine.training import train
from deepbasis.errors import InputError
from deepbasis.fitting.start import straight_line
from deepbasis.fitting.train import Runner, draw_seeds
from deepbasis.gp import exact
from deepbasis.gp.build import build
from deepbasis.gp.model import DeepBasisGP
from support.own import METHODS
from support.recipes import FEW_STEPS
from support.runs import prepared, prepared_stream

Floats = NDArray[np.float64]

pytestmark = pytest.mark.usefixtures("one_thread")

SLOPE = (1.5, -0.25, 0.125)  # float32 has them exactly


def tensors(n: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, noise = (torch.randn(shape, dtype=torch.float64, generator=generator) for shape in ((n, 3), (n,)))
    return x, torch.sin(x[:, 0]) + 2.0 * x[:, 1] + 0.1 * noise


def line_at(x: torch.Tensor) -> torch.Tensor:
    return x @ torch.tensor(SLOPE, dtype=x.dtype)


def model_of(member: Member, method: str = "dbk-silu") -> DeepBasisGP:
    return build(method, 3, rank=6, width=8, blocks=1, noise=member.noise, slope=member.slope, seed=member.seed)


def leaning(rows: int = 2_600, seed: int = 0) -> tuple[Floats, Floats]:
    """A hill on a slope, which says 95 % of it; the last columns make it no map."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 5))
    return X, X @ [2.0, -1.0, 0.5, 0.0, 0.0] + 0.4 * np.sin(2.0 * X[:, 3]) + 0.1 * rng.normal(size=rows)


def small(**changes: Any) -> DeepBasisRegressor:
    settings = {"members": 4, "epochs": 4, "rank": 8, "width": 8, "blocks": 1, "random_state": 0, "device": "cpu"}
    return DeepBasisRegressor(**{**settings, **changes})


def slopes_of(model: DeepBasisRegressor) -> list[Any]:
    return [None if one.slope is None else one.slope.double().numpy() for one in model.fitted_.models]


# --- a model


@pytest.mark.parametrize("method", METHODS)
def test_a_slope_adds_a_line_to_the_mean_and_nothing_else(method: str, dtype: torch.dtype) -> None:
    x = tensors()[0].to(dtype)
    plain, leant = (model_of(Member(seed=3, slope=slope), method).to(dtype) for slope in ((), SLOPE))
    ours, theirs = leant(x), plain(x)
    torch.testing.assert_close(ours.mean, theirs.mean + line_at(x))
    for name in ("var", "prior_var", "correction", "kl"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name))
    assert dict(leant.named_parameters()).keys() == dict(plain.named_parameters()).keys()


@pytest.mark.parametrize("prior", [True, False])
def test_draws_lie_around_the_line(prior: bool) -> None:
    x = tensors()[0].float()
    plain, leant = (model_of(Member(slope=slope)) for slope in ((), SLOPE))
    draws = [
        model.sample_functions(5, prior=prior, generator=torch.Generator().manual_seed(1))(x)
        for model in (plain, leant)
    ]
    torch.testing.assert_close(draws[1], draws[0] + line_at(x))


def test_the_exact_posterior_is_that_of_what_the_line_leaves() -> None:
    x, y = tensors()
    plain, leant = (model_of(Member(noise=0.1, slope=slope)).double() for slope in ((), SLOPE))
    likelihoods = []
    for model, target in ((plain, y - line_at(x)), (leant, y)):
        likelihoods.append(
            exact.accumulate_gradient(model, lambda target=target: [(x[:15], target[:15]), (x[15:], target[15:])])
        )
        exact.fit_posterior(model, lambda target=target: [(x, target)])
    assert likelihoods[0] == pytest.approx(likelihoods[1], rel=1e-12)
    for mine, theirs in zip(leant.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
        assert (mine.grad is None) == (theirs.grad is None)
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad)
    torch.testing.assert_close(leant(x).mean, plain(x).mean + line_at(x))


def test_members_of_a_run_have_all_a_slope_or_none_has() -> None:
    """A stack takes its buffers from the first: others would be left out, or be missed."""
    x, y = tensors()
    settings = settings_for("dbk-silu", epochs=1, batch_size=16, precision="float64")
    for slopes in (((), SLOPE), (SLOPE, ())):
        members = [Member(seed=k, slope=slope) for k, slope in enumerate(slopes)]
        with pytest.raises(InputError, match="a slope of zeros"):
            train(model_of, members, Rows(x, y), Rows(x, y), settings)


def test_a_member_does_not_tell_all_of_its_slopes() -> None:
    assert "slope" not in repr(Member(slope=SLOPE))


@pytest.mark.parametrize("slope", [(1.0,), (1.0, 2.0, float("nan")), (1.0, 2.0, 3.0, 4.0)])
def test_a_slope_has_a_finite_number_for_each_column(slope: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="a finite number for each of 3 columns"):
        build("dbk-silu", 3, slope=slope)


# --- training


@pytest.mark.parametrize("slopes", [[SLOPE], [(0.0, 0.0, 0.0), SLOPE, SLOPE]], ids=["alone", "in a stack"])
@pytest.mark.parametrize("objective", ["dppgp", "mml"])
def test_members_with_a_line_learn_what_it_leaves(objective: str, slopes: list[tuple[float, ...]]) -> None:
    """To the last digits: the same training on y without the line, a member at a time."""
    x, y = tensors()
    settings = settings_for("dbk-silu", objective=objective, epochs=6, batch_size=16, precision="float64")
    members = [Member(seed=k, slope=slope) for k, slope in enumerate(slopes)]
    together = train(model_of, members, Rows(x[:30], y[:30]), Rows(x[30:], y[30:]), settings)
    for member, ours in zip(members, together, strict=True):
        left = y - line_at(x) if any(member.slope) else y
        plain = replace(member, slope=())
        (alone,) = train(model_of, [plain], Rows(x[:30], left[:30]), Rows(x[30:], left[30:]), settings)
        for name, value in alone.parameters.items():
            torch.testing.assert_close(ours.parameters[name], value, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(ours.history["validation"], alone.history["validation"], rtol=1e-8, atol=1e-10)
        both = [Ensemble([outcome.model(model_of)], dtype=torch.float64) for outcome in (ours, alone)]
        back = line_at(x) if any(member.slope) else 0.0
        torch.testing.assert_close(both[0].predict(x).means[0], both[1].predict(x).means[0] + back)


# --- the line


@pytest.mark.parametrize("weighted", [False, True])
def test_the_line_is_a_ridge_regression(weighted: bool) -> None:
    rng = np.random.default_rng(0)
    X, y = leaning(200)
    weight = rng.integers(1, 4, size=200).astype(float) if weighted else None
    parts = [None if part is None else torch.from_numpy(part) for part in (X, y, weight)]
    found = straight_line(Rows(*parts))  # type: ignore[arg-type]
    total = 200.0 if weight is None else weight.sum()
    expected = Ridge(alpha=1e-3 * total).fit(X, y, sample_weight=weight)
    np.testing.assert_allclose(found.slope, expected.coef_, rtol=1e-9)
    left = np.average((y - expected.predict(X)) ** 2, weights=weight)
    assert found.variance_left == pytest.approx(left, rel=1e-9)
    assert found.variance == pytest.approx(np.cov(y, aweights=weight, ddof=0), rel=1e-9)
    rows = 200.0 if weight is None else weight.sum() ** 2 / (weight**2).sum()
    assert found.share_left == pytest.approx(left / found.variance * rows / (rows - 6), rel=1e-9)


def test_many_columns_are_not_taken_for_a_line() -> None:
    """With nearly as many columns as rows, noise alone lies on a line."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((300, 285), (300,)))
    found = straight_line(Rows(x, y))
    assert found.variance_left / found.variance < 0.1 < found.share_left
    heavy = torch.where(torch.arange(300) < 30, 1e6, 1.0).double()  # thirty rows, in truth
    assert (
        straight_line(Rows(x[:, :29], y, heavy)).share_left
        > 0.1
        > straight_line(Rows(x[:, :29], 0 * y + x[:, 0])).share_left
    )
    assert straight_line(Rows(x[:200], y[:200])).share_left == np.inf
    assert straight_line(Rows(x, torch.zeros_like(y))).share_left == np.inf
    assert straight_line(Rows(x, torch.ones_like(y))).share_left > 1.0


# --- a regressor


def test_half_of_the_members_have_the_line_of_the_rows_to_fit() -> None:
    X, y = leaning()
    model = small(method="dbk-silu").fit(X, y)  # or a line alone would be taken
    assert model.trend_ == "half"
    _, plan, data = prepared(small(), X, y)
    expected = straight_line(data.folds(plan)[0].data).slope
    for k, slope in enumerate(slopes_of(model)):
        np.testing.assert_allclose(slope, expected if k % 2 else np.zeros(5), rtol=0.0, atol=1e-6)


@pytest.mark.parametrize(("times", "left"), [(1.9, 4), (2.1, 2)])
def test_members_that_a_line_has_misled_are_left_out(times: float, left: int) -> None:
    X, y = leaning(2_400)
    _, plan, data = prepared(small(epochs=1, method="dbk-silu"), X, y)
    fold, seeds = data.folds(plan)[0], draw_seeds(0, 4)
    found = Runner(plan, data.preprocessor.width).train(plan.candidates[0], seeds, fold.data, fold.selecting)
    scores = [times if any(one.member.slope) else 1.0 for one in found.outcomes]
    assert scores == [1.0, times] * 2
    judged = replace(
        found, outcomes=tuple(replace(one, best_score=s) for one, s in zip(found.outcomes, scores, strict=True))
    ).without_misled()
    assert [any(one.member.slope) for one in judged.outcomes] == ([False, True] * 2 if left == 4 else [False] * 2)
    assert len(judged.models) == len(judged.places) == left
    assert judged.places == ((0, 1, 2, 3) if left == 4 else (0, 2))


def test_a_row_of_weight_two_is_two_rows_to_the_line() -> None:
    X, y = leaning(2_400)
    weight = np.random.default_rng(1).integers(1, 3, size=len(y))
    weighted = small(epochs=1, method="dbk-silu").fit(X, y, sample_weight=weight)
    repeated = small(epochs=1, method="dbk-silu").fit(X.repeat(weight, 0), y.repeat(weight))
    assert weighted.trend_ == repeated.trend_ == "half"
    np.testing.assert_allclose(slopes_of(weighted)[1], slopes_of(repeated)[1], rtol=0.0, atol=3e-6)


@pytest.mark.parametrize(
    ("table", "changes", "trend"),
    [
        (leaning, {"members": 1}, "none"),
        (leaning, {"trend": "none"}, "none"),
        (leaning, {"recipe": "paper", "alpha": 0.1, "beta": 0.1, "members": 2}, "none"),
        (lambda: leaning(300), {}, "none"),
        (lambda: (leaning()[0], np.sin(3.0 * leaning()[0][:, 0])), {}, "none"),
        (lambda: (leaning()[0], np.ones(2_600)), {}, "none"),
    ],
    ids=["one member", "not wanted", "paper", "small", "no line", "constant"],
)
@pytest.mark.filterwarnings("ignore::deepbasis.errors.FitWarning")  # one epoch is not for predicting
def test_others_have_none(table: Any, changes: dict[str, Any], trend: str) -> None:
    model = small(**{"method": "dbk-silu", "epochs": 1, **changes}).fit(*table())
    assert model.trend_ == trend
    assert slopes_of(model) == [None] * len(model.fitted_.models)


@pytest.mark.slow
def test_beyond_the_rows_it_goes_on_along_the_line_and_half_of_it_says_that_it_does_not_know() -> None:
    X, y = leaning(4_000)
    inside = X[:, 0] < 1.0
    beyond = np.array([[4.0, 0.0, 0.0, 0.0, 0.0]])
    fitted = {
        trend: small(trend=trend, method="dbk-silu", epochs=30, calibrate=False).fit(X[inside], y[inside])
        for trend in ("none", "linear", "auto")
    }
    assert [model.trend_ for model in fitted.values()] == ["none", "linear", "half"]
    told = {trend: model.predict(beyond, return_std=True) for trend, model in fitted.items()}
    assert told["linear"][0][0] == pytest.approx(8.0, abs=0.6)
    assert told["none"][0][0] < 6.0  # it stays at what it has seen, less than 4 or so
    assert told["none"][0] < told["auto"][0] < told["linear"][0]
    assert told["auto"][1] > 2.0 * max(told["none"][1], told["linear"][1])
    np.testing.assert_allclose(
        fitted["linear"].sample_functions(50, random_state=0)(beyond).mean(), told["linear"][0][0], atol=0.3
    )


@pytest.mark.parametrize(
    "changes", [{}, {"method": "sv-rbf", "objective": "mml"}, {"method": "dnn"}, {"objective": "mml"}]
)
def test_a_line_that_was_asked_for_is_there_on_a_small_table_too(changes: dict[str, Any]) -> None:
    """Each fold has its own; with it method="auto" is a network."""
    X, y = leaning(240)
    model = small(trend="linear", recipe=FEW_STEPS, **changes).fit(X, y)
    assert model.trend_ == "linear"
    for slope in slopes_of(model):
        np.testing.assert_allclose(slope[:2] * model.fitted_.target.scale / X[:, :2].std(0), [2.0, -1.0], atol=0.1)
    assert np.corrcoef(model.predict(X), y)[0, 1] > 0.95


def test_an_unknown_trend_is_refused() -> None:
    with pytest.raises(InputError, match="trend"):
        small(trend="half").fit(*leaning(60))


# --- streams and checkpoints


def parquet(path: Path) -> pd.DataFrame:
    X, y = leaning(12_000)
    table = pd.DataFrame(X, columns=list("abcde"))
    table.assign(y=y).to_parquet(path)
    return table


def test_a_stream_has_the_line_of_its_validation_rows(tmp_path: Path) -> None:
    """These are drawn from everywhere in the table, and in memory."""
    table = parquet(tmp_path / "t.parquet")
    streamed = small(epochs=1).fit_dataset(tmp_path / "t.parquet", "y", stream=True)
    assert streamed.trend_ == "half"
    assert [slope.any() for slope in slopes_of(streamed)] == [False, True, False, True]
    slope = slopes_of(streamed)[1] * streamed.fitted_.target.scale / table.std(ddof=0).to_numpy()
    np.testing.assert_allclose(slope[[0, 1, 2, 4]], [2.0, -1.0, 0.5, 0.0], atol=0.04)
    _, _, data = prepared_stream(small(epochs=1), tmp_path / "t.parquet", "y")
    held_out = data.validation(torch.float32)
    np.testing.assert_allclose(slopes_of(streamed)[1], straight_line(held_out).slope, rtol=0.0, atol=1e-6)
    assert len(held_out) < 1_500


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::deepbasis.errors.FitWarning")  # such validation rows are not predicted well
def test_a_stream_with_validation_rows_of_their_own_has_none(tmp_path: Path) -> None:
    """They may lie elsewhere, where other slopes hold."""
    table = parquet(tmp_path / "t.parquet")
    table.assign(y=-table["a"]).to_parquet(tmp_path / "v.parquet")
    files = {"data": tmp_path / "t.parquet", "target": "y", "validation": tmp_path / "v.parquet"}
    assert small(epochs=1).fit_dataset(**files, stream=True).trend_ == "none"
    assert small(epochs=1).fit_dataset(**files, stream=False).trend_ == "half"
    with pytest.raises(InputError, match="trend='linear'"):
        small(epochs=1, trend="linear").fit_dataset(**files, stream=True)
