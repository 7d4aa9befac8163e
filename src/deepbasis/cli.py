"""The command: `deepbasis fit | predict | evaluate | demo`.

Thin: options, files and messages. torch, pandas and scikit-learn are imported by the command that needs them, so that
`--help` answers at once. What can go wrong on purpose (a `DeepBasisError`, the system's refusals) is one line on stderr
and exit status 2, with nothing written; the unforeseen is one line and status 1, with its traceback under `--debug`.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from deepbasis import __version__
from deepbasis.errors import DeepBasisError, InputError
from deepbasis.tables import files

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from deepbasis.estimator import DeepBasisRegressor

AUTO = "auto"
METHODS = ("dbk-silu", "dbk-rbf", "vbll", "sv-dkl", "pp-dkl", "sv-rbf", "dnn")
"""For the help and the shell's completion, which must not import torch; a test compares them with the real table."""
OBJECTIVES = ("dppgp", "ppgp", "elbo", "mse", "mml")
RECIPES = ("default", "paper")

_ROWS = "(counting from 0)"
_BROKEN_PIPE = 141  # 128 + SIGPIPE, as of a command that the signal ended
_INTERRUPTED = 130  # 128 + SIGINT


# ---- errors --------------------------------------------------------------------------------------------------------


class _Group(TyperGroup):
    """The commands, with every error as one line."""

    debug = False

    def main(self, *args: Any, **extra: Any) -> Any:
        standalone = extra.pop("standalone_mode", True)
        words = args[0] if args else extra.get("args")
        self.debug = "--debug" in (sys.argv if words is None else words)
        try:
            status = super().main(*args, **{**extra, "standalone_mode": False})
        except Exception as error:
            message = getattr(error, "format_message", None)  # what typer finds wrong with the arguments
            if message is None:
                raise
            context = getattr(error, "ctx", None)
            help_of = context.command_path if context is not None else "deepbasis"
            if type(error).__name__ == "NoArgsIsHelpError":
                typer.echo(message(), err=True)
            else:
                _complain(f"{_one_line(message()).rstrip('.')}; see '{help_of} --help'")
            status = 2
        if standalone:
            sys.exit(status if isinstance(status, int) else 0)
        return status

    def invoke(self, ctx: Any) -> Any:
        status = _status(lambda: super(_Group, self).invoke(ctx), debug=self.debug)
        if status:
            raise typer.Exit(status)


def _status(work: Callable[[], Any], *, debug: bool) -> int:
    """Do it, and say in one line what went wrong if something did."""
    try:
        work()
        sys.stdout.flush()
        return 0
    except KeyboardInterrupt:
        _complain("interrupted")
        return _INTERRUPTED
    except BrokenPipeError:  # `| head`: whoever read has seen enough
        _let_go_of_stdout()
        return _BROKEN_PIPE
    except Exception as error:
        if isinstance(error, typer.Exit | typer.Abort) or hasattr(error, "format_message"):
            raise
        if debug:
            traceback.print_exc()
        if isinstance(error, OSError):
            _let_go_of_stdout()
        expected = _expected(error)
        _complain(
            expected or f"unexpected {type(error).__name__}: {error}; please report it, with the output of --debug"
        )
        return 2 if expected else 1


def _expected(error: Exception) -> str:
    """What to say about an error that may happen; "" for a surprise."""
    if isinstance(error, DeepBasisError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("deepbasis"):
        return f"this needs {error.name}, which is not installed: pip install 'deepbasis[cli,plots]'"
    if isinstance(error, MemoryError) or _is_out_of_memory(error):
        return "out of memory; use fewer --members, a smaller --batch-size or --rank, or fewer rows"
    if isinstance(error, OSError):
        name = f"'{error.filename}': " if error.filename else "reading or writing failed: "
        return f"{name}{(error.strerror or str(error)).lower()}"
    return ""


def _is_out_of_memory(error: Exception) -> bool:
    if "torch" not in sys.modules:
        return False
    from deepbasis.engine.memory import is_out_of_memory

    return is_out_of_memory(error)


def _complain(message: str, kind: str = "error") -> None:
    print(f"deepbasis: {kind}: {_one_line(message)}", file=sys.stderr)


def _one_line(message: str) -> str:
    words = " ".join(message.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)


def _let_go_of_stdout() -> None:
    """What is still in the buffer cannot be written; the interpreter would try again when it ends, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _notices(quiet: bool) -> Iterator[list[str]]:
    """Our warnings, and what the engine logs, as lines on stderr when the block is over; they are also in the list."""
    notices: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: notices.append(_one_line(record.getMessage()))  # type: ignore[method-assign]
    logger = logging.getLogger("deepbasis")
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UserWarning)
            yield notices
        ours = [warning for warning in caught if warning.category.__module__.startswith("deepbasis.")]
        notices += [_one_line(str(warning.message)) for warning in ours]
    finally:
        logger.removeHandler(handler)
    if any("was interrupted" in notice for notice in notices):
        raise KeyboardInterrupt  # the estimator gives the best so far; a command that was told to stop does not save it
    if not quiet:
        for notice in notices:
            _complain(notice, "warning")


# ---- options -------------------------------------------------------------------------------------------------------

app = typer.Typer(
    cls=_Group,
    name="deepbasis",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_TABLE = "CSV (.csv, .csv.gz) or Parquet (.parquet); '-' reads CSV from standard input."
_MODEL, _TRAINING, _COLUMNS, _OUTPUT = "The model", "Training", "Columns", "Output"

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.", rich_help_panel=_OUTPUT)]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="Print nothing but errors: no progress, no summary, no warnings.", rich_help_panel=_OUTPUT
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=_OUTPUT)]
Target = Annotated[
    str, typer.Option("--target", "-t", metavar="COLUMN", help="The column to predict.", rich_help_panel=_COLUMNS)
]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model that 'deepbasis fit' wrote.", show_default=False)]


def _choice(words: Sequence[str], help: str, panel: str) -> Any:
    return typer.Option(
        metavar="|".join(words),
        help=help,
        rich_help_panel=panel,
        autocompletion=lambda incomplete: [word for word in words if word.startswith(incomplete)],
    )


def _option(metavar: str, help: str, panel: str, **more: Any) -> Any:
    return typer.Option(metavar=metavar, help=help, rich_help_panel=panel, **more)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"deepbasis {__version__}")
        raise typer.Exit


@app.callback()
def deepbasis(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Regression with calibrated uncertainty on tables: Gaussian processes with deep basis kernels.

    [bold]deepbasis fit[/bold] train.csv --target price --out model.safetensors

    [bold]deepbasis predict[/bold] model.safetensors new.csv --out predictions.csv
    """


@app.command()
def fit(
    train: Annotated[str, typer.Argument(metavar="TRAIN", help=f"The training table: {_TABLE}", show_default=False)],
    target: Target,
    out: Annotated[str, _option("MODEL", "Where to write the model, by habit a .safetensors file.", _OUTPUT)],
    weight: Annotated[str | None, _option("COLUMN", "Weights of the rows, 0 or more.", _COLUMNS)] = None,
    groups: Annotated[
        str | None, _option("COLUMN", "Rows of one group are never both trained on and held out.", _COLUMNS)
    ] = None,
    drop: Annotated[
        list[str] | None, _option("COLUMN", "A column to leave out; may be given several times.", _COLUMNS)
    ] = None,
    method: Annotated[str, _choice(METHODS, "The paper's method.", _MODEL)] = "dbk-silu",
    recipe: Annotated[str, _choice(RECIPES, "What 'auto' stands for.", _MODEL)] = "default",
    objective: Annotated[
        str | None, _choice(OBJECTIVES, "Instead of the method's own; mml is exact inference.", _MODEL)
    ] = None,
    rank: Annotated[int, _option("INTEGER", "Basis functions.", _MODEL)] = 128,
    width: Annotated[int, _option("INTEGER", "Width of the network.", _MODEL)] = 64,
    blocks: Annotated[int, _option("INTEGER", "Residual blocks of the network.", _MODEL)] = 2,
    alpha: Annotated[
        str, _option("NUMBER|auto", "Weight of the trace regulariser; auto: chosen on the validation rows.", _MODEL)
    ] = AUTO,
    beta: Annotated[
        str, _option("NUMBER|auto", "Weight of the KL regulariser; auto: chosen on the validation rows.", _MODEL)
    ] = AUTO,
    members: Annotated[int, _option("INTEGER", "Models in the ensemble.", _MODEL)] = 4,
    validation: Annotated[
        str | None, _option("FILE", "Rows to stop early on; otherwise a part of TRAIN is held out.", _TRAINING)
    ] = None,
    epochs: Annotated[str, _option("INTEGER|auto", "Passes over the rows, at most.", _TRAINING)] = AUTO,
    batch_size: Annotated[str, _option("INTEGER|auto", "Rows of a step.", _TRAINING)] = AUTO,
    learning_rate: Annotated[str, _option("NUMBER|auto", "Of AdamW.", _TRAINING)] = AUTO,
    weight_decay: Annotated[float, _option("NUMBER", "Of AdamW, for the network alone.", _TRAINING)] = 1e-2,
    validation_fraction: Annotated[float, _option("NUMBER", "Share of TRAIN that is held out.", _TRAINING)] = 0.1,
    patience: Annotated[
        str, _option("INTEGER|auto", "Epochs without progress after which a member stops.", _TRAINING)
    ] = AUTO,
    dtype: Annotated[str, _choice((AUTO, "float32", "float64"), "Precision.", _TRAINING)] = AUTO,
    device: Annotated[str, _option("auto|cpu|cuda|cuda:K", "Where to compute.", _TRAINING)] = AUTO,
    compile: Annotated[str, _choice((AUTO, "true", "false"), "Whether to use torch.compile.", _TRAINING)] = AUTO,
    seed: Annotated[int | None, _option("INTEGER", "For the same model again.", _TRAINING, min=0)] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fit a model to a table and save it.

    Columns may hold numbers, true and false, dates or text, and may have gaps; the target may not.

    [bold]deepbasis fit[/bold] train.csv --target price --out model.safetensors --seed 0

    [bold]deepbasis fit[/bold] sales.parquet -t units --groups shop --drop row_id --members 8 --out sales.safetensors
    """
    files_read = [train, validation]
    if files_read == [files.STANDARD] * 2:
        raise InputError("TRAIN and --validation cannot both be standard input: give one of them as a file")
    _check_roles(target, weight, groups, drop or [])
    _check_model_path(out, files_read)
    start = time.perf_counter()
    with _notices(quiet) as notices:
        from deepbasis.estimator import DeepBasisRegressor

        arguments: dict[str, Any] = {
            "method": method,
            "recipe": recipe,
            "objective": objective,
            "rank": rank,
            "width": width,
            "blocks": blocks,
            "alpha": _number_or_auto("--alpha", alpha, float),
            "beta": _number_or_auto("--beta", beta, float),
            "members": members,
            "epochs": _number_or_auto("--epochs", epochs, int),
            "batch_size": _number_or_auto("--batch-size", batch_size, int),
            "learning_rate": _number_or_auto("--learning-rate", learning_rate, float),
            "weight_decay": weight_decay,
            "validation_fraction": validation_fraction,
            "patience": _number_or_auto("--patience", patience, int),
            "dtype": dtype,
            "device": device,
            "compile": {"true": True, "false": False}.get(compile, compile),
            "random_state": seed,
            "verbose": not quiet,
        }
        model = DeepBasisRegressor(**arguments)
        with _options_named():
            model._check_parameters()  # before the table is read
        X, y, sample_weight, group_labels = _training_table(train, target, weight, groups, drop or [])
        checked = None if validation is None else _validation_table(validation, target, list(X.columns))
        with _options_named(), _table_named(train, validation):
            model.fit(X, y, sample_weight, group_labels, *(checked or (None, None)))
    model.verbose = False  # it was for this terminal, and is no property of the model
    try:
        model.save(out)
    except OSError as error:
        raise InputError(files.cannot_write(out, error)) from None
    if not quiet:
        _tell_of_fit(model, out, X, time.perf_counter() - start, notices, as_json)


@app.command()
def predict(
    model: Model,
    new: Annotated[str, typer.Argument(metavar="NEW", help=f"The rows to predict: {_TABLE}", show_default=False)],
    out: Annotated[
        str, _option("FILE", "Where to write: .csv, .csv.gz or .parquet; '-' is CSV on standard output.", _OUTPUT)
    ] = files.STANDARD,
    ids: Annotated[
        list[str] | None,
        typer.Option(
            "--id",
            metavar="COLUMN",
            help="A column of NEW to copy to the front; may be given several times.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    coverage: Annotated[
        float | None,
        _option("NUMBER", "Of the interval: how many of the targets it should hold.", _OUTPUT, show_default="0.95"),
    ] = None,
    quantiles: Annotated[
        str | None, _option("Q,Q,...", "Quantiles instead of the interval, such as 0.1,0.5,0.9.", _OUTPUT)
    ] = None,
    debug: Debug = False,
) -> None:
    """Predict the rows of a table: the columns mean, std, lower_95 and upper_95, after those named by --id.

    Columns are found by name; those that the model does not know, the target among them, are left alone.

    [bold]deepbasis predict[/bold] model.safetensors new.csv --id order --out predictions.csv

    [bold]deepbasis predict[/bold] model.safetensors - --quantiles 0.1,0.5,0.9 < new.csv | head
    """
    levels = None if quantiles is None else _levels(quantiles)
    interval = _coverage(coverage) if coverage is not None else None if levels else 0.95
    columns = _predicted_columns(interval, levels or [])
    _check_ids(ids or [], columns)
    if out != files.STANDARD:
        files.check_output(out, endings=files.ENDINGS, inputs=[model, new])
    with _notices(quiet=False):
        import numpy as np
        import pandas as pd

        regressor = _load(model)
        X, kept = _new_table(regressor, new, ids or [])
        with _table_named(new):
            predicted = regressor.predict_dist(X)
        numbers = [predicted.mean, predicted.std]
        numbers += [] if interval is None else predicted.interval(interval)
        numbers += [predicted.quantile(level) for level in levels or []]
        table = pd.DataFrame({name: np.asarray(values) for name, values in zip(columns, numbers, strict=True)})
        table = pd.concat([kept, table], axis=1)
    files.write_table(table, out)


@app.command()
def evaluate(
    model: Model,
    test: Annotated[str, typer.Argument(metavar="TEST", help=f"Rows with their targets: {_TABLE}", show_default=False)],
    target: Target,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare predictions with the targets of a table: accuracy, likelihood, calibration.

    [bold]deepbasis evaluate[/bold] model.safetensors test.csv --target price

    [bold]deepbasis evaluate[/bold] model.safetensors test.parquet -t price --json | jq .nll
    """
    with _notices(quiet=False):
        regressor = _load(model)
        X, kept = _new_table(regressor, test, [target])
        with _table_named(test):
            scores = regressor.evaluate(X, _target(kept, target, test))
    if as_json:
        _print_json({"rows": len(X), **scores})
    else:
        _print_scores(scores, f"{Path(model).name} on {len(X):,} rows of {Path(test).name}")


@app.command()
def demo(
    out: Annotated[str, _option("FOLDER", "Where to write the figure, demo.png.", _OUTPUT)] = ".",
    quick: Annotated[
        bool, typer.Option("--quick", help="A few steps only: does it run? The figures mean nothing.")
    ] = False,
    seed: Annotated[int, _option("INTEGER", "Of the data and of the models.", _OUTPUT, min=0)] = 0,
    debug: Debug = False,
) -> None:
    """Fit the paper's 1-D example by three methods: a table of scores, and a figure of what each has learned.

    It takes about half a minute on two cores.

    [bold]deepbasis demo[/bold] --out /tmp
    """
    if not Path(out).is_dir():
        raise InputError(f"--out '{out}' is not a folder: create it, or choose another")
    place = Path(out) / "demo.png"
    files.check_output(place)
    from deepbasis import plots

    plots.new_figure(1, 1)  # is matplotlib there? Ask before the work, not after it.
    from deepbasis.engine.progress import ProgressBar
    from deepbasis.experiments import demo as experiment

    size = experiment.QUICK if quick else experiment.FULL
    with ProgressBar() as bar:
        result = experiment.run(size, seed=seed, progress=lambda name: bar)
    files.write_bytes(place, plots.png(experiment.figure(result)))
    _print_demo(result, quick)
    typer.echo(f"The figure is in {place}")


# ---- tables --------------------------------------------------------------------------------------------------------


def _check_roles(target: str, weight: str | None, groups: str | None, drop: Sequence[str]) -> None:
    """A column has one part to play."""
    roles: dict[str, str] = {}
    named = [("--target", target), ("--weight", weight), ("--groups", groups), *(("--drop", column) for column in drop)]
    for option, column in named:
        if column is None:
            continue
        if column in roles:
            twice = f"{option} names the column '{column}', which {roles[column]} names already"
            raise InputError(f"{twice}: a column can have one part only")
        roles[column] = option


def _check_model_path(out: str, inputs: Iterable[str | None]) -> None:
    if out == files.STANDARD:
        raise InputError("--out cannot be standard output: a model is a file; give a name such as model.safetensors")
    if out.lower().endswith(files.ENDINGS):
        raise InputError(f"--out '{out}' has the name of a table, and a model is none: let it end in .safetensors")
    files.check_output(out, inputs=inputs)


def _training_table(
    train: str, target: str, weight: str | None, groups: str | None, drop: Sequence[str]
) -> tuple[pd.DataFrame, np.ndarray[Any, Any], np.ndarray[Any, Any] | None, Any]:
    table = files.read_table(train, drop=drop)
    beside = [column for column in (target, weight, groups) if column is not None]
    files.check_columns(table, beside, files.display_name(train))
    X = table.drop(columns=beside)
    if X.shape[1] == 0:
        raise InputError(
            f"{files.display_name(train)} has no column left to predict '{target}' from: it needs one at least"
        )
    y = _target(table, target, train)
    sample_weight = None if weight is None else _column_of_numbers(table, weight, train, "weight column")
    return X, y, sample_weight, None if groups is None else table[groups].to_numpy()


def _validation_table(validation: str, target: str, columns: list[str]) -> tuple[pd.DataFrame, np.ndarray[Any, Any]]:
    table = files.read_table(validation, [*columns, target])
    return table[columns], _target(table, target, validation)


def _new_table(model: DeepBasisRegressor, path: str, beside: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The model's columns of a table in the model's order, and those in `beside`."""
    names = getattr(model, "feature_names_in_", None)
    if names is None:  # fitted in Python on an array: its columns have a number only
        table = files.read_table(path)
        files.check_columns(table, beside, files.display_name(path))
        X = table.drop(columns=list(beside))
        if X.shape[1] != model.n_features_in_:
            raise InputError(
                f"{files.display_name(path)} has {X.shape[1]} columns beside those named by options, but the model "
                f"was fitted on an array of {model.n_features_in_} without names: give exactly those, in their order"
            )
        X.columns = range(X.shape[1])
        return X, table[list(beside)]
    table = files.read_table(path, list(dict.fromkeys([*beside, *names])))
    return table[list(names)], table[list(beside)]


def _target(table: pd.DataFrame, column: str, path: str) -> np.ndarray[Any, Any]:
    from deepbasis.tables.preprocessing import check_target

    role = "target column"
    with _rows_explained():
        return check_target(
            _column_of_numbers(table, column, path, role), f"{role} '{column}' of {files.display_name(path)}"
        )


def _column_of_numbers(table: pd.DataFrame, column: str, path: str, role: str) -> np.ndarray[Any, Any]:
    """As float64, NaN where missing. One cell of text makes a column of a CSV text: it is the one to be named."""
    import numpy as np
    import pandas as pd

    values = table[column]
    if not (pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values)):
        cells = values.astype(object)
        odd = pd.to_numeric(cells, errors="coerce").isna() & cells.notna()
        row = int(np.argmax(odd.to_numpy()))
        raise InputError(
            f"{role} '{column}' of {files.display_name(path)} must hold numbers, got '{cells.iloc[row]!s:.40}' "
            f"in row {row} {_ROWS}; mend that cell, or choose another column"
        )
    return values.to_numpy(dtype=np.float64, na_value=np.nan)


def _load(path: str) -> DeepBasisRegressor:
    place = Path(path)
    if place.is_dir():
        raise InputError(f"MODEL '{path}' is a folder: give the name of the file that 'deepbasis fit' wrote")
    if not place.exists():
        raise InputError(f"MODEL '{path}' does not exist: check the path; 'deepbasis fit' makes one")
    from deepbasis.estimator import DeepBasisRegressor

    return DeepBasisRegressor.load(path)


# ---- what messages call things -------------------------------------------------------------------------------------


_OPTIONS = {
    **{
        name: f"--{name.replace('_', '-')}"
        for name in (
            *("method", "recipe", "objective", "rank", "width", "blocks", "alpha", "beta", "members", "epochs"),
            *("batch_size", "learning_rate", "weight_decay", "validation_fraction", "patience", "dtype", "device"),
            *("compile", "groups"),
        )
    },
    "sample_weight": "--weight",
    "random_state": "--seed",
}


@contextmanager
def _options_named() -> Iterator[None]:
    """An argument of the estimator is an option here: batch_size is --batch-size."""
    try:
        yield
    except InputError as error:
        word, separator, rest = str(error).partition(" ")
        if word not in _OPTIONS:
            raise
        raise InputError(f"{_OPTIONS[word]}{separator}{rest}") from error


@contextmanager
def _table_named(path: str, validation: str | None = None) -> Iterator[None]:
    """The estimator's X and X_val are files here."""
    try:
        with _rows_explained():
            yield
    except InputError as error:
        found = re.match(r"(X_val|X)(: X)?(?=[ :])", str(error))
        if found is None:
            raise
        name = files.display_name(validation if found[1] == "X_val" and validation is not None else path)
        raise InputError(f"{name}{str(error)[found.end() :]}") from error


@contextmanager
def _rows_explained() -> Iterator[None]:
    try:
        yield
    except InputError as error:
        explained, found = re.subn(r"(\brow \d+)", rf"\1 {_ROWS}", str(error), count=1)
        if not found or _ROWS in str(error):
            raise
        raise InputError(explained) from error


def _number_or_auto(option: str, text: str, kind: type[int] | type[float]) -> int | float | str:
    if text == AUTO:
        return AUTO
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise InputError(f"{option} must be {what} or auto, got '{text}'") from None


def _coverage(value: float) -> float:
    if not 0.0 < value < 1.0:
        hint = f"; for {value:g} % give {value / 100:g}" if 1.0 < value < 100.0 else ""
        raise InputError(f"--coverage must lie between 0 and 1, as 0.95 does, got {value:g}{hint}")
    return value


def _levels(text: str) -> list[float]:
    levels: list[float] = []
    for word in text.split(","):
        try:
            level = float(word)
        except ValueError:
            level = math.nan
        if not 0.0 < level < 1.0:
            got = f"'{word.strip()}'"
            raise InputError(f"--quantiles must be numbers between 0 and 1 with commas between, got {got} in '{text}'")
        if level in levels:
            raise InputError(f"--quantiles has {level:g} twice: name each quantile once")
        levels.append(level)
    return levels


def _predicted_columns(interval: float | None, levels: Sequence[float]) -> list[str]:
    """mean, std, lower_95, upper_95, q_0.1 ..."""
    percent = None if interval is None else f"{100.0 * interval:.12g}"
    ends = [] if percent is None else [f"lower_{percent}", f"upper_{percent}"]
    return ["mean", "std", *ends, *(f"q_{level:.12g}" for level in levels)]


def _check_ids(ids: Sequence[str], predicted: Sequence[str]) -> None:
    for k, column in enumerate(ids):
        if column in ids[:k]:
            raise InputError(f"--id names the column '{column}' twice: name it once")
        if column in predicted:
            raise InputError(f"--id '{column}' is also the name of a predicted column: rename it in the table")


# ---- output --------------------------------------------------------------------------------------------------------


def _tell_of_fit(
    model: DeepBasisRegressor, out: str, X: pd.DataFrame, seconds: float, notices: list[str], as_json: bool
) -> None:
    scores = model.validation_
    members = len(model.history_)
    if as_json:
        _print_json(
            {
                "model": out,
                "method": model.method,
                "members": members,
                "rows": len(X),
                "columns": X.shape[1],
                "seconds": seconds,
                "alpha": model.alpha_,
                "beta": model.beta_,
                "validation": scores,
                "warnings": notices,
            }
        )
        return
    columns = "1 column" if X.shape[1] == 1 else f"{X.shape[1]:,} columns"
    models = "1 model" if members == 1 else f"{members} models"
    typer.echo(f"{out}: {models} ({model.method}) fitted to {len(X):,} rows of {columns} in {seconds:.1f} s")
    typer.echo(
        f"validation: NLL {scores['nll']:.4g}, CRPS {scores['crps']:.4g}, MAE {scores['mae']:.4g}, "
        f"{100 * scores['coverage_95']:.1f} % of the targets in their 95 % intervals"
    )


def _print_json(record: dict[str, Any]) -> None:
    typer.echo(json.dumps(_finite(record), allow_nan=False, indent=2, ensure_ascii=False))


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: null."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_WORDS = {
    "mae": "MAE",
    "rmse": "RMSE",
    "nll": "NLL, nats a row",
    "crps": "CRPS",
    "coverage_95": "targets in their 95 % intervals",
    "width_95": "width of the 95 % intervals",
    "calibration_error": "calibration error",
}


def _print_scores(scores: dict[str, float], title: str) -> None:
    table = _table(title, ["", "value"])
    for name, value in scores.items():
        table.add_row(_WORDS.get(name, name), f"{100 * value:.1f} %" if name == "coverage_95" else f"{value:.5g}")
    _console().print(table)


def _print_demo(result: Any, quick: bool) -> None:
    from deepbasis.experiments.demo import verdict

    size = result.size
    title = f"The 1-D example: {size.train:,} training rows, {size.test:,} test rows"
    table = _table(title, ["", "MAE", "NLL", "above oracle", "CRPS", "in 95 %", "rank", "seconds"])
    for row in result.records():
        table.add_row(
            row["name"],
            f"{row['mae']:.4f}",
            f"{row['nll']:.3f}",
            f"{row['nll'] - result.oracle['nll']:.3f}",
            f"{row['crps']:.4f}",
            f"{100 * row['coverage_95']:.1f} %",
            "" if row["rank"] is None else f"{row['rank']:.1f}",
            "" if row["seconds"] is None else f"{row['seconds']:.1f}",
        )
    console = _console()
    console.print(table)
    lines = ["Quick: far too few steps for these figures to mean anything."] if quick else verdict(result)
    for line in lines:
        console.print(f"- {line}", highlight=False, soft_wrap=not console.is_terminal)


def _table(title: str, columns: Sequence[str]) -> Any:
    from rich.table import Table

    table = Table(title=title, title_style="bold", title_justify="left")
    for k, column in enumerate(columns):
        table.add_column(column, justify="right" if k else "left", no_wrap=True)
    return table


def _console() -> Any:
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=100)


def main() -> None:
    app(prog_name="deepbasis")
