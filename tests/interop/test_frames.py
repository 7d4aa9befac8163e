"""Frames that arrive in pieces, from Spark or Dask, are predicted as the whole: by a function, and by Spark itself."""

import pickle
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from deepbasis import DeepBasisClassifier, DeepBasisRegressor, InputError
from deepbasis.interop.frames import FramePredictor

pytestmark = pytest.mark.filterwarnings("ignore::deepbasis.errors.FitWarning")

SMALL = {"method": "dbk-silu", "members": 2, "rank": 8, "inner": 16, "epochs": 2, "batch_size": 32, "random_state": 0}


def table(rows: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    found = pd.DataFrame({"row": np.arange(rows), "a": rng.normal(size=rows), "town": rng.choice(["x", "y"], rows)})
    found["y"] = np.sin(found["a"]) + (found["town"] == "x") + 0.1 * rng.normal(size=rows)
    return found


def test_frames_in_pieces_are_predicted_as_the_whole(tmp_path: Path) -> None:
    """As Spark does: the predictor is sent somewhere, and gets an iterator of frames."""
    rows = table(60)
    model = DeepBasisRegressor(**{**SMALL, "target": "identity"}).fit(rows[["a", "town"]], rows["y"])
    model.save(tmp_path / "model.safetensors")
    predictor = FramePredictor(tmp_path / "model.safetensors", quantiles=[0.1], keep=["row"])
    predictor(rows[:1])
    sent = pickle.loads(pickle.dumps(predictor))
    assert "fitted" not in vars(sent)
    found = pd.concat(sent.over([rows[:25], rows[25:26], rows[26:]]))
    whole = model.predict_frame(rows[["a", "town"]], quantiles=[0.1])
    assert list(found.columns) == predictor.columns == ["row", *whole.columns]
    pd.testing.assert_frame_equal(found.drop(columns="row"), whole, rtol=1e-5)
    assert (found["row"] == rows["row"]).all()
    with pytest.raises(InputError, match="no column 'town'"):
        predictor(rows[["row", "a"]])


def test_a_piece_without_rows_has_none(tmp_path: Path) -> None:
    """Dask asks with such a piece which columns there will be, and a cluster may have parts without rows."""
    rows = table(40)
    DeepBasisRegressor(**SMALL).fit(rows[["a", "town"]], rows["y"]).save(tmp_path / "model.safetensors")
    predictor = FramePredictor(tmp_path / "model.safetensors", keep=["row"])
    none, some = predictor.over([rows[:0], rows])
    pd.testing.assert_frame_equal(none, some[:0])
    with pytest.raises(InputError, match="no column 'town'"):
        predictor(rows[["row", "a"]][:0])


def test_classes_have_their_probabilities(tmp_path: Path) -> None:
    rows = table(40)
    model = DeepBasisClassifier(**SMALL).fit(rows[["a", "y"]], rows["town"])
    model.save(tmp_path / "model.safetensors")
    predictor = FramePredictor(tmp_path / "model.safetensors")
    found = predictor(rows)
    assert list(found.columns) == predictor.columns == ["p_x", "p_y"]
    np.testing.assert_allclose(found, model.predict_proba(rows[["a", "y"]]), rtol=1e-12)
    assert predictor(rows[:0]).columns.equals(found.columns)


def test_several_outputs_have_their_columns(tmp_path: Path) -> None:
    rows = table(40)
    DeepBasisRegressor(**SMALL).fit(rows[["town"]], rows[["a", "y"]]).save(tmp_path / "model.safetensors")
    predictor = FramePredictor(tmp_path / "model.safetensors", coverage=None)
    assert list(predictor(rows).columns) == predictor.columns == ["mean_a", "std_a", "mean_y", "std_y"]


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    sql = pytest.importorskip("pyspark.sql", reason="pyspark is not installed, which is Spark's own and needs Java")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, and there is none")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    builder = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.shuffle.partitions", "4").getOrCreate()
    yield session
    session.stop()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of Spark's own inside
def test_spark_predicts_as_we_do(spark: Any, tmp_path: Path) -> None:
    """By `mapInPandas`, in parts of which some have no rows, and by a pandas UDF: docs/interop.md."""
    from pyspark.sql.functions import pandas_udf, struct

    rows = table(60)
    model = DeepBasisRegressor(**SMALL).fit(rows[["a", "town"]], rows["y"])
    model.save(tmp_path / "model.safetensors")
    expected = model.predict_frame(rows[["a", "town"]]).assign(row=rows["row"])
    spark_table = spark.createDataFrame(rows).repartition(5)

    predictor = FramePredictor(tmp_path / "model.safetensors", keep=["row"])
    schema = ", ".join(["row long", *(f"`{name}` double" for name in predictor.columns[1:])])
    found = spark_table.mapInPandas(predictor.over, schema).toPandas().sort_values("row", ignore_index=True)
    pd.testing.assert_frame_equal(found, expected[predictor.columns], rtol=1e-5)
    assert len(spark_table.where("row < 2").repartition(6).mapInPandas(predictor.over, schema).toPandas()) == 2

    plain = FramePredictor(tmp_path / "model.safetensors")

    @pandas_udf(", ".join(f"`{name}` double" for name in plain.columns))
    def predicted(frame: pd.DataFrame) -> pd.DataFrame:
        return plain(frame)

    found = spark_table.select("row", predicted(struct("a", "town")).alias("p")).select("row", "p.*").toPandas()
    found = found.sort_values("row", ignore_index=True)
    pd.testing.assert_frame_equal(found, expected[found.columns], rtol=1e-5)
