"""Targets of other kinds in files that are streamed: what is trained on is what a table in memory gives."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from deepbasis import DeepBasisRegressor
from deepbasis.errors import InputError
from deepbasis.fitting.data import TableData
from deepbasis.fitting.spec import Spec
from deepbasis.fitting.streams import StreamData
from deepbasis.tables.roles import Roles
from deepbasis.tables.source import Source
from support.streams import small

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore::deepbasis.FitWarning")]

BESIDE = ("time", "until", "visits", "claims", "years", "grade", "heat", "cost", "weight")
KINDS: dict[str, tuple[dict[str, Any], Any, dict[str, str]]] = {
    "censored": ({"target": "log"}, "time", {"upper": "until"}),
    "poisson": ({"likelihood": "poisson"}, "visits", {}),
    "exposed": ({"likelihood": "poisson"}, "claims", {"exposure": "years"}),
    "negative-binomial": ({"likelihood": "negative-binomial"}, "visits", {}),
    "count": ({"target": "count"}, "visits", {}),
    "ordinal": ({"target": "ordinal"}, "grade", {}),
    "outputs": ({"target": "identity"}, ["heat", "cost"], {}),
}
"""What is asked for, the target, and the roles of other columns."""
QUICK = ("censored", "poisson", "outputs")


def table(rows: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, rows))
    life, end = np.exp(0.8 * a + 0.3 * rng.normal(size=rows)), rng.uniform(0.5, 4.0, rows)
    heat = 5.0 * np.sin(a) + rng.normal(size=rows)
    years = rng.uniform(0.5, 4.0, rows)
    return pd.DataFrame(
        {
            "a": a,
            "b": b,
            "time": np.minimum(life, end),
            "until": np.where(life > end, np.nan, np.minimum(life, end)),
            "visits": rng.poisson(np.exp(0.7 * a)).astype(float),
            "claims": rng.poisson(years * np.exp(0.7 * a)).astype(float),
            "years": years,
            "grade": np.digitize(a + 0.5 * rng.normal(size=rows), [-1.0, 0.0, 1.0]).astype(float),
            "heat": heat,
            "cost": 100.0 + b + 0.2 * heat,
            "weight": rng.integers(0, 3, rows).astype(float),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("targets")
    for k, rows in enumerate((500, 300)):
        table(rows, k).to_parquet(path / f"{k}.parquet")
    return path


def fitted(folder: Path, kind: str, stream: bool = True, **changes: Any) -> DeepBasisRegressor:
    asked, target, roles = KINDS[kind]
    given = {"validation_fraction": 0.1, "epochs": 4, **asked, **changes}
    beside = ("checkpoint", "weight", "validation")
    more = {name: given.pop(name) for name in beside if name in given}
    used = {*([target] if isinstance(target, str) else target), *roles.values(), more.get("weight")}
    drop = [column for column in BESIDE if column not in used]
    return small(**given).fit_dataset(folder, target, drop=drop, stream=stream, **roles, **more)


@pytest.mark.parametrize("kind", KINDS)
def test_the_rows_are_those_of_a_table_in_memory(folder: Path, kind: str) -> None:
    asked, target, others = KINDS[kind]
    spec = Spec(**asked, random_state=0)
    columns = [target] if isinstance(target, str) else target
    used = ["a", "b", "weight", *columns, *others.values()]
    source = Source.open(folder, used)
    roles = Roles.of(source, target, "weight", **others)
    stream = StreamData.of(spec, source, roles, None, None)
    encoder = stream.encoder(torch.float64)
    whole = roles.table(source)
    # Every row, in the order of the files, by the encoder; and by the scaler of the stream from the table in memory.
    rows = np.concatenate([encoder.rows(block) for block in source.all_blocks(roles.columns, 97)])
    width = stream.preprocessor.width
    memory = TableData.of(spec, whole)
    assert rows.shape[1] == width + encoder.target_numbers + 1
    if kind == "censored":
        expected = stream.target.bounded(whole.y, whole.bounds)
    elif spec.likelihood in ("poisson", "negative-binomial"):
        expected = stream.target.counted(whole.y, whole.exposure)
        assert (whole.exposure is None) == (kind != "exposed")
        assert stream.target.exposure == memory.target.exposure == others.get("exposure")
    else:
        expected = stream.target.transform(whole.y)
    np.testing.assert_array_equal(rows[:, width:-1], expected.reshape(len(rows), -1))
    np.testing.assert_array_equal(rows[:, -1], whole.weight)
    assert memory.encoded.y.shape[1:] == expected.shape[1:]
    assert memory.target.name == stream.target.name
    held = stream.validation(torch.float64)
    assert held.y.shape[1:] == expected.shape[1:]


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind not in QUICK)) for kind in KINDS])
def test_a_streamed_fit_learns(folder: Path, kind: str) -> None:
    model = fitted(folder, kind, epochs=12, learning_rate=2e-2, weight="weight")
    assert model.validation_["nll"] < model.validation_["nll_constant"] - 0.1


@pytest.mark.parametrize("kind", ["censored", *(pytest.param(kind, marks=pytest.mark.slow) for kind in QUICK[1:])])
def test_a_stream_resumes_exactly_and_predicts_as_it_says(folder: Path, tmp_path: Path, kind: str) -> None:
    """From what is finished, and from the start."""
    test = table(50, 9)
    once, again, anew = (
        fitted(folder, kind, checkpoint=tmp_path / name).predict(test[["a", "b"]]) for name in ("one", "one", "two")
    )
    np.testing.assert_array_equal(again, once)
    np.testing.assert_array_equal(anew, once)
    assert np.isfinite(once).all()


@pytest.mark.parametrize("kind", ["censored", "outputs"])
def test_rows_to_validate_on(folder: Path, tmp_path: Path, kind: str) -> None:
    """They have no bounds, and count as exact."""
    table(100, 5).to_parquet(tmp_path / "aside.parquet")
    model = fitted(folder, kind, validation=tmp_path / "aside.parquet")
    aside, target = table(100, 5), KINDS[kind][1]
    assert model.evaluate(aside[["a", "b"]], aside[target])["crps"] == pytest.approx(
        model.validation_["crps"], rel=1e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_streamed_fit_is_as_good_as_one_in_memory(folder: Path, kind: str) -> None:
    test, target = table(1_000, 9), KINDS[kind][1]
    known = {"exposure": test["years"]} if kind == "exposed" else {}
    models = [fitted(folder, kind, stream, epochs=30, learning_rate=1e-2) for stream in (True, False)]
    scores = [model.evaluate(test[["a", "b"]], test[target], **known)["crps"] for model in models]
    assert scores[0] < 1.1 * scores[1]


def test_bad_cells_are_named_with_their_row(tmp_path: Path) -> None:
    bad = table(200)
    bad.assign(until=bad["time"].where(bad.index != 7, 0.0)).to_parquet(tmp_path / "crossed.parquet")
    with pytest.raises(InputError, match=r"crossed\.parquet.*lower, y and upper are .* in row 7"):
        fitted(tmp_path / "crossed.parquet", "censored")
    bad.assign(visits=bad["visits"].where(bad.index != 7, 0.5)).to_parquet(tmp_path / "half.parquet")
    with pytest.raises(InputError, match=r"y is 0\.5 in row .*: a count is a whole number"):
        fitted(tmp_path / "half.parquet", "poisson")
    bad.assign(cost=bad["cost"].where(bad.index != 7)).to_parquet(tmp_path / "hole.parquet")
    with pytest.raises(InputError, match=r"target column 'cost' of .* NaN \(missing\), in row 7"):
        fitted(tmp_path / "hole.parquet", "outputs")
