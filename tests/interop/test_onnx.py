"""The ONNX graph is the package's own prediction: in onnxruntime, on tables with gaps, far values and truth values."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from deepbasis import DeepBasisRegressor, InputError
from deepbasis.gp.predictive import GaussianMixture
from deepbasis.interop.encoding import NumberEncoding, number_columns
from deepbasis.interop.onnx import LEVELS, export_onnx
from deepbasis.interop.quantiles import MixtureQuantiles

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::deepbasis.errors.FitWarning"),  # models that have hardly been trained
]

SMALL = {"random_state": 0, "epochs": 2, "members": 2, "rank": 8, "inner": 16, "method": "dbk-silu"}


def table(n: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    found = pd.DataFrame(rng.normal(size=(n, 3)), columns=["a", "b", "c"])
    found["flag"] = rng.random(n) < 0.5
    found.loc[::7, "b"] = np.nan
    found.loc[3, "c"] = 1e7  # is squashed
    found["same"] = 4.0
    return found


def fitted(**options: Any) -> DeepBasisRegressor:
    X = table(300)
    y = np.exp(np.sin(X["a"]) + 0.2 * np.random.default_rng(1).normal(size=300))
    return DeepBasisRegressor(**{**SMALL, **options}).fit(X, y)


def numbers(X: pd.DataFrame) -> np.ndarray:
    return X.astype(np.float64).to_numpy()


def test_numbers_are_encoded_as_the_preprocessor_does() -> None:
    preprocessor = fitted().fitted_.preprocessor
    new = table(50, seed=2)
    new.loc[1, "a"] = np.nan  # a column without gaps in training
    found = NumberEncoding(number_columns(preprocessor, "a graph")[1])(torch.from_numpy(numbers(new)))
    np.testing.assert_allclose(found.numpy(), preprocessor.transform(new), rtol=1e-12, atol=1e-12)
    assert found.shape[1] == 5  # a, b and its gaps, c, flag; "same" says nothing


@pytest.mark.slow  # a loop in torch takes seconds to begin with
def test_quantiles_of_mixtures_that_are_hard() -> None:
    """Components far apart, narrow beside wide, and levels far out: the cdf gives the level back."""
    generator = torch.Generator().manual_seed(0)
    means = 5.0 * torch.randn(6, 5_000, dtype=torch.float64, generator=generator)
    variances = (3.0 * torch.randn(6, 5_000, dtype=torch.float64, generator=generator)).exp()
    shares = torch.tensor([0.5, 0.3, 0.1, 0.05, 0.04, 0.01], dtype=torch.float64)
    levels = [1e-6, 0.025, 0.5, 0.9, 0.999]
    found = MixtureQuantiles(shares, levels)(means, variances)
    mixture = GaussianMixture(means, variances, shares)
    for k, level in enumerate(levels):  # where a cdf is flat, any number between two components is a quantile
        assert float((mixture.cdf(found[:, k]) / level - 1.0).abs().max()) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"embedding": "periodic-linear", "target": "identity"},
        {"method": "dbk-rbf", "likelihood": "student", "embedding": "fourier", "members": 1},
        {"target": "warp", "members": 1},
        {"target": "log", "method": "sv-rbf", "objective": "mml", "rank": 100},
    ],
    ids=lambda options: ", ".join(map(str, options.values())),
)
def test_onnxruntime_equals_ours(options: dict[str, Any], tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = fitted(**options)
    export_onnx(model.fitted_, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    known = session.get_modelmeta().custom_metadata_map
    assert json.loads(known["columns"]) == ["a", "b", "c", "flag", "same"]
    assert json.loads(known["levels"]) == list(LEVELS)
    for rows in (1, 200):  # the number of rows is free
        new = table(200, seed=3)[:rows]
        mean, std, quantiles = session.run(["mean", "std", "quantiles"], {"X": numbers(new)})
        ours = model.predict_dist(new)
        unit = ours.std
        # Networks are float32.
        assert np.abs((mean - ours.mean) / unit).max() < 1e-5
        assert np.abs((std - ours.std) / unit).max() < 1e-5
        assert np.abs((quantiles - ours.quantile(LEVELS)) / unit[:, None]).max() < 1e-5


@pytest.mark.parametrize(
    ("columns", "target", "words"),
    [
        ({"town": ["Rome", "Oslo"] * 30}, {}, r"column 'town' .* categorical"),
        ({"day": pd.date_range("2024-01-01", periods=60)}, {}, r"column 'day' .* datetime"),
        ({"price": [f"${k},000" for k in range(60)]}, {}, r"column 'price' .* numeric, read from text"),
        ({}, {"target": "count"}, "'count' cannot be exported"),
    ],
)
def test_what_cannot_be_exported_is_named(
    columns: dict[str, Any], target: dict[str, Any], words: str, tmp_path: Path
) -> None:
    X = pd.DataFrame({"a": np.random.default_rng(0).normal(size=60), **columns})
    model = DeepBasisRegressor(**{**SMALL, **target}).fit(X, np.arange(60.0) % 7)
    with pytest.raises(InputError, match=words):
        export_onnx(model.fitted_, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
