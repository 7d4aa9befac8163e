"""The rules of "auto": from what was asked for (`Spec`) and facts about the table (`Facts`) to a `Plan`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from deepbasis.engine import device as devices
from deepbasis.engine.settings import Settings
from deepbasis.errors import InputError
from deepbasis.fitting.candidate import candidate, members_of, method_of, rank_of
from deepbasis.fitting.kinds import AUTO, CLASSES, PROMISING
from deepbasis.fitting.plan import Candidate, Facts, HoldOut, Plan, Widening
from deepbasis.fitting.recipe import (
    FLOAT64_ROWS,
    ONE_STACK_ROWS,
    ONE_THREAD_PRODUCTS,
    ONE_THREAD_ROWS,
    RECIPES,
    Recipe,
    training_precision,
)
from deepbasis.fitting.spec import (
    CENSORED,
    EXACT,
    GAUSSIAN,
    INPUT_NOISE,
    INTERVAL,
    OUTPUTS,
    WIDEN,
    Spec,
)
from deepbasis.fitting.suited import check_widens, suited
from deepbasis.gp.methods import METHODS

FAR = "sv-rbf-linear"
"""The kernel that may predict beside the networks where there were no rows: it goes on along a straight line."""

LINE = "linear"
"""The kernel of straight lines: a ridge regression."""

BESIDE = "sv-rbf"
"""The kernel that is tried beside the networks of a censored table."""

_BESIDE_RANK = 64
_FAR_RANK = 32
_FAR_COLUMNS = 64  # encoded, at most: a lengthscale for each is learnt from few rows
_LINE_COLUMNS = 512  # encoded, of a line through few rows
_HELD_OUT = 0.1  # of the rows
_OPTIMISM = 0.02  # nats a row


def hold_out(spec: Spec, rows: int) -> HoldOut:
    """What members hold out. A tenth of a small table is too few rows to choose and calibrate with.

    So its members hold out different parts: together they use all rows for that, and each row is still fitted by most
    of them.
    """
    recipe = RECIPES[spec.recipe]
    is_network = METHODS[method_of(spec)].backbone == "resnet"
    by_turns = spec.validation_fraction == AUTO and members_of(spec) > 1 and rows <= recipe.small_rows and is_network
    fraction = _HELD_OUT if spec.validation_fraction == AUTO else float(spec.validation_fraction)
    return HoldOut(recipe.folds if by_turns else 1, fraction)


def scaling(spec: Spec) -> str:
    return RECIPES[spec.recipe].scaling if spec.scaling == AUTO else spec.scaling


def spikes_above(spec: Spec, classes: bool) -> float:
    """Rows above which frequent numbers of a column have indicators, where the target is a class."""
    return RECIPES[spec.recipe].small_rows if classes else math.inf


def hides_categories(spec: Spec, rows: int) -> bool:
    """Whether networks are to learn what a category is like that they have not seen: of few rows that costs too much.

    The paper's own recipe knows nothing of it.
    """
    return rows > RECIPES[spec.recipe].small_rows > 0


def make_plan(spec: Spec, facts: Facts, max_steps: int | None = None) -> Plan:
    recipe = RECIPES[spec.recipe]
    if spec.calibrate in PROMISING:  # that concerns rows that no candidate sees
        if facts.classes:
            raise InputError(f"calibrate={spec.calibrate!r} is for intervals of numbers, and the target is classes")
        spec = replace(spec, calibrate=AUTO)
    objective = spec.objective or METHODS[method_of(spec)].objective
    if facts.edges and objective not in (EXACT, "mse"):
        spec = replace(spec, likelihood=INTERVAL)
    spec = suited(spec, facts, objective)
    if facts.classes:
        recipe = replace(recipe, small=recipe.small_classes, patience_share=recipe.short_patience_share)
    if facts.censored:
        if spec.likelihood not in (GAUSSIAN, CENSORED) or objective == "mse":
            what = f"likelihood {spec.likelihood!r}" if spec.likelihood != GAUSSIAN else f"objective {objective!r}"
            raise InputError(f"{what} cannot be trained by bounds of the target: leave it out, or lower and upper")
        spec = replace(spec, likelihood=CENSORED)
    check_widens(spec)
    held_out = hold_out(spec, facts.table_rows)
    if facts.streamed:
        held_out = replace(held_out, parts=1)
    precision = spec.dtype
    if precision == AUTO:  # the same for all folds
        known = facts.rows if held_out.parts == 1 else facts.table_rows
        precision = "float64" if known <= FLOAT64_ROWS else "float32"
    device = devices.named(spec.device)
    on_gpu = device.type == "cuda"
    faster = on_gpu and spec.dtype == AUTO and objective != EXACT
    chosen = replace(spec, method=method_of(spec), dtype=training_precision(precision) if faster else precision)
    network, epoch_rows = candidate(chosen, recipe, facts, on_gpu, max_steps)
    rivals = _rivals(chosen, recipe, network, facts, on_gpu, max_steps)
    beside = [
        _kernel(kernel, spec, recipe, facts, on_gpu, max_steps)
        for kernel in _censored_kernels(chosen, spec, recipe, facts)
    ]
    kernels = [
        _kernel(kernel, spec, recipe, replace(facts, rows=facts.table_rows), on_gpu, max_steps)
        for kernel in _kernels(spec, recipe, facts, precision)
    ]
    in_memory = device.type == "cpu" and not facts.streamed
    small = in_memory and facts.table_rows <= ONE_THREAD_ROWS
    jobs = spec.n_jobs if isinstance(spec.n_jobs, int) and device.type == "cpu" else None
    products = network.settings.batch_size * network.architecture.inner * network.architecture.width
    return Plan(
        recipe=spec.recipe,
        hold_out=held_out,
        scaling=scaling(spec),
        target=facts.target,
        target_because=facts.target_because,
        copies_limit=recipe.copies_limit,
        start_from_data=recipe.start_from_data,
        candidates=(network, *rivals, *beside, *(_on_all_rows(kernel, recipe, facts) for kernel in kernels)),
        race_steps=recipe.race_steps if rivals else 0,
        device=str(device),
        threads=1 if small else jobs,
        member_threads=in_memory and facts.table_rows > ONE_STACK_ROWS and products <= ONE_THREAD_PRODUCTS,
        jobs=jobs,
        epoch_rows=epoch_rows,
        warnings=_warnings(network.settings, facts, max_steps),
        distance=_widening(spec, recipe, facts, precision, on_gpu, max_steps) if spec.distance == WIDEN else None,
    )


def _kernel(kernel: Spec, asked: Spec, recipe: Recipe, facts: Facts, on_gpu: bool, max_steps: int | None) -> Candidate:
    """With no more passes over the rows than the user has asked for; more than usual would not help a kernel."""
    usual = candidate(kernel, recipe, facts, on_gpu, max_steps)[0]
    if asked.epochs == AUTO or usual.settings.epochs * usual.settings.passes <= int(asked.epochs):
        return usual
    return candidate(replace(kernel, epochs=asked.epochs), recipe, facts, on_gpu, max_steps)[0]


def _on_all_rows(kernel: Candidate, recipe: Recipe, facts: Facts) -> Candidate:
    """Each parameter fits the rows that judge it by about a nat too much in all: where that is little it may.

    What a kernel learns from some thousand rows is as good as what it would learn from all, in a part of the time.
    """
    if METHODS[kernel.architecture.method].is_line:
        return replace(kernel, on_all_rows=True, one_by_one=True)
    if facts.table_rows > recipe.small_rows:
        return replace(kernel, on_all_rows=True, learns_from=recipe.small_rows)
    parameters = facts.columns + 2  # lengthscales, variance, noise
    return replace(kernel, on_all_rows=True, trained_apart=parameters > _OPTIMISM * facts.table_rows)


def _rivals(
    spec: Spec, recipe: Recipe, network: Candidate, facts: Facts, on_gpu: bool, max_steps: int | None
) -> list[Candidate]:
    """Networks to try beside the first, in a race."""
    settings = network.settings
    first = recipe.networks(facts.rows, settings.exact, on_gpu)
    if first.rival is None or settings.exact or facts.streamed:
        return []
    ways = ("embedding", "optimiser", "weight_decay")  # in which a user may have chosen already
    asked = any(getattr(first, way) != getattr(first.rival, way) and getattr(spec, way) != AUTO for way in ways)
    asked |= spec.likelihood not in (GAUSSIAN, CLASSES, OUTPUTS, INPUT_NOISE)
    steps = network.members * settings.epochs * settings.passes * -(-facts.rows // settings.batch_size)
    is_map = network.architecture.embedding == "fourier"
    few = facts.rows <= first.rival_rows or steps < 8 * recipe.race_steps
    return [] if asked or is_map or few else [candidate(spec, recipe, facts, on_gpu, max_steps, first.rival)[0]]


def _kernels(spec: Spec, recipe: Recipe, facts: Facts, precision: str) -> list[Spec]:
    """Shallow kernels to try beside the networks.

    A kernel trained by its marginal likelihood can hardly overfit: on a small table it is often better than a network,
    and calibrated. But not for new groups: its likelihood treats the rows of a group as independent, and its parameters
    have seen all groups.

    Of a longer table with categories only a straight line is tried: it takes unknown ones for what networks have learnt
    about them, and an RBF kernel does not.
    """
    if spec.likelihood != GAUSSIAN or _asked_for_a_network(spec) or facts.grouped or facts.streamed:
        return []
    is_small = facts.table_rows <= recipe.small_rows
    names: Sequence[str] = recipe.shallow_methods if facts.table_rows <= recipe.kernel_rows else ()
    if facts.flags and not is_small:
        names = [name for name in names if METHODS[name].is_line]
    changes: dict[str, Any] = {
        **dict.fromkeys(("optimiser", "learning_rate", "epochs", "patience"), AUTO),  # an epoch is one step
        "objective": EXACT,
        "members": 1,
        "dtype": precision,
        "compile": False,
        # The marginal likelihood has calibrated it, and its noise is constant: of few rows three scales gain little.
        "calibrate": False if spec.calibrate == AUTO and is_small else spec.calibrate,
    }
    kernels = [replace(spec, method=name, **changes) for name in names]
    return [kernel for kernel in kernels if facts.columns <= _most_columns(kernel, recipe, facts)]


def _censored_kernels(network: Spec, spec: Spec, recipe: Recipe, facts: Facts) -> list[Spec]:
    """A shallow kernel beside the networks of a small censored table: held-out rows choose.

    Its marginal likelihood has no closed form: it is trained by the ELBO.
    """
    small = facts.table_rows <= recipe.small_rows and BESIDE in recipe.shallow_methods
    if spec.likelihood != CENSORED or not small or _asked_for_a_network(spec) or facts.grouped or facts.streamed:
        return []
    changes: dict[str, Any] = {
        **dict.fromkeys(("optimiser", "epochs", "patience", "weight_decay"), AUTO),
        "objective": "elbo",
        "learning_rate": recipe.shallow_learning_rate,
        "rank": _BESIDE_RANK if network.rank == AUTO else network.rank,
    }
    return [replace(network, method=BESIDE, **changes)]


def _asked_for_a_network(spec: Spec) -> bool:
    return (
        spec.method != AUTO
        or spec.objective is not None
        or spec.embedding not in (AUTO, "none")
        or spec.trend not in (AUTO, "none")
    )


def _most_columns(kernel: Spec, recipe: Recipe, facts: Facts) -> float:
    """A linear kernel has a basis function for each column: it is not tried where they would be most of the work."""
    method = METHODS[kernel.method]
    if method.is_line:
        few = facts.table_rows <= recipe.small_rows
        return _LINE_COLUMNS if few else recipe.inducing_points
    return rank_of(kernel, recipe, facts) if "linear" in method.expansion else math.inf


def _widening(
    spec: Spec, recipe: Recipe, facts: Facts, precision: str, on_gpu: bool, max_steps: int | None
) -> Widening:
    """A shallow kernel of few rows is tried beside networks that nobody has asked for by name."""
    if spec.method != AUTO or spec.objective is not None or facts.grouped or facts.columns > _FAR_COLUMNS:
        return Widening(None)
    automatic = ("optimiser", "learning_rate", "epochs", "patience", "embedding")
    changes: dict[str, Any] = {**dict.fromkeys(automatic, AUTO), "objective": EXACT, "members": 1, "dtype": precision}
    kernel = replace(spec, method=FAR, rank=_FAR_RANK, compile=False, calibrate=False, trend="none", **changes)
    alone = replace(facts, rows=facts.table_rows, streamed=False)
    return Widening(_kernel(kernel, spec, recipe, alone, on_gpu, max_steps))


def _warnings(settings: Settings, facts: Facts, max_steps: int | None) -> tuple[str, ...]:
    steps = 1 if settings.exact else -(-facts.rows // settings.batch_size)
    if facts.streamed or max_steps is None or settings.epochs * settings.passes * steps <= max_steps:
        return ()
    return (
        f"max_steps={max_steps} is less than one pass over the {facts.rows} rows to fit, of {steps} steps, which a fit "
        "in memory makes: use larger batches, or a stream, which may end sooner",
    )
