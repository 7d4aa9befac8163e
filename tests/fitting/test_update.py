"""`update`: exact where the fit is, no change of variances where they also model noise, and all or nothing."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from deepbasis import DeepBasisClassifier, DeepBasisRegressor
from deepbasis.errors import FitWarning, InputError
from deepbasis.fitting.held_out import Fold
from deepbasis.fitting.novelty import CALIBRATION
from deepbasis.fitting.update import update_table
from deepbasis.gp import exact
from deepbasis.gp.conformal import depths
from deepbasis.gp.model import DeepBasisGP
from support.regressors import close, easy, mixed, small
from support.runs import prepared

pytestmark = pytest.mark.usefixtures("one_thread")

EXACT = {"method": "sv-rbf", "objective": "mml", "members": 2, "dtype": "float64", "calibrate": False}


def posterior(model: DeepBasisGP) -> list[torch.Tensor]:
    q = model.posterior
    return [q.m.detach().clone(), q.L().detach().clone()] if hasattr(q, "L") else [q.m.detach().clone()]


def folds_of(model: DeepBasisRegressor, X: Any, y: Any, weight: Any = None) -> list[Fold]:
    _, plan, data = prepared(model, X, y, sample_weight=weight)
    return data.folds(plan)


# ---- exact -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"method": "dbk-silu", "rank": 16}, {"method": "sv-rbf-linear"}])
def test_an_exact_fit_is_then_exact_inference_from_all_rows(changes: dict[str, Any]) -> None:
    """With weights, in two updates: each member, given the rows that it was fitted to and all new ones."""
    X, y = easy(100)
    weight = 0.5 + np.random.default_rng(1).random(100)
    model = small(**{**EXACT, **changes}).fit(X[:60], y[:60], weight[:60])
    fitted = model.fitted_
    parts = folds_of(small(**{**EXACT, **changes}), X[:60], y[:60], weight[:60])
    model.update(X[60:80], y[60:80], weight[60:80]).update(X[80:], y[80:], weight[80:])
    assert model.rows_ == 100
    x, z, w = (
        torch.from_numpy(part)
        for part in (fitted.preprocessor.transform(X[60:]), fitted.target.transform(y[60:]), weight[60:])
    )
    for k, one in enumerate(fitted.models):
        known = parts[k % len(parts)].data
        together = (torch.cat([known.x, x]), torch.cat([known.y, z]), torch.cat([known.weight, w]))
        before = posterior(one)
        exact.fit_posterior(one, lambda rows=together: [rows])
        for mine, other, was in zip(posterior(model.fitted_.models[k]), posterior(one), before, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-10)
            assert not torch.allclose(mine, was, rtol=1e-3)


@pytest.mark.slow
def test_the_kernel_of_a_small_table_learns_from_all_its_rows() -> None:
    """Its posterior is that of every row, held-out ones too: so it is after an update, and predictions are those of
    dense algebra."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (90, 1))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=90)
    model = DeepBasisRegressor(random_state=0, epochs=5, members=2, dtype="float64").fit(X[:70], y[:70])
    assert model.method_.startswith("sv-")
    fitted = model.fitted_
    model.update(X[70:], y[70:], forget=0.5)
    x, z = torch.from_numpy(fitted.preprocessor.transform(X)), torch.from_numpy(fitted.target.transform(y))
    (one,) = fitted.models
    weight = torch.where(torch.arange(90) < 70, 0.5, 1.0).double()
    with torch.no_grad():
        Phi, s = one.basis(x), one.noise()
        precision = torch.eye(Phi.shape[1]).double() + Phi.mT @ (weight[:, None] * Phi) / s
        m = torch.linalg.solve(precision, Phi.mT @ (weight * (z - one.prior_mean(x))) / s)
        mean = one.prior_mean(x) + Phi @ m
    close(model.predict(X), fitted.target.inverse(mean).numpy(), rtol=1e-8)


def test_the_elbo_goes_on_from_its_own_posterior() -> None:
    X, y = easy(90)
    model = small(method="vbll", dtype="float64", calibrate=False).fit(X[:60], y[:60])
    before = model.fitted_
    model.update(X[60:], y[60:])
    x, z = torch.from_numpy(before.preprocessor.transform(X[60:])), torch.from_numpy(before.target.transform(y[60:]))
    for one, then in zip(before.models, model.fitted_.models, strict=True):
        with torch.no_grad():
            Phi, s = one.basis(x), one.noise()
            P = torch.linalg.inv(one.posterior.L() @ one.posterior.L().mT)
            precision = P + Phi.mT @ Phi / s
            m = torch.linalg.solve(precision, P @ one.posterior.m + Phi.mT @ (z - one.prior_mean(x)) / s)
        torch.testing.assert_close(posterior(then)[0], m, rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(
            posterior(then)[1], torch.linalg.cholesky(torch.linalg.inv(precision)), rtol=1e-6, atol=1e-7
        )


# ---- everything else -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"likelihood": "student"}, {"method": "dnn"}, {"method": "pp-dkl"}])
def test_means_move_towards_the_rows_and_variances_stay(changes: dict[str, Any]) -> None:
    X, y = easy(400)
    shifted = y + 0.5
    model = small(calibrate=False, **changes).fit(X[:200], y[:200])
    before, error = model.fitted_, [np.abs(shifted[300:] - model.predict(X[300:])).mean()]
    L = [posterior(one)[1] for one in before.models] if changes.get("method") != "dnn" else []
    for _ in range(3):
        model.update(X[200:300], shifted[200:300], forget=0.5)
        error.append(np.abs(shifted[300:] - model.predict(X[300:])).mean())
    assert error == sorted(error, reverse=True)
    assert error[-1] < 0.8 * error[0]
    for one, was in zip(model.fitted_.models, L, strict=False):
        torch.testing.assert_close(posterior(one)[1], was, rtol=0, atol=0)
    close(model.noise_, before.noise, rtol=0)


def test_it_is_least_squares_by_the_predicted_variances() -> None:
    """Against numpy: (A + sum phi phi^T / v + beta I) m = (A + beta I) m_0 + sum phi (y - mean) / v; A is the fit's."""
    X, y = easy(120)
    model = small(dtype="float64", members=1, validation_fraction=0.2, calibrate=False)
    (part,) = folds_of(model, X[:80], y[:80])
    model.fit(X[:80], y[:80])
    (one,), fitted = model.fitted_.models, model.fitted_
    weight = np.random.default_rng(0).random(40)
    model.update(X[80:], y[80:], weight, forget=0.7)

    def seen(x: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        with torch.no_grad():
            return one.basis(x).numpy(), (one(x).var + one.noise()).numpy(), one.prior_mean(x).expand(len(x)).numpy()

    Phi, v, _ = seen(part.data.x)
    A = (Phi / v[:, None]).T @ Phi
    Phi, v, prior = seen(torch.from_numpy(fitted.preprocessor.transform(X[80:])))
    z, m, ridge = fitted.target.transform(y[80:]), one.posterior.m.detach().numpy(), 0.1 * np.eye(8)
    weighted = Phi * (weight / v)[:, None]
    expected = np.linalg.solve(0.7 * A + weighted.T @ Phi + ridge, 0.7 * (A + ridge) @ m + weighted.T @ (z - prior))
    close(posterior(model.fitted_.models[0])[0].numpy(), expected, rtol=1e-8)


def test_a_row_of_weight_two_is_two_rows_and_chunks_are_one_table() -> None:
    X, y = easy(160)
    one, other = (small(dtype="float64").fit(X[:100], y[:100]) for _ in range(2))
    two = [0, *range(60)]
    one.update(X[100:][two], y[100:][two])
    other.update(X[100:], y[100:], [2.0, *[1.0] * 59])
    close(one.predict(X), other.predict(X), rtol=1e-9)
    assert one.rows_ == other.rows_ + 1
    close(one.calibration_.scales, other.calibration_.scales, rtol=1e-9)


def test_censored_targets_and_steps_learn_on() -> None:
    X, y = easy(200)
    upper = np.where(np.arange(200) % 4 == 0, np.inf, y)
    model = small().fit(X[:120], y[:120], upper=upper[:120])
    before = model.evaluate(X[160:], y[160:])["nll"]
    model.update(X[120:160], y[120:160], upper=upper[120:160])
    assert model.evaluate(X[160:], y[160:])["nll"] < before + 0.05
    counts = np.random.default_rng(0).poisson(np.exp(X[:, 0]))
    rated = small(target="count").fit(X[:120], counts[:120])
    before = rated.predict(X[160:])
    assert not np.allclose(rated.update(X[120:160], counts[120:160]).predict(X[160:]), before)
    with pytest.raises(InputError, match="lower and upper"):
        small().fit(X, y).update(X, y, lower=y - 1)


# ---- what comes with it ----------------------------------------------------------------------------------------------


def test_scores_move_the_calibration_and_what_is_familiar() -> None:
    """Rows with errors twice as large, and from elsewhere."""
    X, y = easy(600)
    model = small(epochs=20).fit(X[:300], y[:300])
    before = model.fitted_
    far = X[300:] + 4.0
    wrong = model.predict(far) + 2.0 * (y[300:] - model.predict(X[300:]))
    assert np.median(model.predict_novelty(far)) < 0.02
    model.update(far, wrong)
    after = model.fitted_
    assert after.calibration.rows == before.calibration.rows + 300
    assert after.calibration.mean_scale > 1.2 * before.calibration.mean_scale
    assert np.median(model.predict_novelty(far)) > 0.2, "half of all rows are like this"
    assert np.median(model.predict_novelty(X)) > 0.5
    assert bool((after.novelty.high >= torch.from_numpy(before.preprocessor.transform(far)).amax(0) - 1e-6).all())
    for _ in range(6):
        model.update(np.repeat(X, 6, 0), np.repeat(y, 6))
    assert len(model.fitted_.novelty.scores) <= CALIBRATION


def test_a_promise_goes_on_with_rows_that_nothing_was_learned_from() -> None:
    X, y = easy(900)
    city = np.where(X[:, 2] > 0, "Rome", "Oslo")
    model = small(calibrate="conformal").fit(X[:400], y[:400])
    model.update(X[400:800], y[400:800])
    apart = model.fitted_.apart
    assert len(apart) == 200
    assert len(model.fitted_.conformal.depths) == 200
    found = depths(model.fitted_.predict_encoded([apart.x.double()]), torch.from_numpy(apart.y))
    torch.testing.assert_close(found, model.fitted_.conformal.depths, rtol=1e-6, atol=1e-6)
    assert not set(apart.y) - set(y[:800])
    sums = model.fitted_.statistics[0]
    other = small(calibrate="conformal").fit(X[:400], y[:400])
    changed = np.where(np.isin(y[400:800], apart.y), y[400:800] + 100.0, y[400:800])
    other.update(X[400:800], changed)
    torch.testing.assert_close(other.fitted_.statistics[0].projection, sums.projection, rtol=0, atol=0)
    lower, upper = model.predict_interval(X[800:], 0.8, guarantee=True)
    assert 0.65 < ((lower <= y[800:]) & (y[800:] <= upper)).mean() < 0.95
    by_city = small(calibrate="conformal").fit(X[:400], y[:400], groups=city[:400])
    with pytest.raises(InputError, match="groups"):
        by_city.update(X[400:], y[400:])
    by_city.update(X[400:], y[400:], groups=city[400:], forget=0.5)
    assert len(by_city.fitted_.apart) == 50 + 125
    assert set(by_city.fitted_.conformal.groups) == {"Rome", "Oslo"}
    by_city.predict_interval(X[:5], 0.8, guarantee=True, groups=city[:5])


def test_many_small_updates_set_as_many_rows_apart_as_a_large_one(tmp_path: Path) -> None:
    """The same rows, whatever the updates that they come in; and a promise that is saved goes on."""
    X, y = easy(500)
    one, two, each = (small(calibrate="conformal", epochs=2, members=1).fit(X[:400], y[:400]) for _ in range(3))
    one.update(X[400:440], y[400:440])
    two.update(X[400:417], y[400:417])
    two.save(tmp_path / "m")
    two = DeepBasisRegressor.load(tmp_path / "m").update(X[417:440], y[417:440])
    for k in range(400, 440):
        was = each.fitted_
        each.update(X[k : k + 1], y[k : k + 1])
        if len(each.fitted_.apart) > len(was.apart):  # nothing is learned from it
            torch.testing.assert_close(each.fitted_.statistics[0].gram, was.statistics[0].gram, rtol=0, atol=0)
    assert len(one.fitted_.apart) == 110
    for other in (two, each):
        assert set(other.fitted_.apart.y) == set(one.fitted_.apart.y)
        assert other.rows_ == 440
    assert set(one.fitted_.apart.y[100:]) <= set(y[400:440])


def test_an_update_whose_every_row_is_set_apart_says_how_it_was_predicted() -> None:
    X, y = easy(440)
    fitted = small(calibrate="conformal", epochs=2, members=1).fit(X[:400], y[:400]).fitted_
    for k in range(400, 440):
        after, scores = update_table(fitted, X[k : k + 1], y[k : k + 1], forget=0.99)
        assert after.calibration.rows == pytest.approx(0.99 * fitted.calibration.rows, abs=1.0)
        assert after.calibration.rows != fitted.calibration.rows
        told = fitted.evaluate(X[k : k + 1], y[k : k + 1])
        assert {name: scores()[name] for name in ("mae", "crps")} == pytest.approx(
            {name: told[name] for name in ("mae", "crps")}, rel=1e-5
        )
        fitted = after


def test_it_is_saved_and_goes_on_from_the_file(tmp_path: Path) -> None:
    table, y = mixed(300)
    model = small(calibrate="conformal").fit(table[:200], y[:200])
    model.update(table[200:250], y[200:250])
    model.save(tmp_path / "m")
    again = DeepBasisRegressor.load(tmp_path / "m")
    assert again.rows_ == 250
    for one in (model, again):
        one.update(table[250:], y[250:])
    np.testing.assert_array_equal(again.predict(table, return_std=True), model.predict(table, return_std=True))
    assert again.calibration_ == model.calibration_


def test_a_streamed_fit_learns_on(tmp_path: Path) -> None:
    """Held-out rows stand for the rest, so that its sums are about those in memory; exact ones are exact."""
    X, y = easy(600)
    table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y)
    table[:500].to_parquet(tmp_path / "t.parquet")
    model = small(validation_fraction=0.3).fit_dataset(tmp_path / "t.parquet", "y", stream=True)
    one, sums = model.fitted_.models[0], model.fitted_.statistics[0]
    x = torch.from_numpy(model.fitted_.preprocessor.transform(table[["a", "b", "c"]][:500])).to(one.mean.dtype)
    with torch.no_grad():
        all_rows = (one.basis(x).square().sum(1) * one.curvature(one(x))).sum()
    assert float(sums.gram.trace()) == pytest.approx(0.7 * float(all_rows), rel=0.15)
    assert model.update(table[["a", "b", "c"]][500:], y[500:]).rows_ == 600
    of_kernel = small(**{**EXACT, "members": 1}).fit_dataset(tmp_path / "t.parquet", "y", stream=True)
    before = posterior(of_kernel.fitted_.models[0])
    total = of_kernel.fitted_.statistics[0]
    solution = exact.solve(total, of_kernel.fitted_.models[0].noise())
    torch.testing.assert_close(solution.w, before[0], rtol=1e-8, atol=1e-8)


# ---- all or nothing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda X, y: (X[:, :2], y), "features"),
        (lambda X, y: (X[:10], y), "rows"),
        (lambda X, y: (np.vstack([X, X]), y), "rows"),
        (lambda X, y: (X[:0], y[:0]), "empty"),
        (lambda X, y: (X, np.where(y > 0, np.nan, y)), "NaN"),
        (lambda X, y: (X, np.where(y > 0, np.inf, y)), "inf"),
        (lambda X, y: (X, np.full(len(y), "dear")), "numbers"),
        (lambda X, y: (X, np.stack([y, y], 1)), "1d array"),
        (lambda X, y: (np.where(X > 9, "x", "y"), y), "numbers"),
        (lambda X, y: (X, y, -np.ones(len(y))), "negative"),
        (lambda X, y: (X, 1e140 * np.ones(len(y))), "y is"),
    ],
)
def test_what_it_cannot_take_leaves_the_model_as_it_was(change: Any, words: str) -> None:
    X, y = easy(80)
    model = small(epochs=1, members=1, dtype="float32").fit(X[:40], y[:40])
    before = model.fitted_
    with pytest.raises(InputError, match=words):
        model.update(*change(X[40:], y[40:]))
    assert model.fitted_ is before
    for wrong in (0.0, 1.5, -1.0, float("nan"), "x"):
        with pytest.raises(InputError, match="forget"):
            model.update(X[40:], y[40:], forget=wrong)
    assert model.fitted_ is before


def test_a_target_of_another_name_is_refused() -> None:
    """A series has a name; an array has none, and is taken as it is."""
    X, y = easy(80)
    model = small(epochs=1, members=1).fit(X[:40], pd.Series(y[:40], name="price"))
    before = model.fitted_
    with pytest.raises(InputError, match=r"'income'.*'price'"):
        model.update(X[40:], pd.Series(y[40:], name="income"))
    assert model.fitted_ is before
    for known in (y[40:], pd.Series(y[40:]), pd.Series(y[40:], name=7), pd.Series(y[40:], name="price")):
        model.update(X[40:], known)
    small(epochs=1, members=1).fit(X[:40], y[:40]).update(X[40:], pd.Series(y[40:], name="income"))


@pytest.mark.parametrize("changes", [{}, {"likelihood": "student"}, {"target": "log"}])
@pytest.mark.parametrize("rows", [1, 40])
def test_targets_in_other_units_are_taken_in_with_a_warning(changes: dict[str, Any], rows: int) -> None:
    """And rows that drift are not: errors of four standard deviations can be."""
    X, y = easy(200)
    y = np.exp(y)
    model = small(epochs=40, **changes).fit(X[:100], y[:100])
    new, known = X[100 : 100 + rows], y[100 : 100 + rows]
    mean, std = model.predict(new, return_std=True)
    model.update(new, known)
    model.update(new, np.maximum(mean + 4.0 * std, 0.01))
    with pytest.warns(FitWarning, match="same units"):
        model.update(new, 10_000.0 * known)


def test_each_output_and_the_bounds_of_a_censored_target_count() -> None:
    X, y = easy(200)
    both = np.stack([y, -y], 1)
    model = small(epochs=20).fit(X[:100], both[:100])
    with pytest.warns(FitWarning, match="same units"):
        model.update(X[100:], both[100:] * [1.0, 1000.0])
    censored = small(epochs=20).fit(X[:100], y[:100], upper=np.where(X[:100, 2] > 1, np.inf, y[:100]))
    lower = np.full(100, -9.0)
    censored.update(X[100:], lower, lower=lower, upper=np.full(100, np.inf))  # nothing is known of them
    with pytest.warns(FitWarning, match="same units"):
        censored.update(X[100:], 1000.0 * y[100:], upper=1000.0 * y[100:])


def test_what_cannot_learn_on_says_so() -> None:
    X, y = easy(60)
    counts = np.random.default_rng(0).poisson(2.0, 60)
    with pytest.raises(InputError, match="a model with likelihood='poisson' cannot take in more rows"):
        small(likelihood="poisson", epochs=1).fit(X, counts).update(X, counts)
    with pytest.raises(InputError, match="a model with noise='input' cannot take in more rows"):
        small(epochs=1, noise="input").fit(X, y).update(X, y)
    assert not hasattr(DeepBasisClassifier, "partial_fit")
    with pytest.raises(InputError, match="classes"):
        DeepBasisClassifier(epochs=1, members=1, rank=4, width=4, blocks=1).fit(X, y > 0).update(X, y > 0)


def test_partial_fit_fits_first_and_then_learns_on() -> None:
    X, y = easy(120)
    one = small().partial_fit(X[:80], y[:80])
    other = small().fit(X[:80], y[:80])
    np.testing.assert_array_equal(one.predict(X), other.predict(X))
    one.partial_fit(X[80:], y[80:], np.ones(40))
    np.testing.assert_array_equal(one.predict(X), other.update(X[80:], y[80:], np.ones(40)).predict(X))
    assert one.rows_ == 120
    assert one.fit(X[:80], y[:80]).rows_ == 80


def test_a_thread_that_predicts_meanwhile_sees_the_old_model_or_the_new_one() -> None:
    """Mean, deviation and interval of one model each time."""
    X, y = easy(100)
    model = small(calibrate="conformal").fit(X, y)
    seen: list[Any] = []
    ready, stop = threading.Event(), threading.Event()

    def answer() -> tuple[Any, ...]:
        mean, std = model.predict(X[:20], return_std=True)
        return (*mean, *std), tuple(np.stack(model.predict_interval(X[:20], 0.8, guarantee=True)).ravel())

    def work() -> None:
        while not stop.is_set():
            seen.append(answer())
            ready.set()

    whole = [answer()]
    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(20)
    for k in range(6):
        model.update(X[10 * k : 10 * k + 10], y[10 * k : 10 * k + 10] + k)
        whole.append(answer())
    stop.set()
    thread.join()
    for mean, interval in seen:
        assert mean in [known[0] for known in whole]
        assert interval in [known[1] for known in whole]
