"""Two workers fit one model to targets of every kind, in memory and as a stream."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from deepbasis import DeepBasisRegressor
from support.choosing import Workers
from support.command import SMALL, good

KINDS = {
    "censored": ["-t", "time", "--upper", "until", "--target-transform", "log"],
    "poisson": ["-t", "visits", "--likelihood", "poisson"],
    "exposed": ["-t", "visits", "--likelihood", "poisson", "--exposure", "time"],
    "count": ["-t", "visits", "--target-transform", "count"],
    "ordinal": ["-t", "visits", "--target-transform", "ordinal"],
    "outputs": ["-t", "time", "-t", "visits", "--target-transform", "identity"],
}


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
@pytest.mark.parametrize("kind", KINDS)
def test_two_workers_fit_one_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two_workers: Workers, kind: str, stream: str
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 200))
    life, end = np.exp(a + 0.3 * rng.normal(size=200)), rng.uniform(0.5, 4.0, 200)
    known = {"time": np.minimum(life, end), "until": np.where(life > end, np.nan, np.minimum(life, end))}
    table = pd.DataFrame({"a": a, "b": b, **known, "visits": np.minimum(rng.poisson(np.exp(0.7 * a)), 5)})
    table.to_parquet("train.parquet", row_group_size=50)
    drop = [column for column in ("time", "until", "visits") if column not in KINDS[kind]]
    fit = ["fit", "train.parquet", *KINDS[kind], "--device", "cpu", stream, *SMALL]
    fit += [word for column in drop for word in ("--drop", column)]
    done = two_workers("-m", "deepbasis", *fit, "--out", "both", "--json")
    assert done.returncode == 0, done.stderr
    good(*fit, "--out", "one")
    both, one = (DeepBasisRegressor.load(name) for name in ("both", "one"))
    assert both.validation_["nll"] == pytest.approx(one.validation_["nll"], abs=0.3)
    if stream == "--no-stream":  # then the order of the rows is the same
        np.testing.assert_allclose(both.predict(table[["a", "b"]]), one.predict(table[["a", "b"]]), rtol=1e-4)
