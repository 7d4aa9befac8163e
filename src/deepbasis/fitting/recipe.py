"""Recipes: what "auto" means for a table of n rows. A recipe is a row of numbers, fixed before any test row is seen."""

from collections.abc import Sequence
from dataclasses import dataclass

from deepbasis.registry import Registry

FLOAT64_ROWS = 256
"""Up to here dtype="auto" is float64."""

ONE_THREAD_ROWS = 2_000
"""Up to here a fit on a CPU takes one thread."""

TRENDS = ("none", "linear")
"""What a user may ask for as prior mean: a constant, or a straight line."""
HALF = "half"
"""What "auto" may resolve to: a line for every second member."""

_FEWEST_STEPS = 50  # between two validations of a stream


@dataclass(frozen=True)
class Recipe:
    learning_rate: float
    noise_learning_rate: float
    """For the log of the noise variance, which has far to go: see the notes on the paper's gaps."""
    schedule: str
    average: float | None
    """The decay of a running average of the parameters."""
    selection: str
    """The score that is lowest at the best epoch, on the validation rows: "nll" or "crps"."""
    inner_factor: int
    """Width inside the network's blocks, as a multiple of the width between them."""
    small_inner_factor: int
    """The same for a small table."""
    trend_left: float
    """Half of the members have a straight line as their prior mean if it leaves at most this share of the target's
    variance, and the table is not small."""
    scaling: str
    """How number columns are scaled: "standard" or "min-max".

    NOTE[DIFF]: the paper scales inputs to [-1, 1] by the minimum and maximum of all rows, those of the test too. Here
    they are those of the rows to fit; and the default standardises, since one outlier sets a minimum or a maximum."""
    coordinates: int
    """Tables of two to this many number columns are treated as maps: waves before the network."""
    batch_size: int
    full_batch_rows: int
    """Up to this many rows a step takes all of them."""
    epochs: int
    """Within the limits on steps below, but at least `fewest_epochs`."""
    small_steps: int
    """The fewest steps for a small table."""
    fewest_steps: int
    """The fewest steps for any other table."""
    gpu_steps: int
    """The same on a GPU, where a step costs far less."""
    most_steps: int
    fewest_epochs: int
    exact_steps: int
    """For objective="mml"."""
    validation_steps: int
    """Steps between two validations, if a pass over the rows has fewer."""
    stream_steps: int
    """The most steps for a streamed table, if the limits above do not give fewer."""
    stream_epochs: int
    """The fewest pieces that streamed training is cut into, with a validation and a checkpoint after each."""
    patience_share: float
    """Epochs without improvement after which a member stops, as a share of all epochs."""
    alphas: Sequence[float]
    betas: Sequence[float]
    """What alpha="auto" and beta="auto" choose from."""
    copies_limit: float | None
    """Copies of an input among the validation rows count as at most this many average inputs."""
    calibrate: bool
    """Whether the validation rows also give a mixture of scales of the predictive variance."""
    start_from_data: bool
    """Whether the noise, and the inducing points of a shallow kernel, start from the rows, or as in the paper."""
    small_rows: int
    """Up to here a table is small: members hold out different rows, and method="auto" also tries shallow kernels. Above
    it, coordinates become waves."""
    folds: int
    """Parts of a small table, of which a member holds out one."""
    shallow_methods: Sequence[str]
    """The shallow kernels to try; the likelier is taken, by Schwarz' criterion."""
    shallow_learning_rate: float
    """For objective="mml"."""
    shallow_kernel_rate: float | None
    """For the logarithms of its variance and lengthscales, which have far to go if a column says nothing."""
    shallow_noise_rate: float
    """For the log of its noise variance when it is trained again because the first training did not reach a very small
    noise."""
    shallow_jitter: float
    """Of the kernel matrix of its inducing points, relative to its diagonal."""


RECIPES: Registry[Recipe] = Registry(
    "recipe",
    {
        "default": Recipe(  # each number's reason is in docs/recipe.md
            learning_rate=3e-3,
            noise_learning_rate=2e-2,
            schedule="cosine",
            average=0.995,
            selection="crps",
            inner_factor=4,
            small_inner_factor=1,
            trend_left=0.1,
            scaling="standard",
            coordinates=3,
            batch_size=512,
            full_batch_rows=1_024,
            epochs=150,
            small_steps=2_000,
            fewest_steps=2_700,
            gpu_steps=12_000,
            most_steps=20_000,
            fewest_epochs=5,
            exact_steps=400,
            validation_steps=10,
            stream_steps=20_000,
            stream_epochs=20,
            patience_share=0.5,
            alphas=(0.1,),
            betas=(1.0,),
            copies_limit=3.0,
            calibrate=True,
            start_from_data=True,
            small_rows=2_000,
            folds=4,
            shallow_methods=("sv-rbf", "sv-rbf-linear"),
            shallow_learning_rate=5e-2,
            shallow_kernel_rate=0.5,
            shallow_noise_rate=0.2,
            shallow_jitter=1e-6,
        ),
        "paper": Recipe(
            learning_rate=1e-3,
            noise_learning_rate=1e-3,
            schedule="constant",
            average=None,
            selection="nll",
            inner_factor=1,
            small_inner_factor=1,
            trend_left=0.0,
            scaling="min-max",
            coordinates=0,
            batch_size=1_024,
            full_batch_rows=1_024,
            epochs=400,
            small_steps=1,
            fewest_steps=1,
            gpu_steps=1,
            most_steps=10**9,
            fewest_epochs=400,
            exact_steps=2_000,
            validation_steps=1,
            stream_steps=10**9,
            stream_epochs=400,
            patience_share=1.0,
            alphas=(0.0, 0.01, 0.1, 1.0),
            betas=(0.0, 0.01, 0.1, 1.0),
            copies_limit=None,
            calibrate=False,
            start_from_data=False,
            small_rows=0,
            folds=1,
            shallow_methods=(),
            shallow_learning_rate=1e-3,
            shallow_kernel_rate=None,
            shallow_noise_rate=1e-3,
            shallow_jitter=1e-4,
        ),
    },
)


def batch_size_for(recipe: Recipe, rows: int) -> int:
    return rows if rows <= recipe.full_batch_rows else recipe.batch_size


def epochs_for(recipe: Recipe, rows: int, batch_size: int, exact: bool, on_gpu: bool) -> int:
    if exact:
        return recipe.exact_steps
    steps_an_epoch = -(-rows // batch_size)
    fewest = recipe.gpu_steps if on_gpu else recipe.fewest_steps
    if rows <= recipe.small_rows:
        fewest = recipe.small_steps
    steps = min(max(recipe.epochs * steps_an_epoch, fewest), recipe.most_steps)
    return max(recipe.fewest_epochs, steps // steps_an_epoch)


def stream_epochs_for(
    recipe: Recipe, rows: int, batch_size: int, exact: bool, on_gpu: bool, passes: int | None, max_steps: int | None
) -> tuple[int, int]:
    """(epochs, rows of an epoch) of a streamed training: an epoch is part of a pass if a pass is long.

    `passes` over the rows and `max_steps` are what a user asked for, at most.
    """
    if exact:  # a step is a pass
        return min(passes or recipe.exact_steps, max_steps or recipe.exact_steps), rows
    steps_a_pass = -(-rows // batch_size)
    steps = (passes or epochs_for(recipe, rows, batch_size, False, on_gpu)) * steps_a_pass
    if max_steps is not None:
        steps = min(steps, max_steps) if passes is not None else max_steps
    elif passes is None:
        steps = min(steps, recipe.stream_steps)
    between = max(_FEWEST_STEPS, -(-steps // recipe.stream_epochs))  # steps between two validations
    epochs = max(1, steps // min(steps_a_pass, between))
    steps_an_epoch = min(steps_a_pass, steps // epochs)
    return epochs, rows if steps_an_epoch == steps_a_pass else steps_an_epoch * batch_size


def weights_for(
    recipe: Recipe, objective: str, alpha: float | None, beta: float | None
) -> tuple[tuple[float, float], ...]:
    """Every (alpha, beta) to try: the user's, or the recipe's, or 0 where the objective has no such term."""
    alphas = recipe.alphas if alpha is None else (alpha,)
    betas = recipe.betas if beta is None else (beta,)
    if not objective.startswith("dppgp"):
        alphas = (0.0,)
    if not objective.startswith(("dppgp", "ppgp")):
        betas = (1.0,) if objective == "elbo" else (0.0,)
    return tuple((a, b) for a in alphas for b in betas)
