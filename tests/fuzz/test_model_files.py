"""Model files with the right checksum and anything inside: each is a `FileFormatError`, or a model that predicts."""

import random
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deepbasis import DeepBasisClassifier, DeepBasisRegressor, storage
from deepbasis.errors import DeepBasisError, NumericalError
from deepbasis.fitting.fitted import KIND
from deepbasis.gp.discrete import Steps
from support.classifiers import small_classifier, three
from support.forging import FORGERIES, forged, write
from support.model_files import mixed, numbers, small

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.usefixtures("one_thread")]

MODELS: dict[str, dict[str, Any]] = {
    "dbk-silu": {},
    "dbk-rbf": {"method": "dbk-rbf", "trend": "linear"},
    "sv-rbf": {"method": "sv-rbf", "objective": "mml", "members": 1, "epochs": 3},
    "embedded": {"embedding": "piecewise-linear", "calibrate": False},
    "promising": {"calibrate": "conformal"},
    "crossing": {"calibrate": "cross-conformal", "members": 1},
    "dnn": {"method": "dnn"},
    "periodic": {"embedding": "periodic"},
    "noisy": {"noise": "input"},
    "student": {"likelihood": "student"},
    "warped": {"target": "auto"},
    "ordinal": {"target": "ordinal"},
    "count": {"target": "count"},
    "outputs": {},
}


def table(name: str) -> tuple[Any, Any]:
    """Rows and the target that a model is for."""
    X, y = numbers() if name == "sv-rbf" else mixed()
    levels = np.argsort(np.argsort(y)) // 10.0  # 0 to 5, as often each
    others = {"warped": np.exp(y), "ordinal": levels + 1.0, "count": levels, "outputs": np.stack([y, levels], 1)}
    return X, others.get(name, y)


def predictions(model: DeepBasisRegressor, X: Any) -> list[Any]:
    """All that is to be finite, the bounds in their order."""
    mean, std = model.predict(X, return_std=True)
    low, high = model.predict_interval(X)
    discrete = isinstance(model.fitted_.target.warp, Steps)  # of which one value may have all of the probability
    assert (std >= 0).all() if discrete else (std > 0).all(), std
    assert (low <= high).all(), (low, high)
    if model.fitted_.folds or model.fitted_.conformal is not None:
        lower, upper = model.predict_interval(X, 0.5, guarantee=True)
        assert (lower <= upper).all(), (lower, upper)
    return [mean, std, low, high, model.sample_y(X, 2, random_state=0), model.noise_, model.predict_novelty(X)]


def learn_on(model: DeepBasisRegressor, X: Any, y: Any) -> None:
    """Sums over rows that contradict each other are an error, and leave the model as it was."""
    before = model.predict(X)
    try:
        model.update(X, y)
    except DeepBasisError:
        np.testing.assert_array_equal(model.predict(X), before)
    else:
        with suppress(NumericalError):
            assert all(np.isfinite(values).all() for values in predictions(model, X))


@pytest.mark.filterwarnings("ignore::UserWarning")  # names of columns may be gone
@pytest.mark.parametrize("name", MODELS)
def test_a_forged_model_is_refused_or_predicts(
    tmp_path: Path, name: str, record_property: Callable[[str, object], None]
) -> None:
    """It may have other columns, which is an `InputError`, or weights that do not fit together: `NumericalError`."""
    X, y = table(name)
    path = tmp_path / "model.safetensors"
    small(**MODELS[name]).fit(X, y).save(path)
    tensors, metadata = storage.load(path, KIND)
    rng = random.Random(name)
    seen: Counter[str] = Counter()
    for number in range(-(-FORGERIES // len(MODELS))):
        write(path, KIND, *forged(tensors, metadata, rng))
        try:
            model = DeepBasisRegressor.load(path)
            assert all(np.isfinite(values).all() for values in predictions(model, X[:20]))
            learn_on(model, X[:20], y[:20])
            seen["predicts"] += 1
        except DeepBasisError as error:
            seen[type(error).__name__] += 1
        except BaseException:
            pytest.fail(f"forgery {number}: {traceback.format_exc()}")
    record_property("right", seen["predicts"])
    record_property("refused", seen.total() - seen["predicts"])
    assert seen["FileFormatError"] > 0.6 * seen.total(), seen
    assert seen["predicts"] > 0, seen
    # Another name of a column is one in a hundred of the changes.
    assert seen["InputError"] + seen["NumericalError"] < 3 + 0.01 * seen.total(), "it is checked at the door"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_forged_classifier_is_refused_or_predicts(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    X, y = three()
    path = tmp_path / "model.safetensors"
    small_classifier(class_weight="balanced").fit(X, y).save(path)
    tensors, metadata = storage.load(path, KIND)
    rng = random.Random("classes")
    seen: Counter[str] = Counter()
    for number in range(-(-FORGERIES // len(MODELS))):
        write(path, KIND, *forged(tensors, metadata, rng))
        try:
            p = DeepBasisClassifier.load(path).predict_proba(X[:20])
            assert np.isfinite(p).all()
            np.testing.assert_allclose(p.sum(1), 1.0)
            seen["predicts"] += 1
        except DeepBasisError as error:
            seen[type(error).__name__] += 1
        except BaseException:
            pytest.fail(f"forgery {number}: {traceback.format_exc()}")
    record_property("right", seen["predicts"])
    record_property("refused", seen.total() - seen["predicts"])
    assert seen["FileFormatError"] > 0.6 * seen.total(), seen
    assert seen["predicts"] > 0, seen
