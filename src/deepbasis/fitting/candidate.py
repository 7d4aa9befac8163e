"""One candidate of a plan: what "auto" stands for in each of its numbers, given a method and facts about the table."""

from __future__ import annotations

from dataclasses import replace

from deepbasis.engine.settings import Settings
from deepbasis.fitting.kinds import AUTO, CLASSES
from deepbasis.fitting.plan import WAVES, Architecture, Candidate, Facts
from deepbasis.fitting.recipe import (
    FEWEST_PATIENCE,
    HALF,
    RECIPES,
    Networks,
    Recipe,
    average_decay,
    batch_size_for,
    epochs_for,
    stream_epochs_for,
)
from deepbasis.fitting.spec import CENSORED, COUNTS, EXACT, GAUSSIAN, INPUT_NOISE, INTERVAL, OUTPUTS, STUDENT, Spec
from deepbasis.gp.expansion import JITTER
from deepbasis.gp.methods import METHODS

NETWORK = "dbk-silu"
"""What method="auto" tries on every table."""

_FEW_COLUMNS = 64  # up to here waves of columns of 0 and 1 cost little, and are taken as those of others
_COMPILE_STEPS = 50_000  # from here on compiling pays on a GPU


def method_of(spec: Spec) -> str:
    return NETWORK if spec.method == AUTO else spec.method


def members_of(spec: Spec) -> int:
    return RECIPES[spec.recipe].members if spec.members == AUTO else int(spec.members)


def candidate(
    spec: Spec,
    recipe: Recipe,
    facts: Facts,
    on_gpu: bool,
    max_steps: int | None,
    networks: Networks | None = None,
) -> tuple[Candidate, int]:
    """The candidate, and the rows of its epochs; by default with the recipe's networks for so many rows."""
    method = METHODS[spec.method]
    objective = spec.objective or method.objective
    exact, shallow = objective == EXACT, method.backbone == "identity"
    # A shallow kernel hardly overfits by its marginal likelihood: its steps can be long, and nothing has to stop early.
    kernel = shallow and exact
    networks = networks or recipe.networks(facts.rows, exact, on_gpu)
    optimiser = spec.optimiser
    if optimiser == AUTO:
        optimiser = recipe.shallow_optimiser if kernel and spec.learning_rate == AUTO else networks.optimiser
    if optimiser == "lbfgs":
        recipe = replace(recipe, exact_steps=recipe.search_steps)
    batch_size = int(spec.batch_size) if spec.batch_size != AUTO else batch_size_for(recipe, facts.rows)
    passes, epoch_rows = 1, facts.rows
    wanted = None if spec.epochs == AUTO else int(spec.epochs)
    steps_a_pass = 1 if exact else -(-facts.rows // batch_size)
    usual = epochs_for(recipe, networks, facts.rows, batch_size, exact)
    if facts.streamed:
        epochs, epoch_rows = stream_epochs_for(recipe, facts.rows, batch_size, exact, usual, wanted, max_steps)
        steps = epochs * (1 if exact else -(-epoch_rows // batch_size))
    else:
        epochs = wanted or usual
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
    selection = recipe.selection
    if kernel and spec.patience == AUTO:
        selection = "last"
    elif spec.likelihood in (INTERVAL, CENSORED, STUDENT, *COUNTS) or facts.classes:
        selection = "nll"  # the CRPS would be that of a latent number
    by_crps = selection == "crps" and not exact and spec.patience == spec.epochs == AUTO
    patience_share = recipe.short_patience_share if by_crps else recipe.patience_share
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
        selection=selection,
        patience=max(FEWEST_PATIENCE, round(patience_share * epochs)) if spec.patience == AUTO else int(spec.patience),
        margin=recipe.crps_margin if by_crps else 0.0,
        precision=spec.dtype,
        compile=on_gpu and steps >= _COMPILE_STEPS if spec.compile == AUTO else bool(spec.compile),
    )
    embedding = _embedding(spec, recipe, networks, facts)
    architecture = Architecture(
        method=spec.method,
        likelihood=spec.likelihood,
        rank=rank_of(spec, recipe, facts, networks),
        width=spec.width,
        blocks=spec.blocks,
        inner=networks.inner_factor * spec.width if spec.inner == AUTO else int(spec.inner),
        embedding=embedding,
        trend=_trend(spec, recipe, facts),
        jitter=recipe.shallow_jitter if kernel else JITTER,
        edges=facts.edges if spec.likelihood == INTERVAL else (),
        classes=facts.classes,
        outputs=facts.outputs,
        flags=facts.flags if facts.classes and embedding == WAVES and facts.columns > _FEW_COLUMNS else (),
    )
    return Candidate(
        architecture=architecture,
        settings=settings,
        members=members_of(spec),
        weights=weights_for(networks, objective, *(None if w == AUTO else float(w) for w in (spec.alpha, spec.beta))),
        calibrate=recipe.calibrate and spec.likelihood in (GAUSSIAN, CLASSES, OUTPUTS, INPUT_NOISE)
        if spec.calibrate == AUTO
        else bool(spec.calibrate),
    ), epoch_rows


def weights_for(
    networks: Networks, objective: str, alpha: float | None, beta: float | None
) -> tuple[tuple[float, float], ...]:
    """Every (alpha, beta) to try: the user's, or the recipe's, or 0 where the objective has no such term."""
    alphas = networks.alphas if alpha is None else (alpha,)
    betas = networks.betas if beta is None else (beta,)
    if not objective.startswith("dppgp"):
        alphas = (0.0,)
    if not objective.startswith(("dppgp", "ppgp")):
        betas = (1.0,) if objective == "elbo" else (0.0,)
    return tuple((a, b) for a in alphas for b in betas)


def rank_of(spec: Spec, recipe: Recipe, facts: Facts, networks: Networks | None = None) -> int:
    """The number of basis functions, or of inducing points, which are at most as many as there are distinct rows."""
    method = METHODS[spec.method]
    if method.is_line:
        return facts.columns + 1
    if method.expansion == "none":
        return spec.width
    if spec.rank != AUTO:
        return int(spec.rank)
    return networks.rank if method.expansion == "silu" and networks is not None else recipe.inducing_points


def _embedding(spec: Spec, recipe: Recipe, networks: Networks, facts: Facts) -> str:
    """A network learns low frequencies first: it is given waves of each column, or of a map's coordinates together."""
    if spec.embedding != AUTO:
        return spec.embedding
    if METHODS[spec.method].backbone != "resnet":
        return "none"
    if 2 <= facts.number_columns <= recipe.coordinates and facts.rows > recipe.small_rows:
        return "fourier"
    if facts.columns == 1 and facts.rows <= recipe.small_rows:  # waves of it would overfit
        return "none"
    if facts.classes and networks.embedding == WAVES and len(facts.flags) <= networks.embedding_flags:
        facts = replace(facts, columns=facts.columns - len(facts.flags))
    return networks.embedding if facts.columns <= networks.embedding_columns else "none"


def needs_line(spec: Spec, rows: int) -> bool:
    """Whether the plan depends on how much of the target a straight line explains."""
    recipe = RECIPES[spec.recipe]
    is_network = METHODS[method_of(spec)].backbone == "resnet"
    return (
        spec.trend == AUTO
        and recipe.trend_left > 0.0
        and rows > recipe.small_rows
        and members_of(spec) > 1
        and is_network
    )


def _trend(spec: Spec, recipe: Recipe, facts: Facts) -> str:
    """Whether the prior mean of members is a straight line: "none", "linear", or "half" of them.

    Beyond the rows, members with a line follow it and the others do not: their disagreement shows that nothing is known
    there. A line is a burden if the function has little of one, or if there are few rows.
    """
    if spec.trend != AUTO:
        return spec.trend
    clear = facts.line_leaves is not None and facts.line_leaves <= recipe.trend_left
    return HALF if clear and needs_line(spec, facts.rows) else "none"
