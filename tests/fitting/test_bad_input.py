"""Bad input is refused with the place and the remedy."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import NotFittedError

from deepbasis import DeepBasisRegressor
from deepbasis.errors import FileFormatError, InputError
from deepbasis.fitting.data import TableData
from deepbasis.fitting.spec import Spec
from deepbasis.tables.table import HeldOut, Table
from support.regressors import Fitted, small

pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True)
class Bad:
    what: str
    call: Callable[[Fitted], Any]
    words: tuple[str, ...]
    error: type[Exception] = InputError


def option(words: tuple[str, ...], **changes: Any) -> Bad:
    """A bad constructor argument: the message names it and what was given."""
    (name, value), *_ = changes.items()
    return Bad(f"{name}={value!r:.30}", lambda d: small(**changes).fit(d.X, d.y), (name, *words))


def with_cell(array: Any, position: Any, value: Any) -> Any:
    changed = np.array(array)
    changed[position] = value
    return changed


def fit(words: tuple[str, ...], what: str, call: Callable[[Fitted], Any]) -> Bad:
    return Bad(what, call, words)


NAN, INF = float("nan"), float("inf")


BAD = [
    # options
    option(("'dbk'", "dbk-silu", "sv-dkl"), method="dbk"),
    option(("None", "one of"), method=None),
    option(("'papers'", "default", "paper"), recipe="papers"),
    option(("'exact'", "mml"), objective="exact"),
    option(("'waves'", "fourier"), embedding="waves"),
    Bad(
        "waves before no network",
        lambda d: small(method="sv-rbf", embedding="fourier").fit(d.X, d.y),
        ("sv-rbf", "no network", "'fourier'"),
    ),
    Bad("mse for weights", lambda d: small(method="vbll", objective="mse").fit(d.X, d.y), ("vbll", "mse", "dnn")),
    Bad("a network by mml", lambda d: small(method="dnn", objective="mml").fit(d.X, d.y), ("dnn", "objective", "mse")),
    option(("'tpu9'", "cpu"), device="tpu9"),
    option(("None", "cpu"), device=None),
    option(("mps",), device="mps"),
    option(("meta",), device="meta"),
    option(("'float16'", "float32"), dtype="float16"),
    option(("torch.float64", "float64"), dtype=torch.float64),
    option(("positive integer", "0"), rank=0),
    option(("positive integer", "-3"), rank=-3),
    option(("positive integer", "8.5"), rank=8.5),
    option(("positive integer", "'8'"), rank="8"),
    option(("positive integer", "True"), rank=True),
    option(("positive integer", "0"), width=0),
    option(("positive integer", "0"), blocks=0),
    option(("positive integer", "0"), members=0),
    option(("positive integer", "None"), members=None),
    option(("positive integer", "-1"), epochs=-1),
    option(("positive integer", "'many'"), epochs="many"),
    option(("positive integer", "0"), batch_size=0),
    option(("positive integer", "1.5"), batch_size=1.5),
    option(("positive integer", "0"), patience=0),
    option((">= 0", "-1"), alpha=-1),
    option(("number", "'x'"), alpha="x"),
    option(("finite", "nan"), alpha=NAN),
    option(("number",), alpha=np.array([0.1, 0.2])),
    option(("finite", "inf"), beta=INF),
    option((">= 0", "-0.5"), beta=-0.5),
    option(("number", "None"), beta=None),
    option(("> 0", "0"), learning_rate=0),
    option(("number", "'fast'"), learning_rate="fast"),
    option((">= 0", "-1"), weight_decay=-1),
    option(("between 0 and 1", "0"), validation_fraction=0),
    option(("between 0 and 1", "1"), validation_fraction=1),
    option(("between 0 and 1", "2"), validation_fraction=2),
    option(("number", "'some'"), validation_fraction="some"),
    option(("True, False, 'auto', 'conformal' or 'cross-conformal'", "'yes'"), calibrate="yes"),
    option(("True, False, 'auto', 'conformal' or 'cross-conformal'", "1"), calibrate=1),
    option(("True, False, 'auto', 'conformal' or 'cross-conformal'", "None"), calibrate=None),
    option(("finite", "nan"), validation_fraction=NAN),
    option(("True", "auto", "'yes'"), compile="yes"),
    option(("'x'",), random_state="x"),
    option(("-1",), random_state=-1),
    option(("1.5",), random_state=1.5),
    # the target
    fit(("y", "1 value", "NaN", "row 4", "remove"), "NaN in y", lambda d: small().fit(d.X, with_cell(d.y, 4, NAN))),
    fit(("y", "2 value", "inf", "row 7"), "inf in y", lambda d: small().fit(d.X, with_cell(d.y, [7, 9], -INF))),
    fit(("y", "beyond", "row 3", "units"), "huge y", lambda d: small().fit(d.X, with_cell(d.y, 3, 1e200))),
    fit(("y", "text", "'a'", "row 0", "convert"), "y of text", lambda d: small().fit(d.X, ["a"] * 120)),
    fit(("y", "dates", "row 0"), "y of dates", lambda d: small().fit(d.X, np.full(120, np.datetime64("2024-01-01")))),
    fit(("120 rows", "119"), "y too short", lambda d: small().fit(d.X, d.y[:-1])),
    fit(("y", "1d", "(120, 1, 2)"), "a block of targets", lambda d: small().fit(d.X, np.zeros((120, 1, 2)))),
    fit(("y", "None"), "no y", lambda d: small().fit(d.X, None)),
    fit(("y", "empty"), "empty y", lambda d: small().fit(d.X, [])),
    fit(("y", "Complex"), "complex y", lambda d: small().fit(d.X, d.y * 1j)),
    fit(("y", "1d"), "y is a number", lambda d: small().fit(d.X, 3.0)),
    # the table
    fit(
        ("column 1", "2 infinite", "row 5", "NaN"), "inf", lambda d: small().fit(with_cell(d.X, ([5, 8], 1), INF), d.y)
    ),
    fit(
        ("'size'", "infinite", "row 2"),
        "inf in a named column",
        lambda d: small().fit(d.table.assign(size=with_cell(np.zeros(120), 2, INF)), d.y),
    ),
    fit(("X", "empty", "0 sample"), "no rows", lambda d: small().fit(d.X[:0], d.y[:0])),
    fit(("X", "empty", "0 feature"), "no columns", lambda d: small().fit(d.X[:, :0], d.y)),
    fit(("at least 2 rows", "1"), "one row", lambda d: small().fit(d.X[:1], d.y[:1])),
    fit(
        ("duplicate", "'a'", "rename"),
        "columns of one name",
        lambda d: small().fit(pd.DataFrame(d.X, columns=["a", "b", "a"]), d.y),
    ),
    fit(("column 2", "no values", "drop"), "all missing", lambda d: small().fit(with_cell(d.X, (..., 2), NAN), d.y)),
    fit(
        ("'when'", "no values", "drop"),
        "all missing, named",
        lambda d: small().fit(d.table.assign(when=pd.NaT), d.y_table),
    ),
    fit(("2D", "Reshape"), "a vector", lambda d: small().fit(d.X[:, 0], d.y)),
    fit(("dim 3",), "three dimensions", lambda d: small().fit(d.X[..., None], d.y)),
    fit(("Series", "to_frame"), "a Series", lambda d: small().fit(d.table["size"], d.y)),
    fit(("column 0", "text", "DataFrame"), "an array of text", lambda d: small().fit(np.full((120, 2), "a"), d.y)),
    fit(("Complex",), "complex X", lambda d: small().fit(d.X * 1j, d.y)),
    fit(
        ("'bag'", "row 0", "list"),
        "cells that are lists",
        lambda d: small().fit(pd.DataFrame({"bag": [[1, 2]] * 120}), d.y),
    ),
    fit(
        ("'id'", "1,200", "identifier", "no other column"),
        "an identifier",
        lambda d: small().fit(pd.DataFrame({"id": [f"u{k}" for k in range(1200)]}), np.arange(1200.0)),
    ),
    fit(
        ("'when'", "9999", "row 0", "NaT"),
        "a date out of range",
        lambda d: small().fit(pd.DataFrame({"when": np.full(120, np.datetime64("9999-12-31", "s"))}), d.y),
    ),
    fit(("rows", "length"), "rows of different lengths", lambda d: small().fit([[1.0, 2.0], [3.0]] * 60, d.y)),
    # weights and groups
    fit(
        ("sample_weight", "negative", "row 6"),
        "a negative weight",
        lambda d: small().fit(d.X, d.y, with_cell(np.ones(120), 6, -1)),
    ),
    fit(("weight", "zero"), "no weight", lambda d: small().fit(d.X, d.y, np.zeros(120))),
    fit(
        ("sample_weight", "NaN", "row 1"),
        "NaN weight",
        lambda d: small().fit(d.X, d.y, with_cell(np.ones(120), 1, NAN)),
    ),
    fit(
        ("sample_weight", "inf", "row 1"),
        "inf weight",
        lambda d: small().fit(d.X, d.y, with_cell(np.ones(120), 1, INF)),
    ),
    fit(("sample_weight", "(119,)", "(120,)"), "weights too short", lambda d: small().fit(d.X, d.y, np.ones(119))),
    fit(("weights", "1D"), "weights of two columns", lambda d: small().fit(d.X, d.y, np.ones((120, 2)))),
    fit(("sample_weight", "text"), "weights of text", lambda d: small().fit(d.X, d.y, ["a"] * 120)),
    fit(("at least 2 rows", "1"), "one row with weight", lambda d: small().fit(d.X, d.y, np.eye(120)[0])),
    fit(("groups", "120", "119"), "groups too short", lambda d: small().fit(d.X, d.y, groups=np.arange(119))),
    fit(("groups", "120"), "groups are a word", lambda d: small().fit(d.X, d.y, groups="abc")),
    fit(
        ("groups", "missing", "row 3", "group of its own"),
        "a group missing",
        lambda d: small().fit(d.X, d.y, groups=with_cell(np.zeros(120), 3, NAN)),
    ),
    # the validation table
    fit(("X_val", "y_val", "both"), "X_val alone", lambda d: small().fit(d.X, d.y, X_val=d.X)),
    fit(("X_val", "y_val", "both"), "y_val alone", lambda d: small().fit(d.X, d.y, y_val=d.y)),
    fit(
        ("X_val", "y_val", "5", "4"),
        "lengths of X_val, y_val",
        lambda d: small().fit(d.X, d.y, X_val=d.X[:5], y_val=d.y[:4]),
    ),
    fit(("X_val", "2 features", "3"), "columns of X_val", lambda d: small().fit(d.X, d.y, X_val=d.X[:, :2], y_val=d.y)),
    fit(
        ("X_val", "color"),
        "names of X_val",
        lambda d: small().fit(d.table, d.y_table, X_val=d.table.drop(columns="color"), y_val=d.y_table),
    ),
    fit(("y_val", "NaN", "row 1"), "NaN in y_val", lambda d: small().fit(d.X, d.y, X_val=d.X[:2], y_val=[1, NAN])),
    fit(("y_val", "empty"), "empty y_val", lambda d: small().fit(d.X, d.y, X_val=d.X[:0], y_val=[])),
    # before a fit
    *(
        Bad(f"{name} before fit", call, ("not fitted",), NotFittedError)
        for name, call in {
            "predict": lambda d: small().predict(d.X),
            "predict_dist": lambda d: small().predict_dist(d.X),
            "predict_interval": lambda d: small().predict_interval(d.X),
            "predict_quantiles": lambda d: small().predict_quantiles(d.X, 0.5),
            "sample_y": lambda d: small().sample_y(d.X),
            "sample_functions": lambda d: small().sample_functions(),
            "evaluate": lambda d: small().evaluate(d.X, d.y),
            "score": lambda d: small().score(d.X, d.y),
            "save": lambda d: small().save("/nowhere/model.safetensors"),
        }.items()
    ),
    # prediction
    fit(("2 features", "expecting 3"), "a column too few", lambda d: d.model.predict(d.X[:, :2])),
    fit(("4 features", "expecting 3"), "a column too many", lambda d: d.model.predict(np.ones((2, 4)))),
    fit(("empty", "0 sample"), "no rows to predict", lambda d: d.model.predict(d.X[:0])),
    fit(("column 2", "infinite", "row 9"), "inf to predict", lambda d: d.model.predict(with_cell(d.X, (9, 2), INF))),
    fit(("2D", "Reshape"), "one row as a vector", lambda d: d.model.predict(d.X[0])),
    fit(("order", "'size', 'color'"), "another order", lambda d: d.of_table.predict(d.table[d.table.columns[::-1]])),
    fit(("missing", "- color"), "a column gone", lambda d: d.of_table.predict(d.table.drop(columns="color"))),
    fit(("unseen", "- extra"), "a column more", lambda d: d.of_table.predict(d.table.assign(extra=1))),
    fit(
        ("unseen", "- Size", "- size"),
        "a column renamed",
        lambda d: d.of_table.predict(d.table.rename(columns={"size": "Size"})),
    ),
    fit(
        ("'size'", "numeric", "text", "'big'", "to_numeric"),
        "numbers now text",
        lambda d: d.of_table.predict(d.table.assign(size="big")),
    ),
    fit(
        ("'when'", "date", "numeric", "to_datetime"),
        "dates now numbers",
        lambda d: d.of_table.predict(d.table.assign(when=1.5)),
    ),
    fit(
        ("'color'", "text", "date"),
        "text now dates",
        lambda d: d.of_table.predict(d.table.assign(color=pd.Timestamp("2024-01-01"))),
    ),
    fit(("'sold'", "boolean", "2.0"), "truth now numbers", lambda d: d.of_table.predict(d.table.assign(sold=2.0))),
    fit(("coverage", "1.5"), "coverage=1.5", lambda d: d.model.predict_interval(d.X, 1.5)),
    fit(("coverage", "0"), "coverage=0", lambda d: d.model.predict_interval(d.X, 0.0)),
    fit(("coverage", "'x'"), "coverage='x'", lambda d: d.model.predict_interval(d.X, "x")),
    fit(("coverage", "nan"), "coverage=NaN", lambda d: d.model.predict_interval(d.X, NAN)),
    fit(("level", "between 0 and 1", "1.5"), "q=1.5", lambda d: d.model.predict_quantiles(d.X, [0.5, 1.5])),
    fit(("level", "between 0 and 1", "0"), "q=0", lambda d: d.model.predict_quantiles(d.X, 0)),
    fit(("q", "'x'"), "q='x'", lambda d: d.model.predict_quantiles(d.X, "x")),
    fit(("q", "level"), "q=[]", lambda d: d.model.predict_quantiles(d.X, [])),
    fit(("q", "(1, 2)"), "q of two dimensions", lambda d: d.model.predict_quantiles(d.X, [[0.1, 0.2]])),
    fit(("q", "None"), "q=None", lambda d: d.model.predict_quantiles(d.X, None)),
    fit(("n_samples must", "positive integer", "0"), "sample_y n=0", lambda d: d.model.sample_y(d.X, 0)),
    fit(("n_samples must", "positive integer", "2.5"), "sample_y n=2.5", lambda d: d.model.sample_y(d.X, 2.5)),
    fit(("n must", "positive integer", "-1"), "sample_functions n=-1", lambda d: d.model.sample_functions(-1)),
    fit(("random_state", "'x'"), "sample_y random_state", lambda d: d.model.sample_y(d.X, 1, random_state="x")),
    fit(("X has 120 rows", "y has 3"), "evaluate y too short", lambda d: d.model.evaluate(d.X, d.y[:3])),
    fit(("y", "NaN", "row 1"), "evaluate NaN", lambda d: d.model.evaluate(d.X, with_cell(d.y, 1, NAN))),
    # files
    Bad(
        "load this file",
        lambda d: DeepBasisRegressor.load(__file__),
        ("test_bad_input.py", "not a deepbasis file"),
        FileFormatError,
    ),
    Bad(
        "load a file that is not there",
        lambda d: DeepBasisRegressor.load("/nowhere/m"),
        ("/nowhere/m",),
        FileNotFoundError,
    ),
]


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.what)
def test_bad_input_is_refused_with_the_place_and_the_remedy(fitted: Fitted, case: Bad) -> None:
    with pytest.raises(case.error) as error:
        case.call(fitted)
    message = str(error.value)
    missing = [word for word in case.words if word not in message]
    assert not missing, f"{missing} not in the message: {message}"


def test_there_are_enough_bad_inputs() -> None:
    assert len(BAD) >= 60
    assert len({case.what for case in BAD}) == len(BAD)


@pytest.mark.parametrize(
    "device", ["tpu9", pytest.param("cuda", marks=pytest.mark.skipif("torch.cuda.is_available()"))]
)
def test_loading_to_a_device_that_is_not_there_blames_the_device(fitted: Fitted, tmp_path: Path, device: str) -> None:
    path = tmp_path / "model.safetensors"
    fitted.model.save(path)
    with pytest.raises(InputError, match=f"device.*{device}"):
        DeepBasisRegressor.load(path, device=device)


def test_a_refused_fit_leaves_a_fitted_model_usable(fitted: Fitted) -> None:
    model = small().fit(fitted.X, fitted.y)
    before = model.predict(fitted.X)
    with pytest.raises(InputError):
        model.fit(fitted.X[:, :2], with_cell(fitted.y, 0, NAN))
    np.testing.assert_array_equal(model.predict(fitted.X), before)


class TestNumbersBeyondThePrecision:
    """Given as they are, counted as they are: not rows of what is left after some were held out or had weight 0."""

    X = np.random.default_rng(0).normal(size=(2_500, 2))
    model = small(dtype="float32", epochs=1, validation_fraction=0.2)

    def test_a_weight(self):
        weight = np.ones(2_500)
        weight[:10], weight[2_321] = 0.0, 1e39
        with pytest.raises(InputError, match=r"sample_weight is 1e\+39 in row 2321: numbers of type float32 end at"):
            self.model.fit(self.X, self.X[:, 0], sample_weight=weight)

    def test_a_held_out_target(self):
        y = self.X[:, 0].copy()
        plain = TableData.of(Spec.of(self.model), Table.read(self.X, y))
        row = int(np.flatnonzero(plain.held_out[0])[3])
        y[row] = 1e100
        with pytest.raises(InputError, match=rf"y is 1e\+100 in row {row}, .* standard deviations from the others"):
            self.model.fit(self.X, y)
        y_val = self.X[:100, 0].copy()
        y_val[7] = 1e100
        with pytest.raises(InputError, match=r"y_val is 1e\+100 in row 7"):
            self.model.fit(self.X, self.X[:, 0], X_val=self.X[:100], y_val=y_val)

    @pytest.mark.parametrize("stream", [False, True])
    def test_in_files(self, tmp_path, stream):
        table = pd.DataFrame({"x": self.X[:, 0], "y": self.X[:, 1], "w": 1.0})
        held = HeldOut.choose(0.2, [1_500, 1_000])
        row = int(np.flatnonzero(held.of(1, 0, 1_000))[5])
        found = TableData.of(Spec.of(self.model), Table.read(table[["x"]], table["y"])).held_out[0]
        row = row if stream else int(np.flatnonzero(found[1_500:])[5])
        for column, value in (("w", 1e39), ("y", 1e100)):
            bad = table.copy()
            bad.loc[1_500 + row, column] = value
            bad[:1_500].to_parquet(tmp_path / "a.parquet", index=False)
            bad[1_500:].to_parquet(tmp_path / "b.parquet", index=False, row_group_size=300)
            weight = "w" if column == "w" else None
            drop = [] if weight else ["w"]
            with pytest.raises(InputError, match=rf"in row {row} \(counting from 0\).*float32 end at") as caught:
                self.model.fit_dataset(tmp_path, "y", weight=weight, drop=drop, stream=stream)
            assert "b.parquet'" in str(caught.value)
