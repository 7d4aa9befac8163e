"""What "auto" comes to for a table of so many rows: the settings of a run, and the weights to try."""

from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import torch

from deepbasis.engine import device as devices
from deepbasis.engine.distributed import ALONE, Team
from deepbasis.engine.settings import EXACT, Settings
from deepbasis.gp.expansion import JITTER
from deepbasis.gp.methods import METHODS
from deepbasis.recipes import (
    FLOAT64_ROWS,
    HALF,
    RECIPES,
    batch_size_for,
    epochs_for,
    method_of,
    objective_of,
    stream_epochs_for,
    weights_for,
)
from deepbasis.starting import Line
from deepbasis.tables.preprocessing import Preprocessor

_COMPILE_STEPS = 3_000  # from here on compiling pays on a GPU
_HELD_OUT = 0.1  # of the rows


@dataclass(frozen=True)
class Plan:
    settings: Settings
    pairs: list[tuple[float, float]]
    """(alpha, beta) to try."""
    device: torch.device
    epoch_rows: int
    """Rows of an epoch: all of them, or a piece where the table is streamed."""
    steps: int
    """Of the whole training."""


@dataclass(frozen=True)
class How:
    """How a fit is to be run: not a property of the model."""

    max_steps: int | None = None
    checkpoint: str | PathLike[str] | None = None
    team: Team = ALONE
    wave_size: int | None = None


def make_plan(given: Any, rows: int, *, streamed: bool = False, max_steps: int | None = None) -> Plan:
    """For the arguments of a `DeepBasisRegressor`."""
    recipe = RECIPES[given.recipe]
    objective = objective_of(given.method, given.objective)
    batch_size = batch_size_for(recipe, rows) if given.batch_size == "auto" else given.batch_size
    passes = None if given.epochs == "auto" else int(given.epochs)
    device = devices.named(given.device)
    on_gpu = device.type == "cuda"
    size = (recipe, rows, int(batch_size), objective == EXACT)
    passes_an_epoch = 1
    if streamed:
        epochs, epoch_rows = stream_epochs_for(*size, on_gpu, passes, max_steps)
    else:
        epochs, epoch_rows = passes or epochs_for(*size, on_gpu), rows
        steps = 1 if objective == EXACT else -(-rows // int(batch_size))
        if max_steps is not None:
            epochs = min(epochs, max(1, max_steps // steps))
        if passes is None and given.patience == "auto" and objective != EXACT:
            passes_an_epoch = min(epochs, max(1, recipe.validation_steps // steps))
            epochs //= passes_an_epoch
    steps = epochs * passes_an_epoch * (1 if objective == EXACT else -(-epoch_rows // int(batch_size)))
    patience = max(1, round(recipe.patience_share * epochs)) if given.patience == "auto" else given.patience
    precision = given.dtype
    if precision == "auto":
        precision = "float64" if rows <= FLOAT64_ROWS else "float32"
    # A shallow kernel hardly overfits by its marginal likelihood: its steps can be long, and nothing has to stop early.
    shallow = _is_shallow(given)
    rate = recipe.shallow_learning_rate if shallow else recipe.learning_rate
    kernel_rate = recipe.shallow_kernel_rate if shallow else None
    if given.learning_rate != "auto":
        rate, kernel_rate = float(given.learning_rate), None
    settings = Settings(
        objective=objective,
        corrected=METHODS[method_of(given.method)].corrected,
        epochs=epochs,
        passes=passes_an_epoch,
        batch_size=int(batch_size),
        learning_rate=rate,
        noise_learning_rate=recipe.noise_learning_rate,
        kernel_learning_rate=kernel_rate,
        weight_decay=given.weight_decay,
        schedule=recipe.schedule,
        average=None if objective == EXACT else recipe.average,
        selection="last" if shallow and given.patience == "auto" else recipe.selection,
        patience=int(patience),
        precision=precision,
        compile=on_gpu and steps >= _COMPILE_STEPS if given.compile == "auto" else bool(given.compile),
    )
    return Plan(settings, weights_for(recipe, objective, given.alpha, given.beta), device, epoch_rows, steps)


def _is_shallow(given: Any) -> bool:
    """Whether it is a kernel of the inputs themselves, trained exactly."""
    identity = METHODS[method_of(given.method)].backbone == "identity"
    return identity and objective_of(given.method, given.objective) == EXACT


def noise_still_falls(given: Any, plan: Plan, fall: float) -> bool:
    """Whether the log of a shallow kernel's noise fell so far that the steps were too few.

    With a rate c and N steps along a cosine Adam goes c N / 2 at most: half of that is a long way. The function may
    have no noise at all, as that of a computer experiment. Whoever asked for a number of steps has these.
    """
    slow, recipe = plan.settings.noise_learning_rate, RECIPES[given.recipe]
    if not _is_shallow(given) or given.epochs != "auto" or slow is None or recipe.shallow_noise_rate <= slow:
        return False
    return fall >= 0.25 * slow * plan.settings.epochs


def for_little_noise(given: Any, plan: Plan) -> Plan:
    """The plan by which it is trained again. For all tables the faster rate would not do: docs/recipe.md."""
    rate = RECIPES[given.recipe].shallow_noise_rate
    return replace(plan, settings=replace(plan.settings, noise_learning_rate=rate))


def jitter_of(given: Any) -> float:
    """Of the kernel matrix of its inducing points: the smaller, the nearer to the kernel that they stand for."""
    return RECIPES[given.recipe].shallow_jitter if _is_shallow(given) else JITTER


def fraction_of(given: Any) -> float:
    """The share of the rows that a `DeepBasisRegressor` holds out where all members hold out the same."""
    return _HELD_OUT if given.validation_fraction == "auto" else float(given.validation_fraction)


def folds_of(given: Any, rows: int) -> int:
    """Parts of the table of which each of its members holds out one; 1 if all members hold out the same rows.

    A tenth of a small table is few rows to choose and to calibrate by: together the members have them all for that, and
    each row is fitted by most of them.
    """
    recipe = RECIPES[given.recipe]
    apart = given.validation_fraction == "auto" and given.members > 1 and rows <= recipe.small_rows
    return recipe.folds if apart and METHODS[method_of(given.method)].backbone == "resnet" else 1


def inner_of(given: Any, rows: int) -> int:
    """The width inside its blocks."""
    recipe = RECIPES[given.recipe]
    factor = recipe.small_inner_factor if rows <= recipe.small_rows else recipe.inner_factor
    return factor * int(given.width) if given.inner == "auto" else int(given.inner)


def embedding_of(given: Any, preprocessor: Preprocessor, rows: int) -> str:
    """What a `DeepBasisRegressor` has before its network.

    A network learns a function of coordinates from its lowest frequencies upwards, and a map has high ones.
    """
    if given.embedding != "auto":
        return str(given.embedding)
    recipe = RECIPES[given.recipe]
    columns = [encoding for encoding in preprocessor.encodings if encoding.width > 0]  # those that say something
    numbers = all(column.kind == "numeric" and not column.missing for column in columns)
    places = numbers and 2 <= len(columns) <= recipe.coordinates and rows > recipe.small_rows
    return "fourier" if places and METHODS[method_of(given.method)].backbone == "resnet" else "none"


def trend_of(given: Any, rows: int, line: Line | None) -> str:
    """Whether the prior mean of its members is a straight line: "none", "linear", or "half" of them.

    Where the rows end those with a line go on along it, and those without do not: that they differ is what is not
    known there. A line for a function that has little of one is a burden, and so is one through few rows.
    """
    if given.trend != "auto":
        return str(given.trend)
    recipe = RECIPES[given.recipe]
    clear = line is not None and line.share_left <= recipe.trend_left and rows > recipe.small_rows
    return HALF if clear and given.members > 1 and METHODS[method_of(given.method)].backbone == "resnet" else "none"


def candidates(given: Any, rows: int, columns: int, grouped: bool = False) -> list[dict[str, Any]]:
    """What a `DeepBasisRegressor` is to be fitted as, by changes of its parameters: networks, and shallow kernels.

    A shallow kernel trained by its marginal likelihood has little to overfit with: on a small table it is often better
    than a network, and calibrated. But not for new groups where rows are `grouped`: its likelihood takes rows of one
    group for independent ones, and its kernel has seen all groups.
    """
    recipe = RECIPES[given.recipe]
    deep = {"method": method_of(given.method)}
    asked_for_a_network = (
        given.objective is not None or given.embedding not in ("auto", "none") or given.trend not in ("auto", "none")
    )
    if given.method != "auto" or asked_for_a_network or grouped or rows > recipe.small_rows:
        return [deep]
    shallow = {
        "objective": "mml",
        "members": 1,
        "learning_rate": "auto",
        "epochs": "auto",  # each is one step
        "patience": "auto",
        "compile": False,
        # The marginal likelihood has calibrated it, and its noise does not vary: three scales have little to mend.
        "calibrate": False if given.calibrate == "auto" else given.calibrate,
    }
    # A linear kernel has a basis function for each column: not where they would be most of the work.
    methods = [
        name for name in recipe.shallow_methods if columns <= given.rank or "linear" not in METHODS[name].expansion
    ]
    return [deep, *({"method": name, **shallow} for name in methods)]
