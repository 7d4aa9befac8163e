"""The rules of "auto": from what was asked for (`Spec`) and facts about the table (`Facts`) to a `Plan`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from deepbasis.engine import device as devices
from deepbasis.engine.settings import Settings
from deepbasis.errors import InputError
from deepbasis.fitting.kinds import AUTO, CLASSES, PROMISING
from deepbasis.fitting.plan import Architecture, Candidate, Facts, HoldOut, Plan, Widening
from deepbasis.fitting.recipe import (
    FLOAT64_ROWS,
    HALF,
    ONE_STACK_ROWS,
    ONE_THREAD_PRODUCTS,
    ONE_THREAD_ROWS,
    RECIPES,
    Networks,
    Recipe,
    average_decay,
    batch_size_for,
    epochs_for,
    stream_epochs_for,
    training_precision,
    weights_for,
)
from deepbasis.fitting.spec import (
    CENSORED,
    COUNTS,
    EXACT,
    GAUSSIAN,
    INPUT_NOISE,
    INTERVAL,
    OUTPUTS,
    STUDENT,
    WIDEN,
    Spec,
)
from deepbasis.fitting.suited import check_widens, suited
from deepbasis.gp.expansion import JITTER
from deepbasis.gp.methods import METHODS

NETWORK = "dbk-silu"
"""What method="auto" tries on every table."""

FAR = "sv-rbf-linear"
"""The kernel that may predict beside the networks where there were no rows: it goes on along a straight line."""

LINE = "linear"
"""The kernel of straight lines: a ridge regression."""

_FAR_RANK = 32
_FAR_COLUMNS = 64  # encoded, at most: a lengthscale for each is learnt from few rows
_DISAGREEMENT = 8.0  # docs/recipe.md
_COMPILE_STEPS = 50_000  # from here on compiling pays on a GPU
_HELD_OUT = 0.1  # of the rows
_OPTIMISM = 0.02  # nats a row


def method_of(spec: Spec) -> str:
    return NETWORK if spec.method == AUTO else spec.method


def hold_out(spec: Spec, rows: int) -> HoldOut:
    """What members hold out. A tenth of a small table is too few rows to choose and calibrate with.

    So its members hold out different parts: together they use all rows for that, and each row is still fitted by most
    of them.
    """
    recipe = RECIPES[spec.recipe]
    is_network = METHODS[method_of(spec)].backbone == "resnet"
    by_turns = spec.validation_fraction == AUTO and spec.members > 1 and rows <= recipe.small_rows and is_network
    fraction = _HELD_OUT if spec.validation_fraction == AUTO else float(spec.validation_fraction)
    return HoldOut(recipe.folds if by_turns else 1, fraction)


def scaling(spec: Spec) -> str:
    return RECIPES[spec.recipe].scaling if spec.scaling == AUTO else spec.scaling


def needs_line(spec: Spec, rows: int) -> bool:
    """Whether the plan depends on how much of the target a straight line explains."""
    recipe = RECIPES[spec.recipe]
    is_network = METHODS[method_of(spec)].backbone == "resnet"
    return (
        spec.trend == AUTO and recipe.trend_left > 0.0 and rows > recipe.small_rows and spec.members > 1 and is_network
    )


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
        recipe = replace(recipe, small=recipe.small_classes)
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
    on_gpu = devices.named(spec.device).type == "cuda" and spec.dtype == AUTO and objective != EXACT
    chosen = replace(spec, method=method_of(spec), dtype=training_precision(precision) if on_gpu else precision)
    network, epoch_rows = _candidate(chosen, recipe, facts, max_steps)
    rivals = _rivals(spec, recipe, network, facts)
    kernels = [
        _candidate(kernel, recipe, replace(facts, rows=facts.table_rows), max_steps)[0]
        for kernel in _kernels(spec, recipe, facts, precision)
    ]
    device = devices.named(spec.device)
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
        candidates=(network, *rivals, *(_on_all_rows(kernel, facts) for kernel in kernels)),
        race_steps=recipe.race_steps if rivals else 0,
        device=str(device),
        threads=1 if small else jobs,
        member_threads=in_memory and facts.table_rows > ONE_STACK_ROWS and products <= ONE_THREAD_PRODUCTS,
        jobs=jobs,
        epoch_rows=epoch_rows,
        warnings=_warnings(network.settings, facts, max_steps),
        distance=_widening(spec, recipe, facts, precision, max_steps) if spec.distance == WIDEN else None,
    )


def _on_all_rows(kernel: Candidate, facts: Facts) -> Candidate:
    """Each parameter fits the rows that judge it by about a nat too much in all: where that is little it may."""
    if kernel.architecture.method == LINE:
        return replace(kernel, on_all_rows=True, one_by_one=True)
    parameters = facts.columns + 2  # lengthscales, variance, noise
    return replace(kernel, on_all_rows=True, trained_apart=parameters > _OPTIMISM * facts.table_rows)


def _rivals(spec: Spec, recipe: Recipe, network: Candidate, facts: Facts) -> list[Candidate]:
    """Networks to try beside the first, in a race. Where most columns are noise, little may be learnt from each."""
    settings = network.settings
    on_gpu = devices.named(spec.device).type == "cuda"
    decay = recipe.networks(facts.rows, settings.exact, on_gpu).rival_decay
    asked = spec.embedding != AUTO or spec.weight_decay != AUTO or facts.streamed
    asked |= spec.likelihood not in (GAUSSIAN, CLASSES, OUTPUTS, INPUT_NOISE)
    steps = settings.epochs * settings.passes * -(-facts.rows // settings.batch_size)
    is_map = network.architecture.embedding == "fourier"
    if asked or is_map or decay is None or settings.exact or steps < 8 * recipe.race_steps:
        return []
    plain = replace(network.architecture, embedding="none")
    return [replace(network, architecture=plain, settings=replace(settings, weight_decay=decay))]


def _kernels(spec: Spec, recipe: Recipe, facts: Facts, precision: str) -> list[Spec]:
    """Shallow kernels to try beside the networks.

    A kernel trained by its marginal likelihood can hardly overfit: on a small table it is often better than a network,
    and calibrated. But not for new groups: its likelihood treats the rows of a group as independent, and its parameters
    have seen all groups.

    A longer table has a straight line to try: where that is all that there is, networks only come close to it.
    """
    asked_for_a_network = (
        spec.method != AUTO
        or spec.objective is not None
        or spec.embedding not in (AUTO, "none")
        or spec.trend not in (AUTO, "none")
        or spec.likelihood != GAUSSIAN
    )
    is_small = facts.table_rows <= recipe.small_rows
    is_quick = facts.table_rows <= recipe.line_rows and facts.columns <= recipe.inducing_points
    names: Sequence[str] = recipe.shallow_methods if is_small else [LINE] * is_quick
    if asked_for_a_network or facts.grouped or facts.streamed:
        return []
    changes: dict[str, Any] = {
        **dict.fromkeys(("optimiser", "learning_rate", "epochs", "patience"), AUTO),  # an epoch is one step
        "objective": EXACT,
        "members": 1,
        "dtype": precision,
        "compile": False,
        # The marginal likelihood has calibrated it, and its noise is constant: of few rows three scales gain little.
        "calibrate": False if spec.calibrate == AUTO and is_small else spec.calibrate,
    }
    # A linear kernel has a basis function for each column: skip it if they would be most of the work.
    return [
        replace(spec, method=name, **changes)
        for name in names
        if facts.columns <= _rank(spec, recipe, name) or "linear" not in METHODS[name].expansion
    ]


def _widening(spec: Spec, recipe: Recipe, facts: Facts, precision: str, max_steps: int | None) -> Widening:
    """The members of a small table are calibrated on rows that others have seen: their disagreement says little.

    A shallow kernel of few rows is tried beside networks that nobody has asked for by name.
    """
    large = facts.table_rows > recipe.small_rows and spec.objective != EXACT
    disagreement = _DISAGREEMENT if large else 0.0
    if spec.method != AUTO or spec.objective is not None or facts.grouped or facts.columns > _FAR_COLUMNS:
        return Widening(disagreement, None)
    automatic = ("optimiser", "learning_rate", "epochs", "patience", "embedding")
    changes: dict[str, Any] = {**dict.fromkeys(automatic, AUTO), "objective": EXACT, "members": 1, "dtype": precision}
    kernel = replace(spec, method=FAR, rank=_FAR_RANK, compile=False, calibrate=False, trend="none", **changes)
    alone = replace(facts, rows=facts.table_rows, streamed=False)
    return Widening(disagreement, _candidate(kernel, recipe, alone, max_steps)[0])


def _candidate(spec: Spec, recipe: Recipe, facts: Facts, max_steps: int | None) -> tuple[Candidate, int]:
    """The candidate, and the rows of its epochs."""
    method = METHODS[spec.method]
    objective = spec.objective or method.objective
    exact, shallow = objective == EXACT, method.backbone == "identity"
    # A shallow kernel hardly overfits by its marginal likelihood: its steps can be long, and nothing has to stop early.
    kernel = shallow and exact
    on_gpu = devices.named(spec.device).type == "cuda"
    networks = recipe.networks(facts.rows, exact, on_gpu)
    optimiser = spec.optimiser
    if optimiser == AUTO:
        optimiser = recipe.shallow_optimiser if kernel and spec.learning_rate == AUTO else networks.optimiser
    if optimiser == "lbfgs":
        recipe = replace(recipe, exact_steps=recipe.search_steps)
    batch_size = int(spec.batch_size) if spec.batch_size != AUTO else batch_size_for(recipe, facts.rows)
    passes, epoch_rows = 1, facts.rows
    wanted = None if spec.epochs == AUTO else int(spec.epochs)
    steps_a_pass = 1 if exact else -(-facts.rows // batch_size)
    if facts.streamed:
        epochs, epoch_rows = stream_epochs_for(recipe, facts.rows, batch_size, exact, on_gpu, wanted, max_steps)
        steps = epochs * (1 if exact else -(-epoch_rows // batch_size))
    else:
        epochs = wanted or epochs_for(recipe, facts.rows, batch_size, exact, on_gpu)
        if max_steps is not None:
            epochs = min(epochs, max(1, max_steps // steps_a_pass))
        if wanted is None and spec.patience == AUTO and not exact:
            passes = min(epochs, max(1, recipe.validation_steps // steps_a_pass))
            epochs //= passes
        steps = epochs * passes * steps_a_pass
    rate = recipe.shallow_learning_rate if kernel else networks.learning_rate
    if optimiser == "muon":
        rate = recipe.muon_learning_rate
    muon_rate = recipe.muon_rate
    if spec.learning_rate != AUTO:
        muon_rate *= float(spec.learning_rate) / rate
        rate = float(spec.learning_rate)
    settings = Settings(
        objective=objective,
        epochs=epochs,
        passes=passes,
        batch_size=batch_size,
        optimiser=optimiser,
        prior=kernel and recipe.shallow_prior,
        learning_rate=rate,
        muon_rate=muon_rate,
        noise_learning_rate=recipe.noise_learning_rate,
        weight_decay=networks.weight_decay if spec.weight_decay == AUTO else float(spec.weight_decay),
        schedule=recipe.schedule,
        average=None if exact or recipe.average is None else average_decay(recipe.average, steps),
        selection="last"
        if kernel and spec.patience == AUTO
        else "nll"
        if spec.likelihood in (INTERVAL, CENSORED, STUDENT, *COUNTS)
        or facts.classes  # the CRPS would be that of a latent number
        else recipe.selection,
        patience=max(1, round(recipe.patience_share * epochs)) if spec.patience == AUTO else int(spec.patience),
        precision=spec.dtype,
        compile=on_gpu and steps >= _COMPILE_STEPS if spec.compile == AUTO else bool(spec.compile),
    )
    architecture = Architecture(
        method=spec.method,
        likelihood=spec.likelihood,
        rank=_rank(spec, recipe, spec.method, networks),
        width=spec.width,
        blocks=spec.blocks,
        inner=networks.inner_factor * spec.width if spec.inner == AUTO else int(spec.inner),
        embedding=_embedding(spec, recipe, networks, facts),
        trend=_trend(spec, recipe, facts),
        jitter=recipe.shallow_jitter if kernel else JITTER,
        edges=facts.edges if spec.likelihood == INTERVAL else (),
        classes=facts.classes,
        outputs=facts.outputs,
    )
    return Candidate(
        architecture=architecture,
        settings=settings,
        members=spec.members,
        weights=weights_for(networks, objective, *(None if w == AUTO else float(w) for w in (spec.alpha, spec.beta))),
        calibrate=recipe.calibrate and spec.likelihood in (GAUSSIAN, CLASSES, OUTPUTS, INPUT_NOISE)
        if spec.calibrate == AUTO
        else bool(spec.calibrate),
    ), epoch_rows


def _rank(spec: Spec, recipe: Recipe, method: str, networks: Networks | None = None) -> int:
    if spec.rank != AUTO:
        return int(spec.rank)
    is_silu = METHODS[method].expansion == "silu"
    return networks.rank if is_silu and networks is not None else recipe.inducing_points


def _embedding(spec: Spec, recipe: Recipe, networks: Networks, facts: Facts) -> str:
    """A network learns low frequencies first: it is given waves of each column, or of a map's coordinates together."""
    if spec.embedding != AUTO:
        return spec.embedding
    if METHODS[spec.method].backbone != "resnet":
        return "none"
    if 2 <= facts.number_columns <= recipe.coordinates and facts.rows > recipe.small_rows:
        return "fourier"
    return networks.embedding if facts.columns <= networks.embedding_columns else "none"


def _trend(spec: Spec, recipe: Recipe, facts: Facts) -> str:
    """Whether the prior mean of members is a straight line: "none", "linear", or "half" of them.

    Beyond the rows, members with a line follow it and the others do not: their disagreement shows that nothing is known
    there. A line is a burden if the function has little of one, or if there are few rows.
    """
    if spec.trend != AUTO:
        return spec.trend
    clear = facts.line_leaves is not None and facts.line_leaves <= recipe.trend_left
    return HALF if clear and needs_line(spec, facts.rows) else "none"


def _warnings(settings: Settings, facts: Facts, max_steps: int | None) -> tuple[str, ...]:
    steps = 1 if settings.exact else -(-facts.rows // settings.batch_size)
    if facts.streamed or max_steps is None or settings.epochs * settings.passes * steps <= max_steps:
        return ()
    return (
        f"max_steps={max_steps} is less than one pass over the {facts.rows} rows to fit, of {steps} steps, which a fit "
        "in memory makes: use larger batches, or a stream, which may end sooner",
    )
