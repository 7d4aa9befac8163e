"""A streamed fit is the fit of the table in memory."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pyarrow import dataset

from deepbasis import DeepBasisRegressor
from deepbasis.engine.batches import Rows
from deepbasis.engine.members import Member
from deepbasis.engine.training import train
from deepbasis.errors import InputError
from deepbasis.fitting.budget import Sizes
from deepbasis.fitting.recipe import RECIPES
from deepbasis.fitting.start import builder, straight_line
from support.recipes import recipe
from support.streams import DROP, LENGTHS, encoder_of, epoch_of, frame, plan_of, small, survey_of

pytestmark = pytest.mark.filterwarnings("ignore::deepbasis.errors.FitWarning")  # a few steps do not make a model


@pytest.fixture(scope="module")
def fitted(folder: Path) -> DeepBasisRegressor:
    return small(epochs=5, learning_rate=1e-2).fit_dataset(folder, "price", drop=DROP, stream=True)


@pytest.mark.slow
def test_a_streamed_fit_is_as_good_as_one_in_memory(folder):
    streamed, resident = (
        small(epochs=30).fit_dataset(folder, "price", drop=DROP, stream=stream) for stream in (True, False)
    )
    test = frame(2_000, 99)
    scores = [model.evaluate(test[["size", "width", "colour", "day"]], test["price"]) for model in (streamed, resident)]
    assert scores[0]["rmse"] < 0.45  # the noise is 0.2, the target's spread 1.0
    assert scores[0]["nll"] < scores[1]["nll"] + 0.15
    assert abs(scores[0]["coverage_95"] - 0.95) < 0.04


def test_what_a_streamed_fit_leaves_behind(fitted, tmp_path):
    assert (fitted.rows_, fitted.n_features_in_) == (2100, 4)
    assert list(fitted.feature_names_in_) == ["size", "width", "colour", "day"]
    assert {"nll", "nll_constant", "crps"} <= set(fitted.validation_)
    assert fitted.validation_["nll"] < fitted.validation_["nll_constant"]
    assert not [thread for thread in threading.enumerate() if thread.name == "deepbasis-reader"]
    fitted.save(tmp_path / "m")
    new = frame(50, 5)[list(fitted.feature_names_in_)]
    np.testing.assert_array_equal(DeepBasisRegressor.load(tmp_path / "m").predict(new), fitted.predict(new))


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
def test_places_are_told_in_waves_streamed_or_not(tmp_path, stream):
    """A map that a network does not find by itself in so few steps."""
    rng = np.random.default_rng(0)
    places = pd.DataFrame(rng.uniform(-1.0, 1.0, (6_000, 2)), columns=["longitude", "latitude"])
    places["speed"] = np.sign(np.sin(12 * places["longitude"]) * np.sin(12 * places["latitude"]))
    places[:5_000].to_parquet(tmp_path / "places.parquet")
    new = places[5_000:]

    def rmse(**changes: Any) -> float:
        model = small(epochs=25, patience=25, width=32, blocks=1, batch_size=128, learning_rate=1e-2, **changes)
        model.fit_dataset(tmp_path / "places.parquet", "speed", stream=stream)
        assert model.embedding_ == changes.get("embedding", "fourier")
        return model.evaluate(new[["longitude", "latitude"]], new["speed"])["rmse"]

    assert rmse() < 0.85 * rmse(embedding="none")


def test_in_memory_it_is_the_fit_of_the_whole_table(folder, whole):
    one = small(epochs=2).fit_dataset(folder, "price", drop=DROP, stream=False)
    X = whole.drop(columns=[*DROP, "price"])
    other = small(epochs=2).fit(X, whole["price"])
    np.testing.assert_array_equal(one.predict(X), other.predict(X))


def test_the_same_seed_gives_the_same_model(folder, tmp_path):
    for name in ("a", "b"):
        small(epochs=2).fit_dataset(folder, "price", drop=DROP, stream=True).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.fixture(scope="module")
def of_one_epoch(folder: Path) -> DeepBasisRegressor:
    return small(epochs=1).fit_dataset(folder, "price", drop=DROP, stream=True)


@pytest.mark.parametrize("kind", ["dataset", "pattern", "list", "csv"])
def test_every_way_to_name_the_table(folder, whole, of_one_epoch, tmp_path, kind):
    data: Any = {
        "dataset": dataset.dataset(folder),
        "pattern": f"{folder}/*.parquet",
        "list": sorted(folder.glob("*.parquet")),
        "csv": tmp_path,
    }[kind]
    if kind == "csv":
        for k, n in enumerate(LENGTHS):
            frame(n, k).to_csv(tmp_path / f"part-{k}.csv", index=False)
    model = small(epochs=1).fit_dataset(data, "price", drop=DROP, stream=True)
    assert model.fitted_.preprocessor == of_one_epoch.fitted_.preprocessor
    X = whole.drop(columns=[*DROP, "price"])
    if kind != "csv":  # it is cut into other pieces, which come in another order
        np.testing.assert_array_equal(model.predict(X), of_one_epoch.predict(X))


@pytest.mark.parametrize("stream", [True, False])
def test_a_table_to_validate_on_must_have_rows(folder, tmp_path, stream):
    frame(5, 77)[:0].to_parquet(tmp_path / "aside.parquet", index=False)
    with pytest.raises(InputError, match=r"aside\.parquet' has no rows: it needs at least one"):
        small().fit_dataset(folder, "price", drop=DROP, validation=tmp_path / "aside.parquet", stream=stream)


def test_weights_groups_and_rows_to_validate_on(folder, tmp_path):
    frame(150, 77).to_parquet(tmp_path / "aside.parquet", index=False)
    model = small().fit_dataset(
        folder, "price", weight="weight", groups="shop", validation=tmp_path / "aside.parquet", stream=True
    )
    aside = frame(150, 77)
    names = ["size", "width", "colour", "day"]
    assert list(model.feature_names_in_) == names
    assert model.evaluate(aside[names], aside["price"])["nll"] == pytest.approx(model.validation_["nll"], rel=1e-4)
    for stream in (True, False):
        small(epochs=1).fit_dataset(folder, "price", weight="weight", groups="shop", stream=stream)


@pytest.mark.parametrize("method", ["dbk-rbf", "dnn", "vbll"])
def test_other_methods_are_streamed_too(folder, method):
    model = small(method=method, epochs=2, alpha="auto").fit_dataset(folder, "price", drop=DROP, stream=True)
    assert np.isfinite(model.validation_["nll"])


def test_a_stream_is_for_the_network(folder, whole):
    """However small the table: there is no choice to be made, and a step of exact training is a pass."""
    auto, network = (
        small(method=method, epochs=1).fit_dataset(folder, "price", drop=DROP, stream=True)
        for method in ("auto", "dbk-silu")
    )
    assert auto.method_ == "dbk-silu"
    X = whole.drop(columns=[*DROP, "price"])
    np.testing.assert_array_equal(auto.predict(X), network.predict(X))


def test_members_of_a_stream_start_from_its_validation_rows(folder):
    """They are in memory, and every worker has them. A training that hardly moves ends where it started."""
    changes = {"noise_learning_rate": 1e-12, "scaling": "standard"}
    recipes = [recipe(f"still {name}", **vars(RECIPES[name]) | changes) for name in ("default", "paper")]
    settings = {"method": "sv-rbf", "epochs": 1, "learning_rate": 1e-12, "beta": 1.0, "dtype": "float64"}
    ours, paper = (
        small(**settings, recipe=name).fit_dataset(folder, "price", drop=DROP, stream=True) for name in recipes
    )
    survey = survey_of(folder)
    validation = survey.validation(encoder_of(survey))
    Z, wide = (model.fitted_.models[0].expansion.Z.detach() for model in (ours, paper))
    assert float(torch.cdist(Z, validation.x).amin(1).max()) < 1e-6
    assert float(wide.abs().max()) <= 1.0 + 1e-6
    units = ours.fitted_.target.scale**2
    assert ours.noise_ / units == pytest.approx(0.5 * straight_line(validation).variance_left, rel=5e-3)
    assert paper.noise_ / units == pytest.approx(1e-2, rel=1e-6)


def test_exact_training_is_that_of_the_same_rows_in_memory(folder):
    survey = survey_of(folder)
    encoder = encoder_of(survey)
    plan = plan_of(survey, objective="mml", dtype="float64")
    settings = plan.candidates[0].settings
    x, y = (torch.cat(parts) for parts in zip(*epoch_of(survey, 0), strict=True))
    resident, validation = Rows(x, y), survey.validation(encoder)
    build, members = builder(plan.candidates[0].architecture, x.shape[1]), [Member(seed=3)]
    with survey.stream(encoder, plan, Sizes(50, 200), 0) as stream:
        ours = train(build, members, stream, validation, settings)[0]
    theirs = train(build, members, resident, validation, settings)[0]
    assert ours.best_score == pytest.approx(theirs.best_score, rel=1e-8)
    for name, value in theirs.parameters.items():
        torch.testing.assert_close(ours.parameters[name], value, rtol=1e-6, atol=1e-8)
    fitted = small(objective="mml", epochs=2).fit_dataset(folder, "price", drop=DROP, stream=True)
    assert len(fitted.history_[0]["train_loss"]) == 2


def test_exact_training_reads_every_row_once_for_each_sum(folder):
    """A step needs two: of the gradient, and of the new solution; and there is a solution before the first."""
    survey = survey_of(folder)
    encoder = encoder_of(survey)
    plan = plan_of(survey, objective="mml", epochs=5, dtype="float64")
    build = builder(plan.candidates[0].architecture, encoder.preprocessor.width)
    read = []

    def counted(rows: int) -> Any:
        for chunk in stream.open_pass(rows):
            read.append(len(chunk[0]))
            yield chunk

    with survey.stream(encoder, plan, Sizes(50, 200), 0) as stream:
        seen = replace(stream, open_pass=counted)
        settings = plan.candidates[0].settings
        outcome = train(build, [Member(seed=3)], seen, survey.validation(encoder), settings)[0]
    assert len(outcome.history["train_loss"]) == 5
    assert sum(read) == (1 + 2 * 5) * survey.statistics.rows


def test_a_pass_is_every_training_row_in_the_order_of_the_files(folder, whole, held):
    survey = survey_of(folder)
    encoder = encoder_of(survey)
    with survey.stream(encoder, plan_of(survey), Sizes(50, 200), 0) as stream:
        assert stream.open_pass is not None
        for rows in (300, 5000):
            parts = list(stream.open_pass(rows))
            assert max(len(y) for _, y in parts) == min(rows, survey.statistics.rows)
            y = torch.cat([y for _, y in parts])
            np.testing.assert_allclose(y, survey.statistics.target().transform(whole["price"][~held]), rtol=1e-12)
