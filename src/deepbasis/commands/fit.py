"""`deepbasis fit`: from a table to a model."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepbasis.commands.failures import notices
from deepbasis.commands.fitting import Columns, Scale, fit_files, fit_table, is_large
from deepbasis.commands.options import (
    AUTO,
    EMBEDDINGS,
    METHODS,
    MODEL,
    OBJECTIVES,
    OUTPUT,
    RECIPES,
    ROLES,
    SCALE,
    TABLE,
    TRAINING,
    TRENDS,
    Debug,
    Json,
    Quiet,
    Target,
    choice,
    option,
)
from deepbasis.commands.printing import print_json
from deepbasis.commands.tables import check_model_path
from deepbasis.commands.together import working_together
from deepbasis.commands.wording import number_or_auto, options_named, true_false_or_auto
from deepbasis.errors import InputError
from deepbasis.tables.output import cannot_write
from deepbasis.tables.places import STANDARD

if TYPE_CHECKING:
    from deepbasis.estimator import DeepBasisRegressor


def fit(
    train: Annotated[
        str,
        typer.Argument(
            metavar="TRAIN",
            help=f"The training table: {TABLE} Or a folder of such files, or a pattern ('sales/*.parquet').",
            show_default=False,
        ),
    ],
    target: Target,
    out: Annotated[str, option("MODEL", "Where to write the model, by habit a .safetensors file.", OUTPUT)],
    weight: Annotated[str | None, option("COLUMN", "Weights of the rows, 0 or more.", ROLES)] = None,
    groups: Annotated[
        str | None, option("COLUMN", "Rows of one group are never both trained on and held out.", ROLES)
    ] = None,
    drop: Annotated[
        list[str] | None, option("COLUMN", "A column to leave out; may be given several times.", ROLES)
    ] = None,
    method: Annotated[str, choice(METHODS, "auto: dbk-silu, or on a small table a shallow kernel.", MODEL)] = AUTO,
    recipe: Annotated[str, choice(RECIPES, "What 'auto' stands for.", MODEL)] = "default",
    objective: Annotated[
        str | None, choice(OBJECTIVES, "Instead of the method's own; mml is exact inference.", MODEL)
    ] = None,
    rank: Annotated[int, option("INTEGER", "Basis functions.", MODEL)] = 128,
    width: Annotated[int, option("INTEGER", "Width of the network.", MODEL)] = 64,
    blocks: Annotated[int, option("INTEGER", "Residual blocks of the network.", MODEL)] = 2,
    inner: Annotated[str, option("INTEGER|auto", "Width inside a block.", MODEL)] = AUTO,
    embedding: Annotated[
        str, choice(EMBEDDINGS, "Before the network; auto: fourier for maps (two or three number columns).", MODEL)
    ] = AUTO,
    trend: Annotated[
        str, choice(TRENDS, "Prior mean; auto: for half of the members a line, where it explains nine tenths.", MODEL)
    ] = AUTO,
    alpha: Annotated[str, option("NUMBER|auto", "Weight of the trace regulariser; auto: the recipe's.", MODEL)] = AUTO,
    beta: Annotated[str, option("NUMBER|auto", "Weight of the KL regulariser; auto: the recipe's.", MODEL)] = AUTO,
    members: Annotated[int, option("INTEGER", "Models in the ensemble.", MODEL)] = 4,
    validation: Annotated[
        str | None, option("FILE", "Rows to stop early on; otherwise a part of TRAIN is held out.", TRAINING)
    ] = None,
    epochs: Annotated[str, option("INTEGER|auto", "Passes over the rows, at most.", TRAINING)] = AUTO,
    batch_size: Annotated[str, option("INTEGER|auto", "Rows of a step.", TRAINING)] = AUTO,
    learning_rate: Annotated[str, option("NUMBER|auto", "Of AdamW.", TRAINING)] = AUTO,
    weight_decay: Annotated[float, option("NUMBER", "Of AdamW, for the network alone.", TRAINING)] = 1e-2,
    validation_fraction: Annotated[
        str,
        option("NUMBER|auto", "Share of TRAIN held out; auto: 0.1; of a small table a quarter, by turns.", TRAINING),
    ] = AUTO,
    patience: Annotated[
        str, option("INTEGER|auto", "Epochs without progress after which a member stops.", TRAINING)
    ] = AUTO,
    calibrate: Annotated[
        str, choice((AUTO, "true", "false"), "Whether to calibrate the predictions on the validation rows.", TRAINING)
    ] = AUTO,
    dtype: Annotated[str, choice((AUTO, "float32", "float64"), "Precision.", TRAINING)] = AUTO,
    device: Annotated[str, option("auto|cpu|cuda|cuda:K", "Where to compute.", TRAINING)] = AUTO,
    compile: Annotated[str, choice((AUTO, "true", "false"), "Whether to use torch.compile.", TRAINING)] = AUTO,
    seed: Annotated[int | None, option("INTEGER", "For the same model again.", TRAINING, min=0)] = None,
    memory: Annotated[
        str | None, option("SIZE", "What the whole command may use, such as 2GiB; a larger table is streamed.", SCALE)
    ] = None,
    stream: Annotated[
        bool | None,
        typer.Option(
            "--stream/--no-stream",
            help="Read the table piece by piece, or at once. By default: what its size asks for.",
            rich_help_panel=SCALE,
            show_default=False,
        ),
    ] = None,
    max_steps: Annotated[int | None, option("INTEGER", "Training steps at most.", SCALE, min=1)] = None,
    checkpoint: Annotated[
        str | None, option("FILE", "Where a run that is stopped goes on from, when it is started again.", SCALE)
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fit a model to a table and save it.

    Columns may hold numbers, true and false, dates or text, and may have gaps; the target may not.

    [bold]deepbasis fit[/bold] train.csv --target price --out model.safetensors --seed 0

    [bold]deepbasis fit[/bold] sales.parquet -t units --groups shop --drop row_id --members 8 --out sales.safetensors

    [bold]deepbasis fit[/bold] years/ -t units --memory 2GiB --checkpoint years.ckpt --out years.safetensors
    """
    from deepbasis.tables.roles import check_distinct

    files_read = [train, validation]
    if files_read == [STANDARD] * 2:
        raise InputError("TRAIN and --validation cannot both be standard input: give one of them as a file")
    columns = Columns(target, weight, groups, drop or [])
    check_distinct(target, weight, groups, columns.drop, named=lambda role: f"--{role}")
    check_model_path(out, files_read)
    scale = Scale(memory, stream, max_steps, checkpoint)
    scale.check(train, out)
    start = time.perf_counter()
    arguments: dict[str, Any] = {
        "method": method,
        "recipe": recipe,
        "objective": objective,
        "rank": rank,
        "width": width,
        "blocks": blocks,
        "inner": number_or_auto("--inner", inner, int),
        "embedding": embedding,
        "trend": trend,
        "alpha": number_or_auto("--alpha", alpha, float),
        "beta": number_or_auto("--beta", beta, float),
        "members": members,
        "epochs": number_or_auto("--epochs", epochs, int),
        "batch_size": number_or_auto("--batch-size", batch_size, int),
        "learning_rate": number_or_auto("--learning-rate", learning_rate, float),
        "weight_decay": weight_decay,
        "validation_fraction": number_or_auto("--validation-fraction", validation_fraction, float),
        "patience": number_or_auto("--patience", patience, int),
        "calibrate": true_false_or_auto(calibrate),
        "dtype": dtype,
        "device": device,
        "compile": true_false_or_auto(compile),
        "random_state": seed,
        "verbose": not quiet,
    }
    with working_together(device) as team:
        with notices(quiet or not team.first) as told, options_named():
            from deepbasis.estimator import DeepBasisRegressor

            model = DeepBasisRegressor(**arguments)
            model._check_parameters()  # before the table is read
            if scale.wanted or team.size > 1 or is_large(train) or is_large(validation):
                fit_files(model, train, validation, columns, scale, team)
            else:
                fit_table(model, train, validation, columns)
        model.verbose = False  # it was for this terminal, and is no property of the model
        team.from_first(lambda: _save(model, out))
    if not quiet and team.first:
        _tell_of_fit(model, out, time.perf_counter() - start, told, as_json)


def _save(model: DeepBasisRegressor, out: str) -> None:
    try:
        model.save(out)
    except OSError as error:
        raise cannot_write(out, error) from None


def _tell_of_fit(model: DeepBasisRegressor, out: str, seconds: float, warned: list[str], as_json: bool) -> None:
    scores = model.validation_
    members = len(model.history_)
    if as_json:
        print_json(
            {
                "model": out,
                "method": model.method_,
                "embedding": model.embedding_,
                "trend": model.trend_,
                "members": members,
                "rows": model.rows_,
                "columns": model.n_features_in_,
                "seconds": seconds,
                "alpha": model.alpha_,
                "beta": model.beta_,
                "validation": scores,
                "warnings": warned,
            }
        )
        return
    columns = "1 column" if model.n_features_in_ == 1 else f"{model.n_features_in_:,} columns"
    models = "1 model" if members == 1 else f"{members} models"
    typer.echo(f"{out}: {models} ({model.method_}) fitted to {model.rows_:,} rows of {columns} in {seconds:.1f} s")
    typer.echo(
        f"validation: NLL {scores['nll']:.4g}, CRPS {scores['crps']:.4g}, MAE {scores['mae']:.4g}, "
        f"{100 * scores['coverage_95']:.1f} % of the targets in their 95 % intervals"
    )
