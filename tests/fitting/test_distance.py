"""Predictions where there were no rows."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from deepbasis import DeepBasisClassifier, DeepBasisRegressor, explain, storage
from deepbasis.engine.members import Member
from deepbasis.errors import FileFormatError, InputError, NoveltyWarning
from deepbasis.fitting.distance import Kernel
from deepbasis.fitting.fitted import KIND
from deepbasis.fitting.plan import Architecture
from deepbasis.fitting.slopes import Slopes
from deepbasis.gp.predictive import GaussianMixture
from support.recipes import recipe
from support.regressors import easy, mixed, small

pytestmark = pytest.mark.usefixtures("one_thread")


def slopes(usual: float) -> Slopes:
    """Two rows of two columns, of which the members depend on the first alone."""
    steep = torch.tensor([2.0, 0.0])
    return Slopes(steep, torch.tensor([[0.0, 5.0], [1.0, -5.0]]) * steep, torch.tensor([usual]))


def test_members_are_wider_by_their_disagreement_where_the_nearest_row_is_far() -> None:
    x = torch.tensor([[0.0, 90.0], [1.2, 0.0], [3.0, 0.0], [3.0, 0.0], [1e6, 0.0]])
    means = torch.tensor([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0], [0.1, 0.11, 0.12], [0.2] * 3, [0.0, 1.0, 2.0]]).double().mT
    found = slopes(1.0).added(means, x)
    # 4 away from the row at 1, by a slope of 2; t = 1; Student's 97.5 % quantile of two degrees of freedom is 4.30265.
    expected = 2.0 / 3.0 * 4.30265 * (4.0 - 1.0 / 4.0) * 0.01
    np.testing.assert_allclose(found, [0.0, 0.0, expected, 0.0, 1.0], rtol=1e-5)
    assert torch.equal(slopes(1.0).added(means[:1], x), torch.zeros(5, dtype=torch.float64))


def test_slopes_are_those_of_the_members_and_most_rows_are_familiar() -> None:
    X, y = easy(200)
    fitted = small(members=3, epochs=60, distance="widen").fit(X, y).fitted_
    x = torch.from_numpy(fitted.preprocessor.transform(X)).to(fitted.dtype)
    assert fitted.distance is not None
    found = fitted.distance.slopes
    assert found is not None
    step, squares = 1e-3, []
    with torch.no_grad():
        for column in torch.eye(3, dtype=x.dtype):
            rises = [one.mean_at(x + step * column) - one.mean_at(x - step * column) for one in fitted.models]
            squares.append(float((torch.stack(rises) / (2.0 * step)).square().mean()))
        means = torch.stack([one.mean_at(x) for one in fitted.models])
    np.testing.assert_allclose(found.steep, np.sqrt(squares), rtol=0.02)
    assert not found.added(means, x).any()  # each row of the fit is its own neighbour
    others = found._nearest(found.rows, others=True)
    np.testing.assert_allclose((others <= found.usual).double().mean(), 0.93, atol=0.01)
    familiar, far = (fitted.predict(X * k).std / replace(fitted, distance=None).predict(X * k).std for k in (1.0, 3.0))
    np.testing.assert_array_equal(familiar, 1.0)
    assert np.mean(far > 1.05) > 0.3


def test_copies_of_rows_and_a_caller_without_gradients_change_nothing() -> None:
    X, y = easy(150)
    models = small(members=2, epochs=5, distance="widen").fit(X, y).fitted_.models
    x = torch.from_numpy(X).float()
    once = Slopes.fit(models, x)
    with torch.no_grad():
        twice = Slopes.fit(models, x.repeat(2, 1))
    assert once is not None
    assert twice is not None
    torch.testing.assert_close(twice.usual, once.usual, rtol=0.02, atol=0.0)
    assert Slopes.fit(models, x[:1].repeat(9, 1)) is None
    assert Slopes.fit(models[:1], x) is None
    assert once.added(torch.zeros(2, 0), x[:0]).shape == (0,)


def test_an_unseen_category_is_a_random_known_one() -> None:
    table, y = mixed()
    model = small(epochs=30, target="identity", distance="widen").fit(table, y)
    assert model.fitted_.distance is not None
    distance = replace(model.fitted_.distance, slopes=None)
    fitted = model.fitted_ = replace(model.fitted_, distance=distance)
    new = table[:9].assign(color="violet")
    found = model.predict_dist(new)
    columns = [k for k, name in enumerate(fitted.preprocessor.feature_names_out) if name.startswith("color")]
    x = torch.from_numpy(fitted.preprocessor.transform(new))
    copies = []
    for donor in distance.donors.double():
        lent = x.clone()
        lent[:, columns] = donor[columns]
        copies.append(fitted.ensemble.predict(lent.to(fitted.dtype)).double())
    means, scale = torch.stack([one.means for one in copies]), fitted.target.scale
    more = 1.0 + 1.0 / len(means)  # of another draw, whose mean is known from so many
    variances = torch.stack([one.variances for one in copies]).mean(0) + more * means.var(0)
    expected = GaussianMixture(means.mean(0), variances, copies[0].weights)
    np.testing.assert_allclose(found.std, expected.std * scale, rtol=1e-5)
    np.testing.assert_allclose(found.mean, fitted.target.inverse(expected.mean), rtol=1e-5)
    np.testing.assert_allclose(model.predict(new), found.mean, rtol=1e-9)
    plain = replace(fitted, distance=None)
    np.testing.assert_array_equal(model.predict_dist(table).std, plain.predict(table).std)  # known values: nothing
    assert (found.std != plain.predict(new).std).all()


def test_a_number_far_outside_is_unknown_and_one_a_little_outside_is_not() -> None:
    X, y = easy(200)
    model = small(epochs=100, distance="widen").fit(X, y).fitted_
    distance = model.distance
    assert distance is not None
    rows = np.zeros((4, 3))
    rows[:, 0] = [0.0, 3.5, 14.0, 1e9]
    unknown = distance.unknown(torch.from_numpy(model.preprocessor.transform(rows)), model.preprocessor)
    assert unknown.tolist() == [[False] * 3, [False] * 3, [True, False, False], [True, False, False]]
    wild = model.predict(X * [1e6, 1.0, 1.0])
    assert np.median(wild.std) > 1.2 * np.median(model.predict(X).std)


def test_a_gap_where_there_was_none_is_unknown() -> None:
    """All of its columns: the phases of a date, the indicators of a category."""
    table, y = mixed(200)
    table = table.ffill().bfill()
    model = small(epochs=30, distance="widen").fit(table, y)
    fitted = model.fitted_
    assert fitted.distance is not None
    names = fitted.preprocessor.feature_names_out
    for column in ("size", "color", "sold", "when"):
        new = table.astype({"sold": object}).assign(**{column: None})
        unknown = fitted.distance.unknown(torch.from_numpy(fitted.preprocessor.transform(new)), fitted.preprocessor)
        mine = torch.tensor([re.split("[ =]", name)[0] == column for name in names])
        assert bool(mine.any())
        assert bool((unknown == mine).all())
    with pytest.warns(NoveltyWarning, match="'color'"):
        empty, new = (model.predict_dist(table.assign(color=color)) for color in (None, "violet"))
    np.testing.assert_allclose(empty.std, new.std, rtol=1e-12)
    np.testing.assert_allclose(model.predict(table[:9].assign(color=None)), empty.mean[:9], rtol=1e-9)
    with_gaps, y = mixed(200)
    fitted = small(epochs=1, distance="widen").fit(with_gaps, y).fitted_
    assert fitted.distance is not None
    known = torch.from_numpy(fitted.preprocessor.transform(with_gaps))
    assert not bool(fitted.distance.unknown(known, fitted.preprocessor).any())


def test_covariance_and_functions_have_the_disagreement() -> None:
    X, y = easy(60)
    model = small(members=3, epochs=10, target="identity", dtype="float64", distance="widen").fit(X, y)
    far, wide = 3.0 * X[:5], model.fitted_
    _, covariance = model.predict(far, return_cov=True)
    plain = replace(wide, distance=None)
    np.testing.assert_allclose(np.diag(covariance), model.predict_dist(far).variance, rtol=1e-6)
    assert (np.diag(covariance) > 1.1 * plain.predict(far).variance).any()
    # Functions: the same draws, with the means of their members farther apart. A variance that becomes c times as large
    # is that of means sqrt(c) times as far from their mean.
    drawn, before = (one.sample_functions(12, random_state=0)(far) for one in (wide, plain))
    x = torch.from_numpy(plain.preprocessor.transform(far))
    with torch.no_grad():
        means = torch.stack([one.mean_at(x) for one in plain.models])
    assert wide.distance is not None
    assert wide.distance.slopes is not None
    between = (means - means.mean(0)).square().mean(0)
    farther = (1.0 + wide.distance.slopes.added(means, x) / between).sqrt() - 1.0
    away = (farther * (means - means.mean(0))).numpy() * plain.target.scale
    found = np.abs((drawn - before).T[:, None] - away).max(2)  # [draws, members]
    assert (found.min(1) < 1e-9).all()
    assert set(found.argmin(1)) == {0, 1, 2}


def test_the_band_of_an_effect_evaluates_a_member_as_often_among_many_as_among_few() -> None:
    X, y = easy(60)
    counts, widths = [], []
    for members in (2, 4):
        fitted = small(members=members, epochs=5, target="identity", distance="widen").fit(X, y).fitted_
        assert fitted.distance is not None
        calls: list[int] = []
        last = fitted.models[-1].backbone  # an ensemble predicts by the modules of the first
        with last.register_forward_hook(lambda *_, calls=calls: calls.append(1)):
            wide, plain = (
                explain.effect(one, explain.Sample.of(fitted, 3.0 * X), "x0")
                for one in (fitted, replace(fitted, distance=None))
            )
        counts.append(len(calls))
        widths.append(((wide.upper - wide.lower) / (plain.upper - plain.lower)).max())
    assert counts[0] == counts[1] > 0
    assert min(widths) > 1.05


def kernel(usual: float) -> Kernel:
    sizes = {"rank": 6, "width": 8, "blocks": 1, "inner": 8}
    architecture = Architecture(
        method="sv-rbf-linear", likelihood="gaussian", embedding="none", trend="none", jitter=1e-6, **sizes
    )
    return Kernel(architecture.build(3, Member()).double(), architecture, usual)


def test_the_kernel_takes_over_with_its_weight_by_the_moments_of_a_mixture(tmp_path: Path) -> None:
    X, y = easy(200)
    fitted = small(dtype="float64", target="identity", distance="widen").fit(X, y).fitted_
    assert fitted.distance is not None
    fitted = replace(fitted, distance=replace(fitted.distance, slopes=None))
    beside = kernel(0.9)
    x = torch.from_numpy(fitted.preprocessor.transform(X * 1.3))
    outside = fitted.distance.outside(x)
    m, v, w = beside.predict(x, outside)
    assert 0.0 < float(w[outside == 0].max()) < 1.0
    assert torch.equal(w[outside >= 0.05], torch.ones_like(w[outside >= 0.05]))
    with_kernel = replace(fitted, distance=replace(fitted.distance, kernel=beside))
    both = with_kernel.predict(X * 1.3)
    alone = fitted.ensemble.predict(x).double()
    first = alone.mean * (1 - w) + w * m
    second = (1 - w) * (alone.variance + alone.mean**2) + w * (v + m**2)
    np.testing.assert_allclose(both.mean, fitted.target.inverse(first), rtol=1e-9)
    np.testing.assert_allclose(both.variance, (second - first**2) * fitted.target.scale**2, rtol=1e-7)
    np.testing.assert_allclose(fitted.distance.mean(fitted.ensemble, x, fitted.preprocessor), alone.mean, rtol=1e-9)
    with_kernel.save(tmp_path / "model.safetensors")
    again = DeepBasisRegressor.load(tmp_path / "model.safetensors").fitted_
    np.testing.assert_array_equal(again.predict(X * 1.3).std, both.std)


def test_it_is_off_unless_it_is_asked_for() -> None:
    X, y = easy(2_500)
    plain, asked = (
        small(members=2, method="auto", width=8, blocks=1, **more).plan(X, y) for more in ({}, {"distance": "widen"})
    )
    assert asked.distance is not None
    assert asked.distance.kernel is not None
    assert replace(asked, distance=None) == plain
    assert asked.from_json(asked.to_json()) == asked
    assert "distance" not in plain.to_json()
    assert "no rows" not in str(plain)
    assert "wider, by slopes and disagreement" in str(asked)
    X, y = X[:120], y[:120]
    off, on = (small(**more).fit(X, y) for more in ({}, {"distance": "widen"}))
    assert off.fitted_.distance is None
    assert off.calibration_ == on.calibration_
    np.testing.assert_array_equal(off.predict_dist(X).std, on.predict_dist(X).std)  # familiar rows of a small table


@pytest.mark.parametrize(
    "changes",
    [
        {"likelihood": "student"},
        {"likelihood": "poisson"},
        {"target": "count"},
        {"noise": "input"},
        {"recipe": "paper"},
        {"outputs": True},
        {"lower": True},
    ],
    ids=str,
)
def test_what_cannot_widen_is_refused(changes: dict[str, Any]) -> None:
    X, _ = easy(60)
    y, kinds = np.arange(60.0) % 5, {k: v for k, v in changes.items() if k not in ("outputs", "lower")}
    bounds = {"lower": y - 1.0, "upper": y} if "lower" in changes else {}
    with pytest.raises(InputError, match="distance='widen' is"):
        small(distance="widen", **kinds).fit(X, np.stack([y, y], 1) if "outputs" in changes else y, **bounds)


def test_what_knows_the_members_alone_refuses_it() -> None:
    X, y = easy(60)
    model = small(distance="widen").fit(X, y)
    with pytest.raises(InputError, match=r"taking in more rows is not for a model .* distance='widen': fit without it"):
        model.update(X, y)
    with pytest.raises(InputError, match="distance='widen' is for one target"):
        DeepBasisClassifier(distance="widen", epochs=1).fit(X, y > 0.0)


def test_a_stream_widens_too(tmp_path: Path) -> None:
    table, y = mixed()
    table.assign(y=y).to_csv(tmp_path / "rows.csv", index=False)
    model = small(distance="widen", epochs=1).fit_dataset(tmp_path / "rows.csv", "y", stream=True)
    known, new = (model.predict_dist(table.assign(**more)).std for more in ({}, {"color": "violet"}))
    assert np.isfinite(new).all()
    assert (new != known).all()


@pytest.mark.slow
def test_a_gap_and_a_trend() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, 2_600)
    x = np.where(np.abs(x) < 1, np.sign(x) + 2 * x, x)
    y = np.sin(2 * x) + 0.1 * rng.normal(size=len(x))
    networks = recipe("no kernels", kernel_rows=0)  # here one would predict alone
    settings = {"members": 2, "epochs": 60, "random_state": 0, "distance": "widen", "recipe": networks}
    model = DeepBasisRegressor(**settings).fit(pd.DataFrame({"x": x}), y)
    assert model.fitted_.distance.kernel is not None
    assert model.fitted_.distance.slopes is not None
    inside = np.linspace(-0.9, 0.9, 19)
    mean, std = model.predict(pd.DataFrame({"x": inside}), return_std=True)
    assert (np.abs(np.sin(2 * inside) - mean) < 3 * std).all()
    line = DeepBasisRegressor(**settings).fit(pd.DataFrame({"x": x}), x + 0.1 * rng.normal(size=len(x)))
    mean, std = line.predict(pd.DataFrame({"x": np.linspace(3, 6, 13)}), return_std=True)
    assert (np.abs(np.linspace(3, 6, 13) - mean) < np.minimum(3 * std, 0.5)).all()


def test_it_is_saved_and_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    table, y = mixed()
    model = small(distance="widen").fit(table, y)
    fitted = replace(model.fitted_, distance=replace(model.fitted_.distance, kernel=None))
    path = tmp_path / "model.safetensors"
    fitted.save(path)
    again = DeepBasisRegressor.load(path).fitted_
    new = table[:5].assign(color="violet", size=1e9)
    np.testing.assert_array_equal(again.predict(new).std, fitted.predict(new).std)
    assert again.fingerprint == fitted.fingerprint != replace(fitted, distance=None).fingerprint
    tensors, metadata = storage.load(path, KIND)
    for name, bad in (
        ("low", math.nan),
        ("donors", math.inf),
        ("most", -100.0),
        ("slopes.rows", math.nan),
        ("slopes.usual", -1.0),
    ):
        place = f"distance/0/{name}"
        storage.save(path, KIND, {**tensors, place: torch.full_like(tensors[place], bad)}, metadata)
        with pytest.raises(FileFormatError, match="of its distance"):
            DeepBasisRegressor.load(path)
    beyond = {name: value for name, value in tensors.items() if name.startswith("distance/")}
    without = {name: value for name, value in tensors.items() if name != "distance/0/slopes.usual"}
    storage.save(path, KIND, without, metadata)
    with pytest.raises(FileFormatError, match="slopes of its distance have other parts"):
        DeepBasisRegressor.load(path)
    small(likelihood="student").fit(table, y).save(path)
    tensors, heavy = storage.load(path, KIND)
    storage.save(path, KIND, {**tensors, **beyond}, {**heavy, "distance": metadata["distance"]})
    with pytest.raises(FileFormatError, match="not Gaussian"):
        DeepBasisRegressor.load(path)
