"""p-values of "a row like those of the fit", and the warning about tables of other rows."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from deepbasis import DeepBasisClassifier, DeepBasisRegressor
from deepbasis.errors import NoveltyWarning
from deepbasis.fitting.files import predict_file
from deepbasis.fitting.novelty import CALIBRATION, REFERENCE, Novelty, Watch
from deepbasis.tables.predictions import PredictionColumns
from deepbasis.tables.preprocessing import GAP
from support.regressors import close, small

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::deepbasis.errors.FitWarning"),  # two epochs are few
    pytest.mark.filterwarnings("error::deepbasis.errors.NoveltyWarning"),
]

Floats = NDArray[np.float64]

SHORT: dict[str, Any] = {"members": 1, "epochs": 2, "rank": 8, "width": 8, "blocks": 1, "random_state": 0}


def correlated(rows: int, seed: int) -> torch.Tensor:
    """Skewed columns, two of them nearly equal."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4))
    x[:, 1] = x[:, 0] + 0.1 * x[:, 1]
    x[:, 2] = np.exp(x[:, 2])
    return torch.from_numpy(x)


def furthest(p: torch.Tensor) -> float:
    """From the diagonal: the Kolmogorov-Smirnov statistic of uniformity."""
    ordered = p.sort().values.numpy()
    steps = np.arange(len(ordered) + 1) / len(ordered)
    return float(max(np.abs(ordered - steps[1:]).max(), np.abs(ordered - steps[:-1]).max()))


@pytest.mark.parametrize("rows", [300, 3_000, 20_000])
def test_p_values_of_rows_like_those_of_the_fit_are_uniform(rows: int) -> None:
    novelty = Novelty.fit(correlated(rows, 0))
    n, m = len(novelty.scores), 2_000
    assert n == min(CALIBRATION, rows - min(REFERENCE, 2 * rows // 3))
    assert furthest(novelty.p_values(correlated(m, 1))) < 1.36 * math.sqrt(1 / n + 1 / m)  # a test at 5 %


def test_p_values_keep_their_promise_on_average_over_small_tables() -> None:
    """Of a table of 30 rows, a third of them calibrates: the share of p <= k / 11 is k / 11."""
    shares = torch.stack([Novelty.fit(correlated(30, k)).p_values(correlated(20, 1_000 + k)) for k in range(300)])
    for k in (1, 2, 5):
        share = (shares <= k / 11 + 1e-9).double().mean(1)
        assert abs(float(share.mean()) - k / 11) < 3 * float(share.std()) / math.sqrt(300)


def test_copies_of_rows_are_familiar() -> None:
    few = correlated(50, 0)
    rng = np.random.default_rng(0)
    novelty = Novelty.fit(few[rng.integers(0, 50, 2_000)])
    assert float((novelty.p_values(few[rng.integers(0, 50, 1_000)]) <= 0.1).double().mean()) < 0.13
    assert float(novelty.p_values(few + 0.3).max()) < 0.01


def test_p_values_are_uniform_where_rows_that_are_held_out_have_gaps_of_their_own() -> None:
    """And where none has: a gap is as strange as can be."""
    x, new = correlated(3_000, 1), correlated(3_000, 2)
    whole = Novelty.fit(x)
    for rows in (x, new):
        rows[torch.rand(len(rows), generator=torch.Generator().manual_seed(0)) < 0.1, 1] = GAP
    assert furthest(Novelty.fit(x).p_values(new)) < 0.05
    gaps = new[:, 1] == GAP
    assert float(whole.p_values(new[gaps]).max()) == 1.0 / (1 + len(whole.scores))
    assert furthest(whole.p_values(new[~gaps])) < 0.05


def test_moments_of_a_day_are_told_to_the_minute() -> None:
    """Encoded dates are single precision: days are days, not the second before."""
    when = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(500), unit="D")
    y = np.arange(500.0)
    with pytest.warns(NoveltyWarning, match=r"outside 2020-01-01 to 2021-05-14\)"):
        small(epochs=1).fit(pd.DataFrame({"when": when}), y).predict(
            pd.DataFrame({"when": when + pd.Timedelta("9000D")})
        )
    hours = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(500) * 7, unit="h")
    with pytest.warns(NoveltyWarning, match=r"outside 2020-01-01T00:00 to 2020-05-25T13:00\)"):
        small(epochs=1).fit(pd.DataFrame({"when": hours}), y).predict(
            pd.DataFrame({"when": hours + pd.Timedelta("9000D")})
        )


@pytest.mark.parametrize("columns", [4, 600])
def test_a_glance_is_the_distance_to_a_few_of_the_reference_rows(columns: int) -> None:
    """Of which the others say what is usual: of familiar rows about one in a hundred is not, and more in a wide table,
    whose scales were learned from few rows."""
    x, new = (torch.randn(3_000, columns, generator=torch.Generator().manual_seed(k)).exp() for k in range(2))
    novelty = Novelty.fit(x)
    glance = novelty.glance
    near = replace(novelty, reference=novelty.reference[: len(glance.sizes)])
    new[:50] *= 3.0
    assert glance.strange(new) == int((near.score(new).square() > glance.usual).sum())
    assert glance.strange(new[50:]) < (0.03 if columns < 100 else 0.15) * len(new)
    new[:50, 1] = GAP
    assert glance.strange(new[:50]) == 50
    assert Novelty.fit(x[:2]).glance.strange(x) == len(x), "too few rows to say"


def test_familiar_rows_are_given_a_glance_and_strange_ones_a_look(model: DeepBasisRegressor) -> None:
    def familiar(table: pd.DataFrame) -> pd.DataFrame:
        return table

    fitted = model.fitted_
    for rows in (20, 150, 999, 5_000):
        for change in (familiar, STRANGE["out of range"][0]):
            watch = Watch(fitted.novelty, fitted.preprocessor)
            (x,) = fitted.chunks(change(houses(rows, seed=1)[0]))
            watch.look(x)
            assert watch.looked == (len(x[:: rows // 20]) if watch.unlike == 0 else len(x[:: -(-rows // 128)]))
            assert (watch.unlike > 0.5 * watch.looked) == (change is not familiar)
    watch = Watch(fitted.novelty, fitted.preprocessor)
    watch.look(x[:19])
    assert watch.looked == 0


def test_p_values_of_a_table_with_copies_are_uniform_too() -> None:
    """Two rows of five are copies of rows that may be anywhere: scores of 0. The same row has the same p-value."""
    rng = np.random.default_rng(0)
    distinct = correlated(6_000, 0)
    copied = torch.from_numpy(rng.random(6_000) < 0.4)[:, None]
    rows = torch.where(copied, distinct[rng.integers(0, 2_000, 6_000)], distinct)[rng.permutation(6_000)]
    novelty, new = Novelty.fit(rows[:4_500]), rows[4_500:]
    assert float((novelty.scores == 0).double().mean()) > 0.1
    p = novelty.p_values(new)
    assert furthest(p) < 1.36 * math.sqrt(1 / len(novelty.scores) + 1 / len(p))
    assert torch.equal(p, novelty.p_values(new))
    assert len(novelty.p_values(new[:1].expand(9, -1)).unique()) == 1


def test_the_score_is_the_distance_to_the_nearest_row_of_normal_columns() -> None:
    """Ranks of a monotone function of a column are those of the column."""
    x, new = correlated(900, 0), correlated(40, 1)
    novelty = Novelty.fit(x)
    z = torch.stack(
        [torch.from_numpy(np.interp(c, k, m)) for c, k, m in zip(new.T, novelty.knots, novelty.marks, strict=True)], 1
    )
    mapped = z @ novelty.mapping.double()
    close(novelty.score(new).numpy(), cdist(mapped, novelty.reference.double()).min(1), rtol=1e-3)
    normal = torch.special.ndtri((x[:, 2].argsort().argsort() + 0.5) / 900)
    near = np.interp(x[:, 2], novelty.knots[2], novelty.marks[2])
    assert np.abs(near - normal.numpy()).mean() < 0.1


def test_beyond_the_range_columns_go_on_by_their_spread() -> None:
    x = correlated(900, 0)[:, :1]
    novelty = Novelty.fit(x)
    far = x.max() + novelty.spread[0] * torch.tensor([[10.0], [20.0]])
    scaled = novelty.score(far) / novelty.mapping[0, 0].abs()
    close(float(scaled[1] - scaled[0]), 10.0, rtol=1e-3)


def test_a_wide_table_is_not_decorrelated_and_keeps_fewer_rows() -> None:
    x = torch.randn(1_500, 1_000, generator=torch.Generator().manual_seed(0))
    novelty = Novelty.fit(x)
    assert novelty.mapping.shape == (0, 1_000)
    assert len(novelty.reference) == 1_000
    new = torch.randn(50, 1_000, generator=torch.Generator().manual_seed(1))
    assert float(novelty.p_values(new + 1.0).max()) < 0.01


# ---- of a model ------------------------------------------------------------------------------------------------------


def houses(rows: int = 1_200, seed: int = 0) -> tuple[pd.DataFrame, Floats]:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "age": rng.uniform(0, 60, rows),
            "rooms": rng.integers(1, 8, rows),
            "city": rng.choice(["Rome", "Oslo", "Lima"], rows),
            "sold": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 600, rows), unit="D"),
            "new": rng.random(rows) < 0.5,
        }
    )
    return table, 0.1 * table["age"].to_numpy() + rng.normal(size=rows)


@pytest.fixture(scope="module")
def model() -> DeepBasisRegressor:
    return small(members=1, epochs=2).fit(*houses())


STRANGE: dict[str, tuple[Any, str]] = {
    "out of range": (lambda t: t.assign(age=t["age"] + 100), r"'age' \(100 % of the rows outside 0\.0\d+ to 59\.\d+\)"),
    "a scale": (lambda t: t.assign(age=t["age"] * 1e4), r"'age' \(\d+ % of the rows outside .*, of another scale\)"),
    "a new level": (lambda t: t.assign(city="Bonn"), r"'city' \(new values in 100 % of the rows\)"),
    "years later": (
        lambda t: t.assign(sold=t["sold"] + pd.Timedelta("900D")),
        r"'sold' \(\d+ % of the rows outside 2024-01-01 to 2025-08-2\d\)",
    ),
    "gaps in a number": (
        lambda t: t.assign(age=np.nan),
        r"'age' \(missing in 100 % of the rows, and in none of the fit\)",
    ),
    "gaps in a date": (lambda t: t.assign(sold=pd.NaT), r"'sold' \(missing in 100 %"),
    "gaps in a category": (lambda t: t.assign(city=None), r"'city' \(missing in 100 %"),
    "gaps in a truth value": (lambda t: t.assign(new=None), r"'new' \(missing in 100 %"),
}


@pytest.mark.parametrize("name", STRANGE)
@pytest.mark.parametrize("method", ["predict", "predict_dist"])
def test_strange_rows_have_low_p_values_and_one_warning_names_the_column(
    model: DeepBasisRegressor, name: str, method: str
) -> None:
    change, words = STRANGE[name]
    table = change(houses(200, seed=1)[0])
    assert np.median(model.predict_novelty(table)) < 0.02
    with pytest.warns(NoveltyWarning, match=words) as warned:
        getattr(model, method)(table)
    assert len(warned) == 1
    assert str(warned[0].message).count("'") == 2, "no other column is named"


def test_familiar_tables_and_a_few_rows_are_predicted_without_a_word(model: DeepBasisRegressor) -> None:
    """Warnings are errors here."""
    for seed in range(20):
        model.predict(houses(150, seed=100 + seed)[0])
    model.predict(STRANGE["a scale"][0](houses(10, seed=1)[0]))
    mixed = houses(300, seed=2)[0]
    mixed.loc[:9, "city"] = "Bonn"
    model.predict(mixed)


def test_rows_alone_have_the_p_values_that_they_have_in_a_table(model: DeepBasisRegressor) -> None:
    table = houses(50, seed=3)[0]
    alone = [model.predict_novelty(table[k : k + 1])[0] for k in range(len(table))]
    close(model.predict_novelty(table), alone, atol=2 / len(model.fitted_.novelty.scores))


def test_rows_set_apart_calibrate() -> None:
    """Not even the encoding has seen them."""
    table, y = houses(400)
    fitted = small(members=1, epochs=1, calibrate="conformal").fit(table, y).fitted_
    assert fitted.apart is not None
    expected = fitted.novelty.score(fitted.apart.x).sort().values
    torch.testing.assert_close(fitted.novelty.scores, expected)
    assert len(fitted.novelty.reference) == 300


def test_groups_that_a_fit_has_not_seen_calibrate() -> None:
    """Rows of a group are nearly copies: a row of a new group is no stranger than most."""
    rng = np.random.default_rng(0)

    def rows(groups: int) -> tuple[Floats, NDArray[np.int64]]:
        of = np.repeat(np.arange(groups), 10)
        return rng.normal(size=(groups, 3))[of] + 1e-3 * rng.normal(size=(10 * groups, 3)), of

    X, of = rows(200)
    grouped = small(members=1, epochs=2, validation_fraction=0.4).fit(X, X[:, 0], groups=of)
    plain = small(members=1, epochs=2).fit(X, X[:, 0])
    new = rows(200)[0]
    assert np.mean(grouped.predict_novelty(new) < 0.2) < 0.5
    assert np.mean(plain.predict_novelty(new) < 0.2) > 0.9


def test_a_file_has_the_column_and_the_warning(model: DeepBasisRegressor, tmp_path: Path) -> None:
    table = STRANGE["a new level"][0](houses(60, seed=1)[0])
    table.to_csv(tmp_path / "new.csv", index=False)
    with pytest.warns(NoveltyWarning, match="'city'") as warned:
        predict_file(model.fitted_, tmp_path / "new.csv", str(tmp_path / "out.csv"), PredictionColumns(novelty=True))
    assert len(warned) == 1
    close(pd.read_csv(tmp_path / "out.csv")["novelty"], model.predict_novelty(table))


def test_a_classifier_has_the_same_p_values(model: DeepBasisRegressor, tmp_path: Path) -> None:
    table, y = houses()
    sold = np.where(y > 3, "dear", "cheap")
    classifier = DeepBasisClassifier(**SHORT).fit(table, sold)
    new = STRANGE["a new level"][0](houses(40, seed=1)[0])
    close(classifier.predict_novelty(new), model.predict_novelty(new), atol=0.02)
    new.to_csv(tmp_path / "new.csv", index=False)
    with pytest.warns(NoveltyWarning, match="'city'"):
        classifier.predict_dataset(tmp_path / "new.csv", tmp_path / "out", novelty=True)
    told = pd.read_parquet(tmp_path / "out" / "new.parquet")
    assert list(told) == ["p_cheap", "p_dear", "novelty"]
    close(told["novelty"], classifier.predict_novelty(new))


def test_a_saved_model_says_the_same(model: DeepBasisRegressor, path: Path) -> None:
    model.save(path)
    table = houses(40, seed=1)[0]
    np.testing.assert_array_equal(DeepBasisRegressor.load(path).predict_novelty(table), model.predict_novelty(table))


@pytest.mark.parametrize("separate", [False, True])
def test_a_streamed_fit_calibrates_on_rows_that_it_holds_out(tmp_path: Path, separate: bool) -> None:
    for name, seed in (("train", 0), ("valid", 1)):
        table, y = houses(2_000, seed)
        table.assign(y=y).to_parquet(tmp_path / f"{name}.parquet")
    validation = tmp_path / "valid.parquet" if separate else None
    streamed = small(members=1, epochs=1).fit_dataset(
        tmp_path / "train.parquet", "y", stream=True, validation=validation
    )
    p = streamed.predict_novelty(houses(2_000, seed=2)[0])
    n = len(streamed.fitted_.novelty.scores)
    assert n == (667 if separate else 200)
    assert furthest(torch.from_numpy(p)) < 1.36 * math.sqrt(1 / n + 1 / 2_000)
    assert np.median(streamed.predict_novelty(STRANGE["a new level"][0](houses(40)[0]))) < 0.02


WRONG: dict[str, Any] = {
    "spread": lambda values: values * 0.0,
    "mapping": lambda values: values[:-1],
    "reference": lambda values: values.repeat(40, 1),
    "scores": lambda values: values.flip(0),
    "low": lambda values: values + 100.0,
    "high": lambda values: values * math.nan,
    "center": lambda values: values.double(),
    "knots": lambda values: values.flip(1),
    "marks": lambda values: values * 0.0,
}


@pytest.mark.parametrize("name", WRONG)
def test_what_makes_no_sense_in_a_file_is_refused(name: str) -> None:
    tensors = Novelty.fit(correlated(300, 0)).tensors()
    assert Novelty.from_tensors(tensors, 4).scores is tensors["scores"]
    with pytest.raises(ValueError, match="novelty"):
        Novelty.from_tensors({**tensors, name: WRONG[name](tensors[name]).clone()}, 4)
    del tensors[name]
    with pytest.raises(ValueError, match="novelty"):
        Novelty.from_tensors(tensors, 4)
