"""The command: from a table to a model to predictions; and bad input, one line on stderr, status 2, nothing written."""

import errno
import inspect
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from typer.main import get_command
from typer.testing import CliRunner, Result

from deepbasis import __version__, choosing, cli, storage
from deepbasis.commands import options as words
from deepbasis.engine.settings import EXACT
from deepbasis.estimator import DeepBasisRegressor, FitWarning
from deepbasis.gp.methods import EMBEDDINGS, METHODS, OBJECTIVES
from deepbasis.recipes import RECIPES, TRENDS

SMALL = ["--method", "dbk-silu", "--epochs", "3", "--members", "1", "--rank", "8", "--width", "8", "--seed", "0"]
COMMAND = [sys.executable, "-m", "deepbasis"]


def run(*arguments: str, input: str | bytes | None = None) -> Result:
    return CliRunner().invoke(cli.app, list(arguments), input=input, prog_name="deepbasis")


def good(*arguments: str, input: str | bytes | None = None) -> Result:
    result = run(*arguments, input=input)
    assert result.exit_code == 0, result.output
    return result


def mixed_table(n: int = 90, seed: int = 0) -> pd.DataFrame:
    """Numbers with gaps, text, truth values, dates; a target that depends on them."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "order": [f"o{k:03d}" for k in range(n)],
            "size": rng.normal(size=n).round(3),
            "colour": rng.choice(["red", "green", "blue"], n),
            "new": rng.random(n) < 0.5,
            "day": pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 700, n), unit="D"),
            "weight": (rng.random(n) + 0.1).round(3),
            "shop": rng.integers(0, 12, n),
        }
    )
    table["price"] = (2 * table["size"] + (table["colour"] == "red") + 0.2 * rng.normal(size=n)).round(4)
    table.loc[3, "size"] = np.nan
    table.loc[5, "colour"] = None
    return table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good tables, a model, and one bad file of each kind."""
    folder = tmp_path_factory.mktemp("shell")
    train, new = mixed_table(), mixed_table(30, seed=1)
    train.to_csv(folder / "train.csv", index=False)
    train.to_parquet(folder / "train.parquet", index=False)
    new.to_csv(folder / "new.csv", index=False)
    new.to_parquet(folder / "new.parquet", index=False)
    good("fit", str(folder / "train.csv"), "-t", "price", "--drop", "order", "--out", str(folder / "model"), *SMALL)
    write_bad_files(folder, train)
    return folder


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


# ---- from a table to a model to predictions --------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_fit_predict_evaluate(here, tmp_path, ending):
    model, out = str(tmp_path / "m.safetensors"), tmp_path / f"out.{ending}"
    told = good("fit", f"train.{ending}", "-t", "price", "--drop", "order", "--out", model, *SMALL)
    assert told.stdout.splitlines()[0].startswith(f"{model}: 1 model (dbk-silu) fitted to 90 rows of 6 columns in ")
    assert re.match(r"validation: NLL \S+, CRPS \S+, MAE \S+, \S+ % of the targets", told.stdout.splitlines()[1])
    silent = good("predict", model, f"new.{ending}", "--out", str(out), "--id", "order", "--id", "shop")
    assert silent.output == ""
    predicted = (pd.read_csv if ending == "csv" else pd.read_parquet)(out)
    assert list(predicted.columns) == ["order", "shop", "mean", "std", "lower_95", "upper_95"]
    new = mixed_table(30, seed=1)
    assert predicted["order"].tolist() == new["order"].tolist()
    loaded = DeepBasisRegressor.load(model)
    mean, std = loaded.predict(new[list(loaded.feature_names_in_)], return_std=True)
    np.testing.assert_allclose(predicted["mean"], mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(predicted["std"], std, rtol=1e-9, atol=1e-9)
    lower, upper = loaded.predict_interval(new[list(loaded.feature_names_in_)])
    np.testing.assert_allclose(predicted["lower_95"], lower, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(predicted["upper_95"], upper, rtol=1e-9, atol=1e-9)
    scores = json.loads(good("evaluate", model, f"new.{ending}", "-t", "price", "--json").stdout)
    expected = loaded.evaluate(new[list(loaded.feature_names_in_)], new["price"])
    assert scores == pytest.approx({"rows": 30, **expected}, rel=1e-9)
    assert sorted(os.listdir(tmp_path)) == sorted(["m.safetensors", out.name])


def test_csv_and_parquet_give_the_same_model(here, tmp_path):
    predictions = []
    for ending in ("csv", "parquet"):
        model = str(tmp_path / ending)
        good("fit", f"train.{ending}", "-t", "price", "--drop", "order", "--out", model, *SMALL)
        predictions.append(good("predict", model, "new.parquet").stdout)
    assert predictions[0] == predictions[1]


def test_every_role_of_a_column_and_a_validation_file(here, tmp_path):
    arguments = [
        "--weight",
        "weight",
        "--groups",
        "shop",
        "--drop",
        "order",
        "--drop",
        "day",
        "--validation",
        "new.csv",
    ]
    told = good("fit", "train.csv", "-t", "price", *arguments, "--out", str(tmp_path / "m"), "--json", *SMALL)
    record = json.loads(told.stdout)
    assert (record["rows"], record["columns"], record["members"]) == (90, 3, 1)
    assert {"nll", "crps", "coverage_95", "mae"} <= set(record["validation"])
    assert record["seconds"] > 0
    loaded = DeepBasisRegressor.load(tmp_path / "m")
    assert list(loaded.feature_names_in_) == ["size", "colour", "new"]
    new = mixed_table(30, seed=1)
    assert loaded.evaluate(new[["size", "colour", "new"]], new["price"])["nll"] == pytest.approx(
        record["validation"]["nll"], rel=1e-4
    )


@pytest.mark.usefixtures("few_exact_steps")
@pytest.mark.parametrize("words", [[], ["--method", "auto"]], ids=["by default", "asked for"])
@pytest.mark.parametrize("chosen", ["dbk-silu", "sv-rbf", "sv-rbf-linear"])
def test_what_auto_has_chosen_is_told(here, tmp_path, monkeypatch, words, chosen):
    monkeypatch.setattr(choosing, "bic", lambda kernel, data: float(kernel.method_ != chosen))
    monkeypatch.setattr(choosing, "is_as_good", lambda *of: chosen != "dbk-silu")
    settings = [*words, "--epochs", "3", "--members", "2", "--rank", "32", "--width", "8", "--seed", "0"]
    arguments = ["fit", "train.csv", "-t", "price", "--drop", "order", "--out", str(tmp_path / "m"), *settings]
    models = "2 models (dbk-silu)" if chosen == "dbk-silu" else f"1 model ({chosen})"
    assert good(*arguments).stdout.startswith(f"{tmp_path}/m: {models} fitted to 90 rows of 6 columns in ")
    record = json.loads(good(*arguments, "--json").stdout)
    assert (record["method"], record["members"]) == (chosen, int(models[0]))
    loaded = DeepBasisRegressor.load(tmp_path / "m")
    assert (loaded.method, loaded.method_) == ("auto", chosen)
    new = mixed_table(30, seed=1)
    scores = json.loads(good("evaluate", str(tmp_path / "m"), "new.csv", "-t", "price", "--json").stdout)
    assert scores["nll"] == pytest.approx(loaded.evaluate(new[list(loaded.feature_names_in_)], new["price"])["nll"])


def test_options_reach_the_estimator(here, tmp_path):
    given = {
        "method": "sv-rbf", "recipe": "paper", "objective": "ppgp", "rank": 5, "width": 6, "blocks": 1, "inner": 7,
        "embedding": "none", "trend": "linear",
        "alpha": 0.5, "beta": 0.25, "members": 2, "epochs": 2, "batch_size": 40, "learning_rate": 0.002,
        "weight_decay": 0.5, "validation_fraction": 0.3, "patience": 1, "dtype": "float64", "device": "cpu",
        "compile": False, "calibrate": True,
    }  # fmt: skip
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value).lower())]
    good("fit", "train.csv", "-t", "price", "--out", str(tmp_path / "m"), "--seed", "7", "--quiet", *words)
    parameters = DeepBasisRegressor.load(tmp_path / "m").get_params()
    assert {name: parameters[name] for name in given} == given
    assert parameters["random_state"] == 7


def test_the_same_seed_gives_the_same_file(here, tmp_path):
    for name in ("a", "b"):
        good("fit", "train.csv", "-t", "price", "--out", str(tmp_path / name), *SMALL)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_quiet_is_silent_and_json_is_alone_on_stdout(here, tmp_path):
    arguments = ["fit", "train.csv", "-t", "price", "--out", str(tmp_path / "m"), *SMALL]
    assert good(*arguments, "--quiet").output == ""
    assert json.loads(good(*arguments, "--json").stdout)["rows"] == 90
    assert good(*arguments, "--json", "--quiet").output == ""


def test_coverage_and_quantiles(here):
    def columns(*options: str) -> pd.DataFrame:
        from io import StringIO

        return pd.read_csv(StringIO(good("predict", "model", "new.csv", *options).stdout))

    usual = columns()
    assert list(usual.columns) == ["mean", "std", "lower_95", "upper_95"]
    half = columns("--coverage", "0.5")
    assert list(half.columns) == ["mean", "std", "lower_50", "upper_50"]
    assert (half["upper_50"] - half["lower_50"] < usual["upper_95"] - usual["lower_95"]).all()
    assert list(columns("--coverage", "0.975").columns)[2:] == ["lower_97.5", "upper_97.5"]
    assert list(columns("--coverage", "0.29").columns)[2:] == ["lower_29", "upper_29"]
    some = columns("--quantiles", "0.025, 0.5,0.975")
    assert list(some.columns) == ["mean", "std", "q_0.025", "q_0.5", "q_0.975"]
    np.testing.assert_allclose(some["q_0.025"], usual["lower_95"], rtol=1e-6)
    np.testing.assert_allclose(some["q_0.975"], usual["upper_95"], rtol=1e-6)
    both = columns("--quantiles", "0.5", "--coverage", "0.9")
    assert list(both.columns) == ["mean", "std", "lower_90", "upper_90", "q_0.5"]


def test_columns_are_found_by_name_and_the_rest_is_left_alone(here, tmp_path):
    expected = good("predict", "model", "new.csv").stdout
    new = mixed_table(30, seed=1)
    new.drop(columns=["order", "price"])[["shop", "weight", "day", "new", "colour", "size"]].assign(
        price="not a number", more=1
    ).to_csv(tmp_path / "turned.csv", index=False)
    assert good("predict", "model", str(tmp_path / "turned.csv")).stdout == expected
    assert good("predict", "model", "-", input=(tmp_path / "turned.csv").read_bytes()).stdout == expected
    assert good("predict", "model", "new.csv", "--out", "-").stdout == expected


def test_tables_from_standard_input(here, tmp_path):
    piped, named = str(tmp_path / "piped"), str(tmp_path / "named")
    text = Path("train.csv").read_bytes()
    good("fit", "-", "-t", "price", "--out", piped, *SMALL, input=text)
    good("fit", "train.csv", "-t", "price", "--out", named, *SMALL)
    assert Path(piped).read_bytes() == Path(named).read_bytes()
    scores = [good("evaluate", "model", one, "-t", "price", "--json", input=text).stdout for one in ("-", "train.csv")]
    assert scores[0] == scores[1]


def test_a_model_that_was_fitted_on_an_array_takes_columns_by_place(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    model = DeepBasisRegressor(method="dbk-silu", epochs=2, members=1, rank=4, width=4, random_state=0).fit(X, X[:, 0])
    model.save(tmp_path / "m")
    pd.DataFrame(X, columns=["a", "b"]).assign(id=range(60), y=X[:, 0]).to_csv(tmp_path / "t.csv", index=False)
    out = good("predict", str(tmp_path / "m"), str(tmp_path / "t.csv"), "--id", "id", "--id", "y").stdout
    np.testing.assert_allclose([float(line.split(",")[2]) for line in out.splitlines()[1:]], model.predict(X))
    result = run("predict", str(tmp_path / "m"), str(tmp_path / "t.csv"))
    assert result.exit_code == 2
    assert "has 4 columns" in result.stderr
    assert "array of 2" in result.stderr


CELLS = {"zip": ["01234", "02345", "98101", "K1A", "NA"], "version": ["1.1", "1.10", "2", "beta", ""]}
CELLS["flag"] = ["true", "false", "unknown", "true", "false"]


def categories(n: int = 300) -> pd.DataFrame:
    """Text that looks like something else, in all rows but a few."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({name: rng.choice(cells, n) for name, cells in CELLS.items()}).assign(size=rng.normal(size=n))
    return table.assign(y=(table["zip"] == "01234") * 3.0 + (table["version"] == "1.10") - (table["flag"] == "true"))


@pytest.fixture(scope="module")
def of_categories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("categories")
    categories().to_csv(folder / "train.csv", index=False)
    good("fit", str(folder / "train.csv"), "-t", "y", "--out", str(folder / "model"), *SMALL, "--dtype", "float64")
    return folder


def test_what_a_csv_says_of_a_row_does_not_depend_on_the_other_rows(of_categories, tmp_path):
    """A file whose zips are all digits is asked of a model that knows K1A too."""
    model, table = str(of_categories / "model"), categories()
    whole = pd.read_csv(io.StringIO(good("predict", model, str(of_categories / "train.csv")).stdout))
    (tmp_path / "parts").mkdir()
    for cells in [("01234", "1.10", "true"), ("98101", "2", "false"), ("NA", "", "unknown")]:
        alike = (table[list(CELLS)] == list(cells)).all(axis=1)
        rows = table.assign(k=range(len(table)))[alike]
        assert len(rows)
        path = tmp_path / "parts" / f"{cells[0]}.csv"
        rows.to_csv(path, index=False)
        some = [good("predict", model, str(path)).stdout, good("predict", model, "-", input=path.read_bytes()).stdout]
        for told in some:
            np.testing.assert_allclose(pd.read_csv(io.StringIO(told)), whole.iloc[rows["k"]], rtol=1e-9)
        scores = json.loads(good("evaluate", model, str(path), "-t", "y", "--json").stdout)
        assert scores["mae"] == pytest.approx((whole["mean"].iloc[rows["k"]] - rows["y"]).abs().mean(), rel=1e-9)
    good("predict", model, str(tmp_path / "parts"), "--id", "k", "--out", str(tmp_path / "out"))
    told = pd.read_parquet(tmp_path / "out")
    np.testing.assert_allclose(told["mean"], whole["mean"].iloc[told["k"].astype(int)], rtol=1e-9)


def test_a_validation_file_is_read_as_the_training_table_was(of_categories, tmp_path):
    table = categories()
    digits = table[(table["zip"] == "01234") & (table["flag"] != "unknown") & (table["version"] == "1.10")]
    digits.to_csv(tmp_path / "csv.csv", index=False)
    digits.assign(zip="01234").to_parquet(tmp_path / "parquet.parquet", index=False)
    for kind in ("csv", "parquet"):
        words = ["--validation", str(tmp_path / f"{kind}.{kind}"), "--out", str(tmp_path / kind), *SMALL]
        good("fit", str(of_categories / "train.csv"), "-t", "y", *words)
    assert (tmp_path / "csv").read_bytes() == (tmp_path / "parquet").read_bytes()


def test_ids_of_a_csv_are_copied_as_they_stand(of_categories, tmp_path):
    model, out = str(of_categories / "model"), tmp_path / "out.csv"
    keys = ["00123", "1001", "", "9007199254740993", "NA", "1.10", "TRUE", '"a, b"']
    lines = [f"{key},{k}.50,01234,2,true" for k, key in enumerate(keys)]
    (tmp_path / "new.csv").write_text("\n".join(["key,size,zip,version,flag", *lines, ""]))
    good("predict", model, str(tmp_path / "new.csv"), "--id", "key", "--id", "size", "--out", str(out))
    told = [line.rsplit(",", 4) for line in out.read_text().splitlines()]
    assert [line[0] for line in told] == ["key,size", *(f"{key},{k}.50" for k, key in enumerate(keys))]
    assert len({line[1] for line in told[1:]}) == len(keys)  # size is an id and an input
    good("predict", model, str(tmp_path / "new.csv"), "--id", "key", "--out", str(tmp_path / "out.parquet"))
    kept = parquet.read_table(tmp_path / "out.parquet").column("key").to_pylist()
    assert kept == [None if key == "" else key.strip('"') for key in keys]


def test_evaluate_prints_a_table(here):
    told = good("evaluate", "model", "new.csv", "--target", "price").stdout
    for word in ("model on 30 rows of new.csv", "MAE", "NLL", "CRPS", "95 % intervals", "calibration error"):
        assert word in told


def test_a_warning_is_one_line_on_stderr(here, tmp_path, monkeypatch):
    def worried(self: DeepBasisRegressor, *arguments: object) -> DeepBasisRegressor:
        warnings.warn("look at\nthis", FitWarning, stacklevel=2)
        warnings.warn("somebody else's", UserWarning, stacklevel=2)
        return original(self, *arguments)

    original = DeepBasisRegressor.fit
    monkeypatch.setattr(DeepBasisRegressor, "fit", worried)
    arguments = ["fit", "train.csv", "-t", "price", "--out", str(tmp_path / "m"), *SMALL]
    assert "deepbasis: warning: look at this\n" in good(*arguments).stderr
    assert "somebody" not in good(*arguments).stderr
    assert "look at this" in json.loads(good(*arguments, "--json").stdout)["warnings"]
    assert good(*arguments, "--quiet").output == ""


def test_demo_quick(tmp_path):
    threads = torch.get_num_threads()
    told = good("demo", "--quick", "--out", str(tmp_path)).stdout
    for word in (
        "MAE",
        "NLL",
        "CRPS",
        "seconds",
        "RBF GP (sparse)",
        "DBK (exact)",
        "DBK (dPPGP)",
        "oracle",
        "demo.png",
    ):
        assert word in told
    assert os.listdir(tmp_path) == ["demo.png"]
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert torch.get_num_threads() == threads


# ---- help ------------------------------------------------------------------------------------------------------------


def parameters(command: str) -> dict[str, object]:
    return {parameter.name: parameter for parameter in get_command(cli.app).commands[command].params}


def test_every_constructor_argument_is_an_option_of_fit_with_the_same_default():
    options = parameters("fit")
    for name, argument in inspect.signature(DeepBasisRegressor).parameters.items():
        if name in ("random_state", "verbose"):  # --seed; shown unless --quiet
            continue
        assert f"--{name.replace('_', '-')}" in options[name].opts
        assert options[name].default == argument.default, name
    assert options["seed"].default is None


def test_every_parameter_of_every_command_is_explained():
    for name, command in get_command(cli.app).commands.items():
        assert command.help, name
        assert [parameter.name for parameter in command.params if not parameter.help] == []
        assert f"deepbasis {name}" in re.sub(r"\[.*?\]", "", command.help)  # an example


def test_the_words_for_completion_are_the_real_ones():
    assert set(cli.METHODS) == {"auto", *METHODS}
    assert set(cli.OBJECTIVES) == {*OBJECTIVES, EXACT}
    assert set(cli.RECIPES) == set(RECIPES)
    assert set(words.EMBEDDINGS) == {"auto", *EMBEDDINGS}
    assert set(words.TRENDS) == {"auto", *TRENDS}


def test_version():
    assert good("--version").stdout == f"deepbasis {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [["--help"], ["fit", "--help"], ["predict", "-h"], ["evaluate", "-h"], ["demo", "-h"]]
)
def test_help_shows_examples(arguments):
    assert "deepbasis " in good(*arguments).stdout


def test_help_answers_at_once():
    """Under 0.5 s on an idle machine; here with room for a busy one. Processor time says more than the clock."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(3):
        subprocess.run([*COMMAND, "--help"], capture_output=True, check=True, timeout=10)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 3 < 1.0


@pytest.mark.parametrize("arguments", [["--help"], ["fit", "--help"], ["--version"], ["fit", "x.csv"]])
def test_nothing_heavy_is_imported_until_there_is_work(arguments):
    code = (
        "import sys, atexit\nfrom deepbasis.__main__ import main\nsys.argv = ['deepbasis', *sys.argv[1:]]\n"
        "heavy = {'torch', 'numpy', 'pandas', 'sklearn', 'pyarrow', 'matplotlib'}\n"
        "atexit.register(lambda: print('loaded:', *sorted(heavy & set(sys.modules)), file=sys.stderr))\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "loaded:"


def test_the_shell_completes_commands_and_words():
    def completed(line: str) -> str:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
        environment = {**os.environ, "_DEEPBASIS_COMPLETE": "complete_bash", **words}
        return subprocess.run(COMMAND, env=environment, capture_output=True, text=True, check=False).stdout

    assert completed("deepbasis e").split() == ["evaluate"]
    assert completed("deepbasis fit --method d").split() == ["dbk-silu", "dbk-rbf", "dnn"]
    assert completed("deepbasis fit --method a").split() == ["auto"]
    assert "--validation-fraction" in completed("deepbasis fit --valid").split()


# ---- bad input -------------------------------------------------------------------------------------------------------


def write_bad_files(folder: Path, train: pd.DataFrame) -> None:
    """Each is named after what is wrong with it."""
    text = (folder / "train.csv").read_bytes()
    model = (folder / "model").read_bytes()
    (folder / "folder.csv").mkdir()
    for name, content in {
        "table.xlsx": text,
        "empty.csv": b"",
        "header.csv": text.splitlines(keepends=True)[0],
        "latin.csv": text.replace(b"red", "r\xe9d".encode("latin-1"), 1),
        "zipped.csv": b"\x1f\x8b" + text,
        "unzipped.csv.gz": text,
        "text.parquet": text,
        "cut.parquet": (folder / "train.parquet").read_bytes()[:-30],
        "ragged.csv": text + b"1,2,3\n",
        "semicolons.csv": text.replace(b",", b";"),
        "twice.csv": text.replace(b"weight", b"shop", 1),
        "cut.model": model[: len(model) // 2],
        "altered.model": model[:-1] + bytes([model[-1] ^ 1]),
        "empty.model": b"",
        "newer.model": model.replace(b'\\"format\\": 1', b'\\"format\\": 9', 1),
        "price.csv": b"price\n1\n2\n3\n",
        "one.csv": b"x,price\n1,2\n",
    }.items():
        (folder / name).write_bytes(content)
    storage.save(folder / "checkpoint.model", "checkpoint", {"x": torch.ones(1)}, {})
    parquet.write_table(
        pa.table({"a": [1.0] * 20, "nested": [[1]] * 20, "price": [1.0] * 20}), folder / "nested.parquet"
    )

    def with_cells(name: str, column: str, values: dict[int, object]) -> None:
        table = train.astype({column: object})
        for row, value in values.items():
            table.loc[row, column] = value
        table.to_csv(folder / name, index=False)

    with_cells("text_target.csv", "price", {7: "unknown"})
    with_cells("nan_target.csv", "price", {7: None, 9: None})
    with_cells("inf_target.csv", "price", {4: "inf"})
    with_cells("huge_target.csv", "price", {4: 1e200})
    with_cells("inf_size.csv", "size", {8: "-inf"})
    with_cells("text_size.csv", "size", {8: "large"})
    with_cells("old_day.csv", "day", {2: "0001-01-01"})
    train.assign(size=np.nan).to_csv(folder / "nothing_size.csv", index=False)
    with_cells("no_day.csv", "day", {2: "someday"})
    with_cells("negative_weight.csv", "weight", {6: -1})
    with_cells("text_weight.csv", "weight", {6: "heavy"})
    with_cells("nan_weight.csv", "weight", {6: None})
    with_cells("nan_shop.csv", "shop", {6: None})
    train.assign(weight=0).to_csv(folder / "zero_weight.csv", index=False)
    train.drop(columns="size").to_csv(folder / "no_size.csv", index=False)
    train.rename(columns={"size": "Size"}).to_csv(folder / "renamed.csv", index=False)
    train.rename(columns={"order": "mean"}).to_csv(folder / "mean.csv", index=False)


FIT = "fit train.csv -t price --out out"
"""What the cases of `fit` are made from; a later option of the same name holds."""

BAD: dict[str, list[str]] = {
    # what is not a command
    "fti train.csv": ["No such command 'fti'", "fit"],
    "--bogus": ["No such option: --bogus", "deepbasis --help"],
    "fit": ["Missing argument 'TRAIN'", "deepbasis fit --help"],
    "fit train.csv --out out": ["Missing option '--target'"],
    "fit train.csv -t price": ["Missing option '--out'"],
    "fit train.csv -t price --out": ["--out", "requires an argument"],
    "fit train.csv more.csv -t price --out out": ["unexpected extra argument", "more.csv"],
    "predict model": ["Missing argument 'NEW'"],
    "predict": ["Missing argument 'MODEL'"],
    "evaluate model new.csv": ["Missing option '--target'"],
    "evaluate model new.csv -t price --quiet": ["No such option: --quiet"],
    f"{FIT} --epoch 3": ["No such option: --epoch", "--epochs"],
    f"{FIT} --rank abc": ["'--rank'", "integer"],
    f"{FIT} --rank 1.5": ["'--rank'", "integer"],
    f"{FIT} --seed abc": ["'--seed'", "integer"],
    f"{FIT} --seed -1": ["'--seed'", "0"],
    f"{FIT} --seed 99999999999": ["--seed must be", "99999999999"],
    f"{FIT} --weight-decay abc": ["'--weight-decay'", "number"],
    f"{FIT} --validation-fraction tenth": ["--validation-fraction must be a number or auto, got 'tenth'"],
    "predict model new.csv --coverage abc": ["'--coverage'", "number"],
    # options that the estimator refuses
    f"{FIT} --method dbk": ["--method must be one of", "dbk-silu", "got 'dbk'"],
    f"{FIT} --recipe mine": ["--recipe must be one of default, paper", "'mine'"],
    f"{FIT} --objective mll": ["--objective must be one of", "mml", "'mll'"],
    f"{FIT} --trend bent": ["--trend must be one of", "linear", "'bent'"],
    f"{FIT} --embedding waves": ["--embedding must be one of", "fourier", "'waves'"],
    f"{FIT} --method sv-rbf --embedding fourier": ["sv-rbf", "--method", "embedding", "'fourier'"],
    f"{FIT} --method dnn --objective elbo": ["dnn", "--method", "objective"],
    f"{FIT} --rank 0": ["--rank must be a positive integer, got 0"],
    f"{FIT} --rank -3": ["--rank must be a positive integer, got -3"],
    f"{FIT} --width 0": ["--width must be a positive integer, got 0"],
    f"{FIT} --blocks 0": ["--blocks must be a positive integer"],
    f"{FIT} --members 0": ["--members must be a positive integer"],
    f"{FIT} --alpha -1": ["--alpha must be", ">= 0", "-1"],
    f"{FIT} --alpha nan": ["--alpha must be", "nan"],
    f"{FIT} --alpha inf": ["--alpha must be", "inf"],
    f"{FIT} --alpha small": ["--alpha must be a number or auto, got 'small'"],
    f"{FIT} --beta -0.5": ["--beta must be", ">= 0", "-0.5"],
    f"{FIT} --beta big": ["--beta must be a number or auto, got 'big'"],
    f"{FIT} --epochs 0": ["--epochs must be a positive integer, got 0"],
    f"{FIT} --epochs 1.5": ["--epochs must be a whole number or auto, got '1.5'"],
    f"{FIT} --epochs many": ["--epochs must be a whole number or auto"],
    f"{FIT} --batch-size 0": ["--batch-size must be a positive integer, got 0"],
    f"{FIT} --batch-size all": ["--batch-size must be a whole number or auto"],
    f"{FIT} --learning-rate 0": ["--learning-rate must be", "> 0"],
    f"{FIT} --learning-rate -1": ["--learning-rate must be", "> 0"],
    f"{FIT} --learning-rate fast": ["--learning-rate must be a number or auto"],
    f"{FIT} --weight-decay -1": ["--weight-decay must be", ">= 0"],
    f"{FIT} --weight-decay nan": ["--weight-decay must be"],
    f"{FIT} --validation-fraction 0": ["--validation-fraction must lie strictly between 0 and 1"],
    f"{FIT} --validation-fraction 1": ["--validation-fraction must lie strictly between 0 and 1"],
    f"{FIT} --validation-fraction 30": ["--validation-fraction must lie strictly between 0 and 1"],
    f"{FIT} --validation-fraction nan": ["--validation-fraction must"],
    f"{FIT} --patience 0": ["--patience must be a positive integer, got 0"],
    f"{FIT} --patience none": ["--patience must be a whole number or auto"],
    f"{FIT} --dtype float16": ["--dtype must be one of", "float32"],
    f"{FIT} --device quantum": ["--device must be", "quantum", "cpu"],
    f"{FIT} --compile maybe": ["--compile must be", "maybe"],
    f"{FIT} --calibrate maybe": ["--calibrate must be", "maybe"],
    # columns
    "fit train.csv -t prise --out out": ["'train.csv' has no column 'prise'; did you mean 'price'?"],
    "fit train.csv -t zzz --out out": ["'train.csv' has no column 'zzz'; it has 'order'"],
    "fit train.csv -t colour --out out": ["target column 'colour' of 'train.csv' must hold numbers", "row 0"],
    "fit train.csv -t day --out out": ["target column 'day'", "must hold numbers"],
    "fit text_target.csv -t price --out out": ["'price' of 'text_target.csv'", "'unknown' in row 7 (counting from 0)"],
    "fit nan_target.csv -t price --out out": ["'price' of 'nan_target.csv' has 2", "NaN", "row 7 (counting from 0)"],
    "fit inf_target.csv -t price --out out": ["'price' of 'inf_target.csv' has 1", "inf", "row 4"],
    "fit huge_target.csv -t price --out out": ["'price' of 'huge_target.csv'", "1e+200", "row 4"],
    f"{FIT} --weight mass": ["no column 'mass'"],
    f"{FIT} --weight colour": ["weight column 'colour' of 'train.csv' must hold numbers"],
    "fit negative_weight.csv -t price --weight weight --out out": ["--weight has 1", "negative", "row 6", "-1"],
    "fit text_weight.csv -t price --weight weight --out out": ["weight column 'weight'", "'heavy' in row 6"],
    "fit nan_weight.csv -t price --weight weight --out out": ["--weight has 1", "not finite", "row 6"],
    "fit zero_weight.csv -t price --weight weight --out out": ["every", "zero"],
    f"{FIT} --groups team": ["no column 'team'"],
    "fit nan_shop.csv -t price --groups shop --out out": ["--groups has 1 missing", "row 6"],
    f"{FIT} --drop ordr": ["no column 'ordr'; did you mean 'order'?"],
    f"{FIT} --drop price": ["--drop names the column 'price'", "--target"],
    f"{FIT} --drop day --drop day": ["--drop names the column 'day'"],
    f"{FIT} --weight price": ["--weight names the column 'price'", "--target"],
    f"{FIT} --weight shop --groups shop": ["--groups names the column 'shop'", "--weight"],
    "fit price.csv -t price --out out": ["'price.csv' has no column left"],
    "fit one.csv -t price --out out": ["at least 2 rows"],
    "fit inf_size.csv -t price --out out": ["'inf_size.csv': column 'size'", "infinite", "row 8 (counting from 0)"],
    "fit old_day.csv -t price --out out": ["'old_day.csv': column 'day'", "0001-01-01", "row 2"],
    "fit nothing_size.csv -t price --out out": ["'nothing_size.csv': column 'size'", "no values", "drop it"],
    "fit twice.csv -t price --out out": ["'twice.csv' has more than one column named 'shop'"],
    # files
    "fit none.csv -t price --out out": ["'none.csv' does not exist"],
    "fit none/ -t price --out out": ["'none/' does not exist"],
    "fit folder.csv -t price --out out": ["'folder.csv' holds no table", ".csv.gz or .parquet"],
    "fit table.xlsx -t price --out out": ["'table.xlsx'", ".csv, .csv.gz or .parquet"],
    "fit empty.csv -t price --out out": ["'empty.csv' is empty"],
    "fit header.csv -t price --out out": ["'header.csv' has a header but no rows"],
    "fit latin.csv -t price --out out": ["'latin.csv' is not UTF-8", "byte", "save it as UTF-8"],
    "fit zipped.csv -t price --out out": ["'zipped.csv' is gzipped", ".csv.gz"],
    "fit unzipped.csv.gz -t price --out out": ["'unzipped.csv.gz' is not gzipped"],
    "fit text.parquet -t price --out out": ["'text.parquet' is not a Parquet file"],
    "fit cut.parquet -t price --out out": ["'cut.parquet' is truncated"],
    "fit nested.parquet -t price --out out": ["'nested.parquet': column 'nested' is nested", "drop"],
    "fit ragged.csv -t price --out out": ["'ragged.csv', line 92: 3 fields where the header has 8"],
    "fit semicolons.csv -t price --out out": ["'semicolons.csv'", "semicolons", "commas"],
    "fit - -t price --out out": ["standard input is empty"],
    "fit - --validation - -t price --out out": ["cannot both be standard input"],
    f"{FIT} --validation none.csv": ["'none.csv' does not exist"],
    f"{FIT} --validation no_size.csv": ["'no_size.csv' has no column 'size'"],
    f"{FIT} --validation price.csv": ["'price.csv' has no column 'order'"],
    f"{FIT} --validation nan_target.csv": ["'price' of 'nan_target.csv' has 2"],
    f"{FIT} --validation inf_size.csv": ["'inf_size.csv': column 'size'", "infinite"],
    f"{FIT} --validation text_size.csv": ["'text_size.csv': column 'size'", "text"],
    # where a model cannot go
    "fit train.csv -t price --out no/model": ["cannot write 'no/model'", "folder 'no' does not exist", "create it"],
    "fit train.csv -t price --out train.csv/model": ["'train.csv' is not a folder"],
    "fit train.csv -t price --out folder.csv/": ["cannot write 'folder.csv'", "is a folder"],
    "fit train.csv -t price --out .": ["cannot write '.'", "is a folder"],
    "fit train.csv -t price --out train.csv": ["--out 'train.csv' has the name of a table"],
    "fit train.csv -t price --out -": ["--out cannot be standard output"],
    "fit train.csv -t price --out /proc/self/model": ["cannot write '/proc/self/model'"],
    # models that are none
    "predict none new.csv": ["MODEL 'none' does not exist", "deepbasis fit"],
    "predict folder.csv new.csv": ["MODEL 'folder.csv' is a folder"],
    "predict train.csv new.csv": ["train.csv is not a deepbasis file"],
    "predict empty.model new.csv": ["empty.model is not a deepbasis file"],
    "predict cut.model new.csv": ["cut.model"],
    "predict altered.model new.csv": ["altered.model is damaged"],
    "predict newer.model new.csv": ["newer.model has format 9", "upgrade"],
    "predict checkpoint.model new.csv": ["checkpoint.model is a deepbasis 'checkpoint' file"],
    "evaluate none new.csv -t price": ["MODEL 'none' does not exist"],
    "evaluate new.parquet new.csv -t price": ["new.parquet is not a deepbasis file"],
    # tables that do not fit the model
    "predict model none.csv": ["'none.csv' does not exist"],
    "predict model header.csv": ["'header.csv' has a header but no rows"],
    "predict model no_size.csv": ["'no_size.csv' has no column 'size'"],
    "predict model renamed.csv": ["'renamed.csv' has no column 'size'; did you mean 'Size'?"],
    "predict model inf_size.csv": ["'inf_size.csv': column 'size'", "infinite", "row 8"],
    "predict model text_size.csv": ["'text_size.csv': column 'size'", "text"],
    "predict model no_day.csv": ["'no_day.csv': column 'day'"],
    "predict model -": ["standard input is empty"],
    "predict model latin.csv": ["'latin.csv' is not UTF-8"],
    "predict model cut.parquet": ["'cut.parquet' is truncated"],
    "evaluate model no_size.csv -t price": ["'no_size.csv' has no column 'size'"],
    "evaluate model new.csv -t cost": ["'new.csv' has no column 'cost'"],
    "evaluate model new.csv -t colour": ["target column 'colour' of 'new.csv' must hold numbers"],
    "evaluate model nan_target.csv -t price": ["'price' of 'nan_target.csv' has 2"],
    "evaluate model folder.csv -t price": ["TEST 'folder.csv' is a folder or a pattern", "evaluate takes one file"],
    "evaluate model n*.csv -t price": ["TEST 'n*.csv' is a folder or a pattern", "evaluate takes one file"],
    # what to predict, and where to
    "predict model new.csv --id number": ["'new.csv' has no column 'number'"],
    "predict model new.csv --id order --id order": ["--id names the column 'order' twice"],
    "predict model mean.csv --id mean": ["--id 'mean' is also the name of a predicted column"],
    "predict model new.csv --coverage 0": ["--coverage must lie between 0 and 1", "got 0"],
    "predict model new.csv --coverage 1": ["--coverage must lie between 0 and 1", "got 1"],
    "predict model new.csv --coverage 95": ["--coverage must lie between 0 and 1", "for 95 % give 0.95"],
    "predict model new.csv --coverage -0.5": ["--coverage must lie between 0 and 1"],
    "predict model new.csv --coverage nan": ["--coverage must lie between 0 and 1"],
    "predict model new.csv --quantiles 0.1,half": ["--quantiles", "'half'"],
    "predict model new.csv --quantiles 0,0.5": ["--quantiles", "'0'"],
    "predict model new.csv --quantiles 0.5,1": ["--quantiles", "'1'"],
    "predict model new.csv --quantiles 10,90": ["--quantiles", "'10'"],
    "predict model new.csv --quantiles 0.1,,0.9": ["--quantiles", "''"],
    "predict model new.csv --quantiles 0.5,0.50": ["--quantiles has 0.5 twice"],
    "predict model new.csv --quantiles nan": ["--quantiles", "'nan'"],
    "predict model new.csv --out out.txt": ["cannot write 'out.txt'", ".csv, .csv.gz or .parquet"],
    "predict model new.csv --out no/out.csv": ["the folder 'no' does not exist"],
    "predict model new.csv --out new.csv": ["cannot write 'new.csv'", "also read"],
    "predict model new.csv --out folder.csv": ["'folder.csv'", "is a folder"],
    "predict model new.csv --out /proc/self/out.csv": ["cannot write '/proc/self/out.csv'"],
    # the demonstration
    "demo --out no": ["--out 'no' is not a folder"],
    "demo --out train.csv": ["--out 'train.csv' is not a folder"],
    "demo --seed -1": ["'--seed'"],
    "demo --quik": ["No such option: --quik", "--quick"],
}
if not torch.cuda.is_available():
    BAD[f"{FIT} --device cuda"] = ["--device 'cuda'", "CUDA device", "cpu"]


def everything(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir()}


def assert_one_line(result: Result, words: list[str]) -> None:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("deepbasis: error: ")
    assert result.stderr.count("\n") == 1
    assert [word for word in words if word not in result.stderr] == [], result.stderr


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_one_line_and_nothing_is_written(here, line):
    before = everything(here)
    assert_one_line(run(*line.split()), BAD[line])
    assert everything(here) == before


def test_there_are_enough_of_them():
    assert len(BAD) >= 80


@pytest.mark.parametrize("quantiles", ["", " ", ","])
def test_no_quantiles_at_all(here, quantiles):
    assert_one_line(run("predict", "model", "new.csv", "--quantiles", quantiles), ["--quantiles must be numbers"])


def test_a_name_with_a_newline_and_an_escape_stays_on_one_line(here):
    assert_one_line(run("predict", "model", "a\nb\x1b[31m.csv"), ["does not exist", "\\x1b[31m.csv"])


@pytest.mark.parametrize("name", ["model.safetensors", "out.csv"])
def test_a_full_disk(here, tmp_path, monkeypatch, name):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(storage.os, "fsync", full)
    out = ["--out", str(tmp_path / name)]
    command = ["predict", "model", "new.csv"] if name == "out.csv" else ["fit", "train.csv", "-t", "price", *SMALL]
    assert_one_line(run(*command, *out), [name, "no space left on device"])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), ["out of memory", "--batch-size"]),
        (torch.OutOfMemoryError("CUDA out of memory"), ["out of memory"]),
        (PermissionError(errno.EACCES, "Permission denied", "model"), ["'model': permission denied"]),
        (ModuleNotFoundError("No module named 'pandas'", name="pandas"), ["pandas", "pip install 'deepbasis[cli"]),
    ],
)
def test_what_the_system_refuses(here, monkeypatch, error, words):
    def refuse(path: str) -> None:
        raise error

    monkeypatch.setattr(DeepBasisRegressor, "load", refuse)
    assert_one_line(run("predict", "model", "new.csv"), words)


def test_a_surprise_is_one_line_too_and_status_1(here, monkeypatch):
    def surprise(path: str) -> None:
        raise RuntimeError("what\nnow")

    monkeypatch.setattr(DeepBasisRegressor, "load", surprise)
    result = run("predict", "model", "new.csv")
    assert result.exit_code == 1
    assert result.stderr.startswith("deepbasis: error: unexpected RuntimeError: what now")
    assert result.stderr.count("\n") == 1
    result = run("predict", "model", "new.csv", "--debug")
    assert result.exit_code == 1
    assert result.stderr.startswith("Traceback")


def test_ctrl_c_during_a_fit_writes_nothing(here, tmp_path):
    timer = threading.Timer(1.0, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    result = run(
        "fit",
        "train.csv",
        "-t",
        "price",
        "--out",
        str(tmp_path / "m"),
        *SMALL,
        "--epochs",
        "1000000",
        "--patience",
        "1000000",
    )
    timer.join()
    assert result.exit_code == 130
    assert result.stderr == "deepbasis: error: interrupted\n"
    assert os.listdir(tmp_path) == []


# ---- pipes, in processes of their own --------------------------------------------------------------------------------


def test_a_reader_that_has_seen_enough_is_no_error(here, tmp_path):
    """`deepbasis predict model - < new.csv | head -1`, with more than a pipe holds."""
    new = pd.concat([mixed_table(500, seed=1)] * 20)
    new.to_csv(tmp_path / "many.csv", index=False)
    with (tmp_path / "many.csv").open("rb") as table:
        process = subprocess.Popen(
            [*COMMAND, "predict", "model", "-"], stdin=table, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"mean,std,lower_95,upper_95\n"
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        process.stderr.close()
        assert process.wait(timeout=60) == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_standard_output_that_is_full(here):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "predict", "model", "new.csv"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 2
    assert done.stderr.decode().startswith("deepbasis: error: ")
    assert "no space left" in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_without_its_libraries_the_command_says_what_to_install(monkeypatch, capsys):
    from deepbasis.__main__ import main

    monkeypatch.delitem(sys.modules, "deepbasis.cli")
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "deepbasis: error: the command needs typer: pip install 'deepbasis[cli,plots]'\n"
    )
