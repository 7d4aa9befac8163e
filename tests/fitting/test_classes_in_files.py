"""Classes in files: in memory, as a stream, with a checkpoint, and predicted part by part."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from deepbasis.errors import InputError
from support.classifiers import small_classifier, three
from support.recipes import recipe

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore::deepbasis.FitWarning")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files; a class of the second is in none of the first."""
    path = tmp_path_factory.mktemp("classes")
    X, y = three(300)
    table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(food=y, id=range(300))
    is_oat = table["food"] == "oat"
    table[~is_oat].to_parquet(path / "1.parquet")
    table[is_oat].to_parquet(path / "2.parquet")
    return path


@pytest.mark.parametrize("stream", [False, True])
def test_a_fit_of_files_learns(folder: Path, stream: bool) -> None:
    model = small_classifier(epochs=12, members=1, batch_size=64, learning_rate=0.02)
    model.fit_dataset(folder, "food", drop=["id"], stream=stream)
    assert model.classes_.tolist() == ["egg", "ham", "oat"]
    assert model.validation_["log_loss"] < 0.8 * model.validation_["log_loss_constant"]
    X, y = three(200, seed=1)
    assert model.evaluate(pd.DataFrame(X, columns=["a", "b", "c"]), y)["accuracy"] > 0.7


def test_a_stream_resumes_exactly(folder: Path, tmp_path: Path) -> None:
    """From what is finished, and from the start."""

    def fitted(checkpoint: Path) -> np.ndarray:
        model = small_classifier(epochs=4, members=1, batch_size=64)
        model.fit_dataset(folder, "food", drop=["id"], stream=True, checkpoint=checkpoint)
        return model.predict_proba(pd.DataFrame(three(20)[0], columns=["a", "b", "c"]))

    once = fitted(tmp_path / "once")
    np.testing.assert_array_equal(fitted(tmp_path / "once"), once)
    np.testing.assert_array_equal(fitted(tmp_path / "again"), once)


def test_parts_have_a_column_for_each_class(folder: Path, tmp_path: Path) -> None:
    model = small_classifier(members=1).fit_dataset(folder, "food", drop=["id"])
    paths = model.predict_dataset(folder, tmp_path / "out", ids=["id"])
    parts = pd.concat([pd.read_parquet(path) for path in paths])
    assert list(parts.columns) == ["id", "p_egg", "p_ham", "p_oat"]
    X = pd.DataFrame(three(300)[0], columns=["a", "b", "c"]).iloc[parts["id"]]
    np.testing.assert_allclose(parts.iloc[:, 1:], model.predict_proba(X), rtol=1e-6)


def test_what_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="class_weight is for tables in memory"):
        small_classifier(class_weight="balanced").fit_dataset(folder, "food")
    with pytest.raises(InputError, match="names no class"):
        small_classifier().fit_dataset(folder, "a")
    with pytest.raises(InputError, match="has 300 classes"):
        small_classifier().fit_dataset(folder, "id")


def tariffs(rows: int, seed: int) -> pd.DataFrame:
    """The class is a matter of chance, unless the gain is one of forty values: every second one of them decides it."""
    rng = np.random.default_rng(seed)
    level = rng.integers(0, 40, rows)
    gain = np.where(rng.uniform(size=rows) < 0.6, 0.0, 1_000.0 + 10.0 * level**2)
    chance = rng.uniform(size=rows) < 0.5
    is_rich = np.where(gain > 0.0, level % 2 == 0, chance)
    return pd.DataFrame({"gain": gain, "b": rng.normal(size=rows), "rich": np.where(is_rich, "yes", "no")})


@pytest.mark.parametrize("stream", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_single_values_of_a_number_can_decide_a_class(tmp_path: Path, stream: bool) -> None:
    """A network cannot tell them apart by their place on the scale; by indicators it can."""
    tariffs(2_600, 0).to_parquet(tmp_path / "t.parquet")
    model = small_classifier(epochs=8, members=1, batch_size=64, learning_rate=0.02)
    model.fit_dataset(tmp_path / "t.parquet", "rich", stream=stream)
    found = model.fitted_.preprocessor.encodings[0]
    assert len(found.spikes) > 20
    test = tariffs(1_000, 1)
    known = test[test["gain"].isin([value for value in found.spikes if value > 0.0])]
    assert model.evaluate(known[["gain", "b"]], known["rich"])["accuracy"] > 0.95


@pytest.mark.parametrize("stream", [False, True])
def test_a_table_that_is_small_has_no_such_indicators(tmp_path: Path, stream: bool) -> None:
    """What is small is said once, in the recipe."""
    tariffs(1_900, 0).to_parquet(tmp_path / "t.parquet")
    default, other = (
        small_classifier(epochs=1, members=1, recipe=name).fit_dataset(tmp_path / "t.parquet", "rich", stream=stream)
        for name in ("default", recipe("small up to 1,000", small_rows=1_000))
    )
    assert default.fitted_.preprocessor.encodings[0].spikes == ()
    assert len(other.fitted_.preprocessor.encodings[0].spikes) > 10
