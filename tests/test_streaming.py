"""Fitting a table in files: the stream holds the rows that it should; the model is as good as one fitted in memory."""

import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from numpy.typing import NDArray
from pyarrow import dataset, parquet

from deepbasis import DeepBasisRegressor, budget, estimator, streaming
from deepbasis.budget import Sizes
from deepbasis.engine.batches import Rows
from deepbasis.engine.distributed import ALONE
from deepbasis.engine.members import Member
from deepbasis.engine.training import train
from deepbasis.errors import CheckpointMismatchError, FileFormatError, InputError
from deepbasis.planning import make_plan
from deepbasis.starting import starting_noise, straight_line
from deepbasis.tables import csv_blocks
from deepbasis.tables.held_out import HeldOut
from deepbasis.tables.preprocessing import Preprocessor, TargetScaler
from deepbasis.tables.scanning import Roles
from deepbasis.tables.sources import Source

pytestmark = pytest.mark.filterwarnings("ignore::deepbasis.estimator.FitWarning")  # a few steps do not make a model

LENGTHS = (700, 300, 0, 1100)


def frame(n: int, seed: int = 0) -> pd.DataFrame:
    """Numbers with gaps, text, dates; a target that depends on them; a weight and a group."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "size": rng.normal(size=n),
            "width": rng.uniform(-1, 1, n),
            "colour": rng.choice(["red", "green", "blue"], n),
            "day": pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 700, n), unit="D"),
            "weight": rng.integers(0, 4, n).astype(float),
            "shop": rng.integers(0, 60, n),
        }
    )
    red = (table["colour"] == "red").to_numpy()
    table["price"] = np.sin(2 * table["size"]) + table["width"] + red + 0.2 * rng.normal(size=n)
    table.loc[rng.random(n) < 0.05, "size"] = np.nan
    return table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2,100 rows in 4 files, one of them empty, in row groups of 100."""
    folder = tmp_path_factory.mktemp("table")
    for k, n in enumerate(LENGTHS):
        frame(n, k).to_parquet(folder / f"part-{k}.parquet", index=False, row_group_size=100)
    return folder


@pytest.fixture(scope="module")
def whole() -> pd.DataFrame:
    return pd.concat([frame(n, k) for k, n in enumerate(LENGTHS) if n], ignore_index=True)


DROP = ("weight", "shop")


def small(**changes: Any) -> DeepBasisRegressor:
    given = {
        "method": "dbk-silu",
        "members": 1,
        "rank": 16,
        "width": 16,
        "alpha": 0.1,
        "epochs": 3,
        "batch_size": 64,
        "random_state": 0,
    }
    return DeepBasisRegressor(**{**given, **changes})


class Workers:
    """`size` workers in as many threads: enough of a team for what gathers objects."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size)
        self._values: list[Any] = [None] * size

    def run(self, work: Callable[[Any], Any]) -> list[Any]:
        results: list[Any] = [None] * self.size

        def one(rank: int) -> None:
            try:
                results[rank] = work(_Worker(self, rank))
            except Exception as error:
                results[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


class _Worker:
    def __init__(self, team: Workers, rank: int) -> None:
        self._team, self.rank, self.size, self.first = team, rank, team.size, rank == 0

    def gather_objects(self, value: Any) -> list[Any]:
        self._team._values[self.rank] = value
        self._team._barrier.wait()
        everyone = list(self._team._values)
        self._team._barrier.wait()
        return everyone

    def share(self, rows: int) -> int:
        return -(-rows // self.size)


def survey_of(folder: Path, team: Any = ALONE, fraction: float | None = 0.1, **roles: Any) -> streaming.Survey:
    drop = [name for name in DROP if name not in roles.values()]
    source = Source.open(folder, drop=drop)
    return streaming.take_survey(source, Roles.of(source, "price", **roles), fraction, None, team)


def encoder_of(survey: streaming.Survey) -> Any:
    return survey.encoder(survey.preprocessor(), survey.statistics.target(), torch.float64)


def epoch_of(survey: streaming.Survey, epoch: int, team: Any = ALONE, seed: int = 0, **changes: Any) -> list[Any]:
    """The batches of an epoch."""
    encoder = encoder_of(survey)
    plan = make_plan(small(**changes), survey.statistics.rows, streamed=True)
    with survey.stream(encoder, plan, Sizes(block_rows=37, buffer_rows=500), seed, team) as stream:
        return [tuple(part.clone() for part in batch) for batch in stream.open_epoch(epoch)]


def sorted_rows(*parts: NDArray[Any] | torch.Tensor) -> NDArray[np.float64]:
    rows = np.column_stack([np.asarray(part) for part in parts])
    return rows[np.lexsort(rows.T)]


# ---- what is trained on ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def held(whole: pd.DataFrame) -> NDArray[np.bool_]:
    """Which rows are held out, by the rule and not by the code that applies it to blocks."""
    held_out = HeldOut.choose(0.1, LENGTHS)
    return np.concatenate([held_out.of(file, 0, n) for file, n in enumerate(LENGTHS)])


def test_an_epoch_is_every_training_row_once_encoded_as_in_memory(folder, whole, held):
    survey = survey_of(folder)
    inside = whole[~held].drop(columns=[*DROP, "price"])
    preprocessor, target = Preprocessor.fit(inside), TargetScaler.fit(whole["price"][~held])
    assert survey.preprocessor() == preprocessor
    expected = sorted_rows(preprocessor.transform(inside), target.transform(whole["price"][~held]))
    for epoch in (0, 3):
        batches = epoch_of(survey, epoch)
        assert {len(x) for x, _ in batches[:-1]} == {64}
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        np.testing.assert_allclose(sorted_rows(x, y), expected, rtol=1e-12, atol=1e-12)


def test_the_validation_rows_are_the_held_out_ones_in_their_order(folder, whole, held):
    survey = survey_of(folder)
    validation = survey.validation(encoder_of(survey))
    outside = whole[held].drop(columns=[*DROP, "price"])
    np.testing.assert_array_equal(validation.x, survey.preprocessor().transform(outside))
    np.testing.assert_allclose(validation.y, survey.statistics.target().transform(whole["price"][held]), rtol=1e-12)
    assert len(validation) == 210


@pytest.mark.parametrize("size", [2, 5, 40])
def test_any_number_of_workers_finds_the_same_and_shares_the_rows(folder, size):
    """40 of them are more than there are row groups: some have nothing to read."""
    alone = survey_of(folder)
    surveys = Workers(size).run(lambda team: survey_of(folder, team))
    validation = alone.validation(encoder_of(alone))
    for survey in surveys:
        assert survey.statistics.preprocessor() == alone.statistics.preprocessor()
        assert survey.statistics.target().scale == pytest.approx(alone.statistics.target().scale, rel=1e-12)
        np.testing.assert_array_equal(survey.statistics.kept, alone.statistics.kept)
        assert torch.equal(survey.validation(encoder_of(alone)).x, validation.x)
    batches = [batch for rank in range(size) for batch in epoch_of(surveys[0], 0, _Worker(Workers(size), rank))]
    assert max(len(x) for x, _ in batches) <= -(-64 // size)
    shared = sorted_rows(*(torch.cat(parts) for parts in zip(*batches, strict=True)))
    whole = sorted_rows(*(torch.cat(parts) for parts in zip(*epoch_of(alone, 0), strict=True)))
    np.testing.assert_allclose(shared, whole, rtol=1e-9)


def test_an_error_of_one_worker_is_every_worker_s(tmp_path):
    for k in range(4):
        table = frame(100, k)
        if k == 2:
            table.loc[7, "price"] = np.inf
        table.to_parquet(tmp_path / f"part-{k}.parquet", index=False)
    for error in Workers(3).run(lambda team: survey_of(tmp_path, team)):
        assert isinstance(error, InputError)
        assert "target column 'price' of" in str(error)
        assert "part-2.parquet' has 1 value(s) that are inf (infinite), the first in row 7 (counting from 0)" in str(
            error
        )


def test_the_order_is_the_seed_s_and_the_epoch_s(folder):
    survey = survey_of(folder)
    first = epoch_of(survey, 1)
    for one, other in zip(first, epoch_of(survey, 1), strict=True):
        assert torch.equal(one[0], other[0])
    for epoch, seed in ((2, 0), (1, 1)):
        assert not torch.equal(epoch_of(survey, epoch, seed=seed)[0][0], first[0][0])


def test_a_virtual_epoch_is_a_piece_of_a_pass(folder):
    survey = survey_of(folder)
    steps = {"epochs": "auto", "random_state": 0}
    plan = make_plan(small(batch_size=10, **steps), survey.statistics.rows, streamed=True, max_steps=300)
    assert (plan.settings.epochs, plan.epoch_rows) == (6, 500)
    encoder = encoder_of(survey)
    with survey.stream(encoder, plan, Sizes(50, 100), 0) as stream:
        assert (stream.rows, stream.epoch_rows) == (survey.statistics.rows, 500)
        epochs = [list(stream.open_epoch(epoch)) for epoch in range(6)]
    assert [len(epoch) for epoch in epochs] == [50] * 6
    rows = np.concatenate([np.column_stack([x, y]) for epoch in epochs for x, y in epoch])
    first = rows[: survey.statistics.rows]
    assert len(np.unique(first, axis=0)) > 0.9 * len(first)  # nearly a pass: the buffer ends with the epoch


def test_weights_are_carried_along_and_zero_is_no_row(folder, whole, held):
    survey = survey_of(folder, weight="weight")
    keep = ~held & (whole["weight"] > 0).to_numpy()
    inside = whole[keep]
    assert survey.statistics.rows == keep.sum()
    assert survey.statistics.mass == inside["weight"].sum()
    names = [name for name in whole if name not in (*DROP, "price")]
    assert survey.preprocessor() == Preprocessor.fit(inside[names], inside["weight"].to_numpy())
    x, y, weight = (torch.cat(parts) for parts in zip(*epoch_of(survey, 0), strict=True))
    target = TargetScaler.fit(inside["price"], inside["weight"])
    expected = sorted_rows(
        survey.preprocessor().transform(inside[names]), target.transform(inside["price"]), inside["weight"]
    )
    np.testing.assert_allclose(sorted_rows(x, y, weight), expected, rtol=1e-9, atol=1e-12)
    validation = survey.validation(encoder_of(survey))
    assert validation.weight is not None
    assert sorted(validation.weight.tolist()) == sorted(whole["weight"][held & (whole["weight"] > 0)])


def test_a_group_is_on_one_side(folder, whole):
    survey = survey_of(folder, groups="shop", fraction=0.3)
    held = pd.concat([table.to_pandas() for table in survey.held])
    outside = set(held["shop"])
    assert 0 < len(outside) < 60
    assert len(held) == whole["shop"].isin(outside).sum()
    assert survey.statistics.rows == len(whole) - len(held)


# ---- fitting ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted(folder: Path) -> DeepBasisRegressor:
    return small(epochs=30).fit_dataset(folder, "price", drop=DROP, stream=True)


def test_a_streamed_fit_is_as_good_as_one_in_memory(folder, whole, fitted):
    resident = small(epochs=30).fit_dataset(folder, "price", drop=DROP, stream=False)
    test = frame(2_000, 99)
    scores = [model.evaluate(test[["size", "width", "colour", "day"]], test["price"]) for model in (fitted, resident)]
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
    one = small().fit_dataset(folder, "price", drop=DROP, stream=False)
    X = whole.drop(columns=[*DROP, "price"])
    other = small().fit(X, whole["price"])
    np.testing.assert_array_equal(one.predict(X), other.predict(X))


def test_the_same_seed_gives_the_same_model(folder, tmp_path):
    for name in ("a", "b"):
        small().fit_dataset(folder, "price", drop=DROP, stream=True).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("kind", ["dataset", "pattern", "list", "csv"])
def test_every_way_to_name_the_table(folder, whole, tmp_path, kind):
    data: Any = {
        "dataset": dataset.dataset(folder),
        "pattern": f"{folder}/*.parquet",
        "list": sorted(folder.glob("*.parquet")),
        "csv": tmp_path,
    }[kind]
    for k, n in enumerate(LENGTHS):
        frame(n, k).to_csv(tmp_path / f"part-{k}.csv", index=False)
    model = small(epochs=1).fit_dataset(data, "price", drop=DROP, stream=True)
    expected = small(epochs=1).fit_dataset(folder, "price", drop=DROP, stream=True)
    assert model.preprocessor_ == expected.preprocessor_
    X = whole.drop(columns=[*DROP, "price"])
    if kind != "csv":  # it is cut into other pieces, which come in another order
        np.testing.assert_array_equal(model.predict(X), expected.predict(X))


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


def test_members_of_a_stream_start_from_its_validation_rows(folder, monkeypatch):
    """They are in memory, and every worker has them."""
    seen: list[Any] = []

    def noted(build: Any, members: Any, data: Any, validation: Any, *more: Any, **names: Any) -> Any:
        seen.append((build(members[0]), members[0], validation))
        return genuine(build, members, data, validation, *more, **names)

    genuine = estimator.train
    monkeypatch.setattr(estimator, "train", noted)
    for recipe in ("default", "paper"):
        small(method="sv-rbf", epochs=1, recipe=recipe, beta=1.0).fit_dataset(folder, "price", drop=DROP, stream=True)
    (model, member, validation), (plain, paper, _) = seen
    assert member.noise == pytest.approx(starting_noise(straight_line(validation)), rel=5e-3)
    assert paper.noise == 1e-2
    there = (model.expansion.Z[:, None] == validation.x[None]).all(-1)
    assert bool(there.any(1).all())
    assert float(plain.expansion.Z.detach().abs().max()) <= 1.0


def test_exact_training_is_that_of_the_same_rows_in_memory(folder):
    survey = survey_of(folder)
    encoder = encoder_of(survey)
    model = small(objective="mml", dtype="float64")
    plan = make_plan(model, survey.statistics.rows, streamed=True)
    x, y = (torch.cat(parts) for parts in zip(*epoch_of(survey, 0), strict=True))
    resident, validation = Rows(x, y), survey.validation(encoder)
    members = [Member(seed=3)]
    model.preprocessor_ = survey.preprocessor()
    model._settle(survey.statistics.rows)
    with survey.stream(encoder, plan, Sizes(50, 200), 0) as stream:
        ours = train(model._build, members, stream, validation, plan.settings)[0]
    theirs = train(model._build, members, resident, validation, plan.settings)[0]
    assert ours.best_score == pytest.approx(theirs.best_score, rel=1e-8)
    for name, value in theirs.parameters.items():
        torch.testing.assert_close(ours.parameters[name], value, rtol=1e-6, atol=1e-8)
    fitted = small(objective="mml", epochs=2).fit_dataset(folder, "price", drop=DROP, stream=True)
    assert len(fitted.history_[0]["train_loss"]) == 2


def test_exact_training_reads_every_row_once_for_each_sum(folder, monkeypatch):
    """A step needs two: of the gradient, and of the new solution; and there is a solution before the first."""
    survey = survey_of(folder)
    encoder = encoder_of(survey)
    model = small(objective="mml", epochs=5, dtype="float64")
    plan = make_plan(model, survey.statistics.rows, streamed=True)
    model.preprocessor_ = survey.preprocessor()
    model._settle(survey.statistics.rows)
    read = []
    blocks = Source.blocks

    def counted(self: Source, *more: Any) -> Any:
        for block in blocks(self, *more):
            read.append(len(block))
            yield block

    monkeypatch.setattr(Source, "blocks", counted)
    with survey.stream(encoder, plan, Sizes(50, 200), 0) as stream:
        outcome = train(model._build, [Member(seed=3)], stream, survey.validation(encoder), plan.settings)[0]
    assert len(outcome.history["train_loss"]) == 5
    assert sum(read) == (1 + 2 * 5) * survey.source.rows


def test_a_pass_is_every_training_row_in_the_order_of_the_files(folder, whole, held):
    survey = survey_of(folder)
    encoder = encoder_of(survey)
    plan = make_plan(small(), survey.statistics.rows, streamed=True)
    with survey.stream(encoder, plan, Sizes(50, 200), 0) as stream:
        assert stream.open_pass is not None
        for rows in (300, 5000):
            parts = list(stream.open_pass(rows))
            assert max(len(y) for _, y in parts) == min(rows, survey.statistics.rows)
            y = torch.cat([y for _, y in parts])
            np.testing.assert_allclose(y, survey.statistics.target().transform(whole["price"][~held]), rtol=1e-12)


# ---- size, steps, memory ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("memory", "streamed"), [(None, False), ("409.5MiB", True), ("2GiB", False)])
def test_a_table_that_does_not_fit_is_streamed(folder, monkeypatch, memory, streamed):
    class Seen(Exception):
        pass

    def seen(*arguments: Any) -> None:
        raise Seen

    monkeypatch.setattr(budget, "_resident", lambda: 409 * 2**20)
    monkeypatch.setattr(DeepBasisRegressor, "_fit_streamed" if streamed else "_fit_table", seen)
    with pytest.raises(Seen):
        small().fit_dataset(folder, "price", memory=memory)


def test_max_steps_bounds_the_training(folder):
    steps: list[int] = []

    def counted(build: Any, members: Any, data: Any, validation: Any, settings: Any, **more: Any) -> Any:
        open_epoch = data.open_epoch

        def noted(epoch: int) -> Any:
            for batch in open_epoch(epoch):
                steps.append(epoch)
                yield batch

        object.__setattr__(data, "open_epoch", noted)
        return estimator_train(build, members, data, validation, settings, **more)

    estimator_train = estimator.train
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimator, "train", counted)
        small(batch_size=10, epochs="auto", patience=99).fit_dataset(
            folder, "price", drop=DROP, stream=True, max_steps=130
        )
    assert 0 < len(steps) <= 130
    assert steps == sorted(steps)


def test_too_little_memory_is_said_before_anything_is_read(folder):
    with pytest.raises(InputError, match=r"memory of 1 MiB is too little: .* are taken before a row is read"):
        small().fit_dataset(folder, "price", memory="1MiB", stream=True)


def test_no_more_rows_are_held_than_the_memory_allows(folder, monkeypatch):
    """Blocks and buffer are made of the limit: a smaller one gives smaller ones, and the fit ends all the same."""
    seen: list[Sizes] = []
    stream = streaming.Survey.stream

    def noted(self: Any, encoder: Any, plan: Any, sizes: Sizes, *more: Any) -> Any:
        seen.append(sizes)
        return stream(self, encoder, plan, sizes, *more)

    monkeypatch.setattr(streaming.Survey, "stream", noted)
    monkeypatch.setattr(budget, "_resident", lambda: 409 * 2**20)
    for memory in ("500MiB", "1500MiB"):
        small(epochs=1).fit_dataset(folder, "price", drop=DROP, memory=memory, stream=True)
    assert seen[0].buffer_rows < seen[1].buffer_rows
    assert seen[0].block_rows <= seen[1].block_rows


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(estimator, "train", functools.partial(estimator.train, checkpoint_seconds=0.0))
    arguments = {"drop": DROP, "stream": True}
    expected = small(epochs=6).fit_dataset(folder, "price", **arguments)

    class Stops:
        def __enter__(self) -> "Stops":
            return self

        def __exit__(self, *exception: object) -> None:
            return None

        def __call__(self, report: Any) -> None:
            if report.epoch == 4:
                raise RuntimeError("the power failed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimator, "ProgressBar", Stops)
        with pytest.raises(RuntimeError, match="power"):
            small(epochs=6, verbose=True).fit_dataset(folder, "price", checkpoint=tmp_path / "c", **arguments)
    assert not [thread for thread in threading.enumerate() if thread.name == "deepbasis-reader"]
    resumed = small(epochs=6).fit_dataset(folder, "price", checkpoint=tmp_path / "c", **arguments)
    for ours, theirs in zip(resumed.models_[0].parameters(), expected.models_[0].parameters(), strict=True):
        assert torch.equal(ours, theirs)
    np.testing.assert_array_equal(resumed.history_[0]["validation"], expected.history_[0]["validation"])
    with pytest.raises(CheckpointMismatchError, match="training data"):
        small(epochs=6).fit_dataset(f"{folder}/part-[01].parquet", "price", checkpoint=tmp_path / "c", **arguments)


def test_a_seed_decides_a_streamed_fit_and_its_checkpoint_whatever_the_process_holds(tmp_path, monkeypatch):
    """Numbers far from 0, whose mean depends in its last bits on how the rows are cut into blocks."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(40_000, 31)) + 1e6
    table = pa.table({f"x{k}": column for k, column in enumerate(values.T)})
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=40_000)
    models = []
    for k, resident in enumerate((400, 500, 450)):
        monkeypatch.setattr(budget, "_resident", lambda resident=resident: resident * 2**20)
        models.append(
            small(batch_size=512).fit_dataset(
                tmp_path / "t.parquet",
                "x30",
                stream=True,
                memory="900MiB",
                max_steps=80,
                checkpoint=tmp_path / f"run{k % 2}",
            )
        )
    for model in models[1:]:
        assert model.preprocessor_ == models[0].preprocessor_
        for ours, theirs in zip(model.models_[0].parameters(), models[0].models_[0].parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_a_run_does_not_go_on_in_another_order(folder, tmp_path, monkeypatch):
    """Other blocks or another buffer would deal out other batches from there on."""
    monkeypatch.setattr(budget, "_resident", lambda: 409 * 2**20)
    arguments = {"drop": DROP, "stream": True, "checkpoint": tmp_path / "c"}
    small(epochs=1).fit_dataset(folder, "price", memory="600MiB", **arguments)
    with pytest.raises(CheckpointMismatchError, match=r"training data is .* mixed among \d+"):
        small(epochs=1).fit_dataset(folder, "price", memory="550MiB", **arguments)


def test_a_run_does_not_go_on_for_another_number_of_steps(folder, tmp_path):
    """Epochs may be as many, and of other lengths: the result of the shorter run would be given back."""
    arguments = {"drop": DROP, "stream": True, "checkpoint": tmp_path / "c"}
    model = small(epochs="auto", batch_size=1)
    model.fit_dataset(folder, "price", max_steps=1_000, **arguments)
    with pytest.raises(CheckpointMismatchError, match=r"rows an epoch"):
        model.fit_dataset(folder, "price", max_steps=2_000, **arguments)


def test_a_checkpoint_needs_a_seed(folder, tmp_path):
    with pytest.raises(InputError, match="checkpoint needs a random_state"):
        small(random_state=None).fit_dataset(folder, "price", checkpoint=tmp_path / "c")


# ---- what is refused -------------------------------------------------------------------------------------------------


def broken(change: Callable[[pd.DataFrame], pd.DataFrame], folder: Path) -> Path:
    for k in range(3):
        table = frame(60, k).drop(columns=[*DROP])
        (change(table) if k == 1 else table).to_parquet(folder / f"part-{k}.parquet", index=False, row_group_size=20)
    return folder


def with_cell(column: str, row: int, value: Any) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def change(table: pd.DataFrame) -> pd.DataFrame:
        table.loc[row, column] = value
        return table

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            with_cell("price", 33, np.nan),
            r"'price' of '.*part-1.parquet' has 1 .* NaN \(missing\), the first in row 33 \(",
        ),
        (with_cell("price", 45, 1e200), r"'price' of '.*part-1.parquet' is 1e\+200 in row 45 \(counting from 0\)"),
        (
            with_cell("width", 21, np.inf),
            r"^'.*part-1.parquet': column 'width' has 1 infinite .* row 21 \(counting from 0",
        ),
        (with_cell("day", 59, pd.Timestamp("1066-10-14")), r"part-1.parquet': column 'day' holds the date .*row 59 \("),
    ],
)
def test_a_bad_cell_is_named_with_its_file_and_row(tmp_path, change, words):
    with pytest.raises(InputError, match=words):
        small().fit_dataset(broken(change, tmp_path), "price", stream=True)


@pytest.mark.parametrize("role", ["target", "validation target", "weight"])
def test_text_among_the_numbers_of_a_csv_is_named_with_its_file_row_and_value(folder, tmp_path, monkeypatch, role):
    """Also in a later block than the first."""
    monkeypatch.setattr(csv_blocks, "BLOCK_BYTES", 2_000)
    table = frame(200, 8).astype({"price": object, "weight": object})
    table.loc[150, "weight" if role == "weight" else "price"] = "n.a. yet"
    table.to_csv(tmp_path / "t.csv", index=False)
    column = "weight" if role == "weight" else "target"
    value = r"must hold numbers, got 'n.a. yet' in row 150 \(counting from 0\)"
    words = rf"^{column} column '\w+' of '{tmp_path}/t.csv' {value}"
    data, aside = (folder, tmp_path / "t.csv") if role == "validation target" else (tmp_path / "t.csv", None)
    drop = ["shop"] if role == "weight" else DROP
    weight = "weight" if role == "weight" else None
    with pytest.raises(InputError, match=words):
        small().fit_dataset(data, "price", weight=weight, drop=drop, validation=aside, stream=True)


def test_numbers_written_as_text_are_no_target(tmp_path):
    table = frame(50, 8).drop(columns=[*DROP])
    table.assign(price=table["price"].astype(str)).to_parquet(tmp_path / "t.parquet", index=False)
    with pytest.raises(InputError, match=r"'price' of '.*t.parquet' must hold numbers, and holds them as text; conv"):
        small().fit_dataset(tmp_path, "price", stream=True)


def test_dates_for_a_target_are_named(folder, tmp_path):
    table = frame(50, 8).drop(columns=[*DROP])
    table.assign(price=table["day"]).to_parquet(tmp_path / "t.parquet", index=False)
    words = r"target column 'price' of '.*t.parquet' must hold numbers, got 202\d-\S+ in row 0 \("
    with pytest.raises(InputError, match=words):
        small().fit_dataset(folder, "price", drop=DROP, validation=tmp_path / "t.parquet", stream=True)


def test_a_column_that_says_nothing_is_named(tmp_path):
    for k in range(2):
        frame(60, k).drop(columns=[*DROP]).assign(size=np.nan).to_parquet(tmp_path / f"{k}.parquet", index=False)
    with pytest.raises(InputError, match=r"^'.*0.parquet' and 1 more: column 'size' has no values at all"):
        small().fit_dataset(tmp_path, "price", stream=True)


def test_pages_that_cannot_be_read_stop_the_training_with_the_file_s_name(folder, tmp_path):
    """Damaged between the first pass and the second."""
    for k, n in enumerate(LENGTHS):
        frame(n, k).to_parquet(tmp_path / f"part-{k}.parquet", index=False, row_group_size=100)
    survey = survey_of(tmp_path)
    path = tmp_path / "part-3.parquet"
    content = bytearray(path.read_bytes())
    content[100:3000] = bytes(2900)
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=r"part-3.parquet' is damaged"):
        epoch_of(survey, 0)
    assert not [thread for thread in threading.enumerate() if thread.name == "deepbasis-reader"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"target": "cost"}, r"part-0.parquet' has no column 'cost'"),
        ({"target": "colour"}, r"target column 'colour' of '.*' must hold numbers"),
        ({"target": "price", "weight": "colour"}, r"weight column 'colour' of '.*' must hold numbers"),
        ({"target": "price", "drop": ["colr"]}, r"no column 'colr'; did you mean 'colour'"),
        ({"target": "price", "max_steps": 0}, r"max_steps must be a positive integer, got 0"),
        ({"target": "price", "memory": "much"}, r"memory must be a size such as '2GiB'"),
    ],
)
def test_bad_arguments(folder, arguments, words):
    with pytest.raises(InputError, match=words):
        small().fit_dataset(folder, stream=True, **arguments)


def test_too_few_rows(tmp_path):
    parquet.write_table(pa.table({"a": [1.0], "price": [2.0]}), tmp_path / "one.parquet")
    with pytest.raises(InputError, match=r"a fit needs at least 2 rows, '.*one.parquet' has 1"):
        small().fit_dataset(tmp_path, "price", stream=True)
    parquet.write_table(pa.table({"a": [1.0, 2.0], "price": [2.0, 3.0]}), tmp_path / "one.parquet")
    small(epochs=1).fit_dataset(tmp_path, "price", stream=True)
