"""Recipes: what "auto" means for a table of n rows. A recipe is a row of numbers, fixed before any test row is seen."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from deepbasis.registry import Registry

FLOAT64_ROWS = 256
"""Up to here dtype="auto" is float64."""

ONE_THREAD_ROWS = 2_000
"""Up to here torch has one thread on a CPU: more gain little, and lose much on a busy machine."""

ONE_STACK_ROWS = 400
"""Up to here members are trained as one stack, in one thread: a step is mostly what Python does."""

ONE_THREAD_PRODUCTS = 2**26
"""Multiplications in a member's largest product, up to which one thread is enough for it: there are other members."""

FEWEST_PATIENCE = 5
"""Epochs: where there are few, such as the pieces of a stream, a bad one says little."""

TRENDS = ("none", "linear")
"""What a user may ask for as prior mean: a constant, or a straight line."""
HALF = "half"
"""What "auto" may resolve to: a line for every second member."""

_FEWEST_STEPS = 50  # between two validations of a stream


@dataclass(frozen=True)
class Networks:
    """How the networks for tables of a size are made and trained."""

    optimiser: str
    """"adamw" or "muon"."""
    learning_rate: float
    """Of AdamW, where it trains alone."""
    inner_factor: int
    """Width inside the network's blocks, as a multiple of the width between them."""
    rank: int
    """Basis functions of a SiLU expansion."""
    embedding: str
    """Of tables that are no maps."""
    embedding_columns: int
    """With more encoded columns there is no embedding: it would cost more than the network."""
    embedding_flags: int
    """Columns of 0 and 1 beside these, where the target is a class: their embedding costs little."""
    alphas: Sequence[float]
    betas: Sequence[float]
    """What alpha="auto" and beta="auto" choose from."""
    weight_decay: float
    epochs: int
    """Within the limits on steps below."""
    fewest_steps: int
    most_steps: int
    rival: "Networks | None" = None
    """Other networks, which a short race may choose in place of these."""
    rival_rows: int = 0
    """Rows to fit above which there is a race: few rows say little about who is better."""


@dataclass(frozen=True)
class Recipe:
    small: Networks
    """Up to `small_rows`."""
    small_classes: Networks
    """The same for classes."""
    exact: Networks
    """For objective="mml": a step is a pass over all rows."""
    large: Networks
    large_on_gpu: Networks
    """Where a step costs far less, whatever the network's width."""
    muon_learning_rate: float
    """Of AdamW beside Muon: for all but the matrices inside the network's blocks."""
    muon_rate: float
    """Of Muon."""
    noise_learning_rate: float
    """For the log of the noise variance, which has far to go: see the notes on the paper's gaps."""
    schedule: str
    average: float | None
    """The length of the running average of the parameters, as a share of the steps."""
    selection: str
    """The score that is lowest at the best epoch, on the validation rows: "nll" or "crps"."""
    trend_left: float
    """Half of the members have a straight line as their prior mean if it leaves at most this share of the target's
    variance, and the table is not small."""
    scaling: str
    """How number columns are scaled: "standard" or "min-max".

    NOTE[DIFF]: the paper scales inputs to [-1, 1] by the minimum and maximum of all rows, those of the test too. Here
    they are those of the rows to fit; and the default standardises, since one outlier sets a minimum or a maximum."""
    target: str
    """How the target is transformed: "auto" or "identity"."""
    coordinates: int
    """Tables of two to this many number columns are treated as maps: waves before the network."""
    batch_size: int
    full_batch_rows: int
    """Up to this many rows a step takes all of them."""
    race_steps: int
    """Of the race between networks; it is run if all members' trainings have at least eight times as many."""
    fewest_epochs: int
    """Whatever the limits on steps say."""
    exact_steps: int
    """For objective="mml"."""
    search_steps: int
    """The same with L-BFGS, at most: evaluations."""
    validation_steps: int
    """Steps between two validations, if a pass over the rows has fewer."""
    stream_steps: int
    """The most steps for a streamed table, if the limits above do not give fewer."""
    stream_epochs: int
    """The fewest pieces that streamed training is cut into, with a validation and a checkpoint after each."""
    patience_share: float
    """Epochs without a better log score after which a member stops, as a share of all epochs."""
    short_patience_share: float
    """The same for classes, which networks soon begin to overfit; and where the CRPS selects, with the margin below."""
    crps_margin: float
    """In standard deviations of the target. Only an epoch whose CRPS is worse by more than this counts there."""
    copies_limit: float | None
    """Copies of an input among the validation rows count as at most this many average inputs."""
    members: int
    calibrate: bool
    """Whether the validation rows also give a mixture of scales of the predictive variance."""
    start_from_data: bool
    """Whether the noise, and the inducing points of a shallow kernel, start from the rows, or as in the paper."""
    small_rows: int
    """Up to here a table is small: members hold out different rows, and kernels learn from all. Above it, kernels learn
    from so many, coordinates become waves, and where the target is a class frequent numbers may have indicators."""
    kernel_rows: int
    """Up to here method="auto" also tries shallow kernels, one of which is a straight line."""
    folds: int
    """Parts of a small table, of which a member holds out one."""
    inducing_points: int
    """The rank of an expansion that is not SiLU."""
    shallow_methods: Sequence[str]
    """The shallow kernels to try; the likelier is taken, by Schwarz' criterion."""
    shallow_optimiser: str
    """For objective="mml": "lbfgs" or "adamw"."""
    shallow_learning_rate: float
    """Of AdamW."""
    shallow_prior: bool
    """Whether its lengthscales are alike until the rows say otherwise."""
    shallow_jitter: float
    """Of the kernel matrix of its inducing points, relative to its diagonal."""

    def networks(self, rows: int, exact: bool, on_gpu: bool) -> Networks:
        if exact:
            return self.exact
        if rows <= self.small_rows:
            return self.small
        return self.large_on_gpu if on_gpu else self.large


_SMALL = Networks(  # each number's reason is in docs/recipe.md
    optimiser="adamw",
    learning_rate=5e-3,
    inner_factor=1,
    rank=32,
    embedding="periodic-linear",
    embedding_columns=128,
    embedding_flags=0,
    alphas=(0.0,),
    betas=(1.0,),
    weight_decay=1e-2,
    epochs=150,
    fewest_steps=800,
    most_steps=800,
)
_SMALL = replace(_SMALL, rival=replace(_SMALL, optimiser="muon"), rival_rows=1_000)
_EXACT = replace(_SMALL, learning_rate=3e-3, rank=128, embedding="none", alphas=(0.1,), rival=None)
_SMALL_CLASSES = replace(_EXACT, fewest_steps=2_000, most_steps=20_000)
_LARGE = Networks(
    optimiser="muon",
    learning_rate=3e-3,
    inner_factor=1,
    rank=32,
    embedding="periodic-linear",
    embedding_columns=128,
    embedding_flags=256,
    alphas=(0.0,),
    betas=(1.0,),
    weight_decay=1e-2,
    epochs=150,
    fewest_steps=2_700,
    most_steps=9_500,
)
_LARGE_ON_GPU = replace(_LARGE, inner_factor=2, rank=64, fewest_steps=6_000, most_steps=12_000)
_LARGE, _LARGE_ON_GPU = (  # where most columns are noise, little may be learnt from each
    replace(one, rival=replace(one, embedding="none", weight_decay=1.0)) for one in (_LARGE, _LARGE_ON_GPU)
)
_PAPER = Networks(
    optimiser="adamw",
    learning_rate=1e-3,
    inner_factor=1,
    rank=128,
    embedding="none",
    embedding_columns=0,
    embedding_flags=0,
    alphas=(0.0, 0.01, 0.1, 1.0),
    betas=(0.0, 0.01, 0.1, 1.0),
    weight_decay=1e-2,
    epochs=400,
    fewest_steps=1,
    most_steps=10**9,
)

RECIPES: Registry[Recipe] = Registry(
    "recipe",
    {
        "default": Recipe(
            small=_SMALL,
            small_classes=_SMALL_CLASSES,
            exact=_EXACT,
            large=_LARGE,
            large_on_gpu=_LARGE_ON_GPU,
            muon_learning_rate=1e-2,
            muon_rate=5e-2,
            noise_learning_rate=2e-2,
            schedule="cosine",
            average=0.1,
            selection="crps",
            trend_left=0.1,
            scaling="standard",
            target="auto",
            coordinates=3,
            batch_size=512,
            full_batch_rows=1_024,
            race_steps=300,
            fewest_epochs=5,
            exact_steps=400,
            search_steps=150,
            validation_steps=10,
            stream_steps=20_000,
            stream_epochs=20,
            patience_share=0.5,
            short_patience_share=0.15,
            crps_margin=0.02,
            copies_limit=3.0,
            members=4,
            calibrate=True,
            start_from_data=True,
            small_rows=2_000,
            kernel_rows=20_000,
            folds=4,
            inducing_points=128,
            shallow_methods=("sv-rbf", "sv-rbf-linear", "linear"),
            shallow_optimiser="lbfgs",
            shallow_learning_rate=5e-2,
            shallow_prior=True,
            shallow_jitter=1e-6,
        ),
        "paper": Recipe(
            small=_PAPER,
            small_classes=_PAPER,
            exact=_PAPER,
            large=_PAPER,
            large_on_gpu=_PAPER,
            muon_learning_rate=1e-3,
            muon_rate=2e-2,
            noise_learning_rate=1e-3,
            schedule="constant",
            average=None,
            selection="nll",
            trend_left=0.0,
            scaling="min-max",
            target="identity",
            coordinates=0,
            batch_size=1_024,
            full_batch_rows=1_024,
            race_steps=1,
            fewest_epochs=400,
            exact_steps=2_000,
            search_steps=150,
            validation_steps=1,
            stream_steps=10**9,
            stream_epochs=400,
            patience_share=1.0,
            short_patience_share=1.0,
            crps_margin=0.0,
            copies_limit=None,
            members=4,
            calibrate=False,
            start_from_data=False,
            small_rows=0,
            kernel_rows=0,
            folds=1,
            inducing_points=128,
            shallow_methods=(),
            shallow_optimiser="adamw",
            shallow_learning_rate=1e-3,
            shallow_prior=False,
            shallow_jitter=1e-4,
        ),
    },
)


def average_decay(share: float, steps: int) -> float:
    """Of a running average over about this share of the steps, such as 0.995 for a tenth of 2,000."""
    return 1.0 - 1.0 / max(1.0, share * steps)


def training_precision(precision: str) -> str:
    """That of a network's steps on a GPU: tf32 is as good as float32 there, and takes half the time. Exact training, in
    which no noise would hide the difference, is another matter."""
    return "tf32" if precision == "float32" else precision


def batch_size_for(recipe: Recipe, rows: int) -> int:
    return rows if rows <= recipe.full_batch_rows else recipe.batch_size


def epochs_for(recipe: Recipe, networks: Networks, rows: int, batch_size: int, exact: bool) -> int:
    if exact:
        return recipe.exact_steps
    steps_an_epoch = -(-rows // batch_size)
    steps = min(max(networks.epochs * steps_an_epoch, networks.fewest_steps), networks.most_steps)
    return max(recipe.fewest_epochs, steps // steps_an_epoch)


def stream_epochs_for(
    recipe: Recipe, rows: int, batch_size: int, exact: bool, usual: int, passes: int | None, max_steps: int | None
) -> tuple[int, int]:
    """(epochs, rows of an epoch) of a streamed training: an epoch is part of a pass if a pass is long.

    `usual` are the epochs in memory; `passes` over the rows and `max_steps` are what a user asked for, at most.
    """
    if exact:  # a step is a pass
        return min(passes or usual, max_steps or usual), rows
    steps_a_pass = -(-rows // batch_size)
    steps = (passes or usual) * steps_a_pass
    if max_steps is not None:
        steps = min(steps, max_steps) if passes is not None else max_steps
    elif passes is None:
        steps = min(steps, recipe.stream_steps)
    between = max(_FEWEST_STEPS, -(-steps // recipe.stream_epochs))  # steps between two validations
    epochs = max(1, steps // min(steps_a_pass, between))
    steps_an_epoch = min(steps_a_pass, steps // epochs)
    return epochs, rows if steps_an_epoch == steps_a_pass else steps_an_epoch * batch_size
