"""`Arguments`: every argument of a fit, written once: type, check, default, help, and where the command has it.

The estimators inherit their signature and their docstring from here, and `deepbasis fit` its options. `Spec` holds the
same arguments, checked and unchangeable. Nothing here imports torch, so that `--help` answers at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields
from textwrap import fill
from typing import Any, NoReturn

from deepbasis.errors import InputError, check_positive_int
from deepbasis.fitting.kinds import (
    AUTO,
    CALIBRATE,
    CLASSES,
    COLUMNS,
    DEVICE,
    FLAG,
    LIKELIHOOD,
    SEED,
    SWITCH,
    TRANSFORM,
    Kind,
    check_asked,
    jobs,
    one_of,
    real,
    share,
    whole,
)
from deepbasis.fitting.recipe import RECIPES, TRENDS
from deepbasis.gp.methods import METHODS
from deepbasis.registry import EMBEDDINGS, OBJECTIVES

GAUSSIAN, INTERVAL, CENSORED = "gaussian", "interval", "censored"
COUNTS = ("poisson", "negative-binomial")
STUDENT = "student"
OUTPUTS = "outputs"
CONSTANT, INPUT, INPUT_NOISE = "constant", "input", "input-noise"
WIDEN = "widen"
OPTIMISERS = ("adamw", "muon", "lbfgs")
EXACT = "mml"
"""The objective of exact training, by the marginal likelihood (Algorithm 1), beside the mini-batch objectives."""

MODEL, TRAINING, SCALE = "The model", "Training", "Large tables"
"""The panels of the command's help."""


def argument(default: Any, kind: Kind, help: str, panel: str = "", option: str = "") -> Any:
    """A field of `Arguments`. The help's first sentence is the command's; without a panel the command has no option."""
    return field(default=default, metadata={"kind": kind, "help": help, "panel": panel, "option": option})


@dataclass(kw_only=True, eq=False, repr=False)
class Arguments:
    """What a user may ask of a fit. scikit-learn wants them kept as they are: they are checked when a fit begins."""

    method: str = argument(
        AUTO,
        one_of(lambda: (AUTO, *METHODS), many=True),
        'The kernel and how it is trained; auto: dbk-silu, or a shallow kernel up to 20,000 rows. "dbk-silu", '
        '"dbk-rbf", "vbll", "sv-dkl", "pp-dkl", "sv-rbf" and "dnn" are the paper\'s; "sv-rbf-linear" adds a linear '
        'kernel to it, "linear" is that kernel alone, and the others are from the paper\'s outlook. A shallow kernel '
        "learns its parameters from at most 2,000 rows, predicts given all, and is chosen unless the networks predict "
        "held-out rows better. Above 2,000 rows with categories only a straight line is tried. With groups none is, "
        'because the likelihood treats all rows as independent. "dnn" has no distribution of its own: it predicts with '
        "the variance of its validation residuals.",
        MODEL,
    )
    recipe: str = argument(
        "default", one_of(lambda: RECIPES), "The settings that 'auto' stands for. \"paper\" is the paper's.", MODEL
    )
    objective: str | None = argument(
        None,
        one_of(lambda: (*OBJECTIVES, EXACT), none=True),
        "Training objective, by default the method's own; mml is exact inference. It maximises the marginal likelihood "
        'of all rows, or, for a sparse method ("sv-rbf", "sv-rbf-linear", "sv-dkl", "pp-dkl"), its lower bound.',
        MODEL,
    )
    likelihood: str = argument(
        GAUSSIAN,
        LIKELIHOOD,
        'Distribution of the target around the function. "student" has heavy tails, for outliers. "poisson" and '
        '"negative-binomial" are for counts whose rate is the exponential of the function, perhaps with an exposure. '
        "Other kinds of targets, such as censored ones, several at once or classes, get a likelihood of their own.",
        MODEL,
    )
    noise: str = argument(
        CONSTANT,
        one_of(lambda: (CONSTANT, INPUT)),
        "Whether the noise is constant or a function of the inputs. If it is constant, the uncertainty of the "
        'function says where the target varies more. "input" gives the noise a function of its own.',
        MODEL,
    )
    target: Any = argument(
        AUTO,
        TRANSFORM,
        "How the target is transformed; auto: warp, count or ordinal where simple models gain clearly by it. "
        '"identity" leaves it as it is: predictions are symmetric about their mean. "warp" learns from its quantiles a '
        'map that makes it about normal, for skewed targets; a positive target stays positive. "log" is for '
        'positive targets whose errors are relative. "count" is for whole numbers from 0, "ordinal" for a few numbers '
        "of which only the order matters: each is an interval of a latent number, and predictions are probabilities of "
        'values. "classes" is for categories, and for DeepBasisClassifier alone; the command uses it for a target of '
        "texts. A scikit-learn transformer is fitted to the target, and must be strictly monotone and have an "
        "inverse; a saved model keeps what it does, not the transformer. Predictions and scores are always in the "
        "target's own units.",
        MODEL,
        "--target-transform",
    )
    rank: int | str = argument(
        AUTO,
        whole(auto=True),
        "Number of basis functions; auto: 32, or 64 on a GPU above 2,000 rows to fit. auto is 128 for classes up to "
        "2,000 rows, in exact training, for an expansion other than SiLU and in the paper's recipe.",
        MODEL,
    )
    width: int = argument(64, whole(), "Width of the network.", MODEL)
    blocks: int = argument(2, whole(), "Number of residual blocks in the network.", MODEL)
    inner: int | str = argument(
        AUTO,
        whole(auto=True),
        "Width inside a block; auto: the same as `width`, or twice that on a GPU above 2,000 rows to fit.",
        MODEL,
    )
    embedding: str = argument(
        AUTO,
        one_of(lambda: (AUTO, *EMBEDDINGS)),
        'Embedding of the inputs; auto: periodic-linear, or fourier for maps (two or three number columns). "fourier" '
        'gives the network waves across all columns together, for coordinates; "periodic" gives it waves of each '
        'column, "periodic-linear" a few combinations of them, "piecewise-linear" bins of each column. A map has no '
        "missing values, and more than 2,000 rows. auto is none for classes up to 2,000 rows, for one column up to as "
        "many, and above 128 encoded columns; of classes, columns of 0 and 1 do not count, up to 256 of them.",
        MODEL,
    )
    columns: Any = argument(
        None,
        COLUMNS,
        "How to read columns, by name, where they are not what they look like. A column of text whose cells are "
        'all written as numbers, dates or durations is read as such, and one line says so. "number", "date" and '
        '"category" overrule that. Of a "text" the model sees only its length. "drop" leaves a column out.',
    )
    scaling: str = argument(
        AUTO,
        one_of(lambda: (AUTO, "standard", "min-max")),
        "How number columns are scaled; auto: the recipe's, by default standard. "
        '"standard" is to mean 0 and standard deviation 1, "min-max" to the range from -1 to 1, as in the paper.',
        MODEL,
    )
    trend: str = argument(
        AUTO,
        one_of(lambda: (AUTO, *TRENDS)),
        "Prior mean; auto: a line for half of the members, if it explains nine tenths of the target. "
        '"none" is a constant. "linear" is a straight line through the rows (a ridge regression; for a stream, through '
        "its held-out rows), which the models follow beyond the rows, up to ten standard deviations of a column. "
        '"auto" gives every second member a line if it leaves at most a tenth of the target\'s variance, there are '
        "more than 2,000 rows to fit and more than one member, and a stream has no separate validation rows.",
        MODEL,
    )
    alpha: float | str = argument(
        AUTO,
        real(auto=True, at_least=0.0),
        "Weight of the trace regulariser; auto: the recipe's. If the recipe has several candidates, all are trained "
        "together and the validation score chooses.",
        MODEL,
    )
    beta: float | str = argument(
        AUTO, real(auto=True, at_least=0.0), "Weight of the KL regulariser; auto: the recipe's. As for `alpha`.", MODEL
    )
    members: int | str = argument(
        AUTO, whole(auto=True), "Models that predict as an equal mixture; auto: 4, or 8 if a time limit allows.", MODEL
    )
    epochs: int | str = argument(AUTO, whole(auto=True), "Passes over the rows, at most, of every candidate.", TRAINING)
    batch_size: int | str = argument(AUTO, whole(auto=True), "Rows per training step.", TRAINING)
    optimiser: str = argument(
        AUTO,
        one_of(lambda: (AUTO, *OPTIMISERS)),
        "What trains the matrices inside the network; auto: muon, or adamw up to 2,000 rows to fit, where from 1,000 "
        'on a race of 300 steps may choose muon. "adamw" is the paper\'s, and trains everything else with either. '
        '"lbfgs" is for exact training (objective mml), where auto is lbfgs for kernels and adamw for networks.',
        TRAINING,
    )
    learning_rate: float | str = argument(
        AUTO, real(auto=True, above=0.0), "Learning rate of AdamW; that of Muon changes in proportion.", TRAINING
    )
    weight_decay: float | str = argument(
        AUTO,
        real(auto=True, at_least=0.0),
        "Weight decay, for the network only; auto: 0.01, or 1 where most columns seem to be noise. Above 2,000 rows to "
        "fit, networks with 0.01 and with 1 and no embedding are trained for 300 steps each, and the better goes on.",
        TRAINING,
    )
    validation_fraction: float | str = argument(
        AUTO,
        share(auto=True),
        "Share of the rows held out; auto: 0.1, or on a small table a different quarter for each member. They serve "
        "early stopping, selection and calibration. On a small table in memory the first member of an ensemble of "
        "networks holds out the first quarter, the next one the second, and so on, and all of these rows calibrate. "
        "Rows of one group are never on both sides, nor, in memory, are identical rows. In selection and calibration "
        "by the default recipe, copies of an input count as at most three average inputs.",
        TRAINING,
    )
    patience: int | str = argument(
        AUTO, whole(auto=True), "Epochs without improvement after which a member stops.", TRAINING
    )
    calibrate: bool | str = argument(
        AUTO,
        CALIBRATE,
        "Whether to calibrate predictions on the validation rows. Residuals have heavier tails than a Gaussian: a "
        "calibrated prediction is a mixture of three scales of the predictive variance, noise included. "
        '"conformal" also sets rows apart that nothing else of the fit sees, a tenth of them or, of a small table, up '
        'to a quarter: for `predict_interval(guarantee=True)`. "cross-conformal" sets none apart: five more fits, '
        "each without a fifth of the rows, calibrate the intervals. It is for small tables.",
        TRAINING,
    )
    distance: str = argument(
        "none",
        one_of(lambda: ("none", WIDEN)),
        'Whether predictions widen where there were no rows. With "widen" variances grow, far from the rows, with what '
        "the members disagree about; a category never seen, or a number far outside the range of its column, counts as "
        "a random known one; and a shallow kernel that predicts held-out rows about as well takes over far from the "
        "rows. For one target that is a number, with constant Gaussian noise.",
        MODEL,
    )
    dtype: str = argument(
        AUTO,
        one_of(lambda: (AUTO, "float32", "float64", "tf32")),
        "Floating-point precision of training; auto: float64 up to 256 rows, then tf32 on a GPU and float32 on a CPU. "
        "tf32 is float32 with rounded products in training steps on a GPU. A shallow kernel predicts in float64.",
        TRAINING,
    )
    device: str = argument(AUTO, DEVICE, "Where to train. auto: a GPU if there is one.", TRAINING)
    time_limit: float | None = argument(
        None,
        real(none=True, above=0.0),
        "Seconds that a fit in memory may take; by default as many as it needs. The number of steps is chosen by the "
        "speed of a few, up to four times those of a fit without a limit; such a model depends on the machine.",
        TRAINING,
    )
    n_jobs: int | str | None = argument(
        AUTO,
        jobs(),
        "Threads to train with on a CPU, at most; -1 is all cores. auto: as many as torch has. A number gives the same "
        "model to the last bit, run after run. Up to 400 rows there is one thread.",
        TRAINING,
    )
    compile: bool | str = argument(AUTO, FLAG, "Whether to use torch.compile; auto: on a GPU, for long fits.", TRAINING)
    random_state: Any = argument(None, SEED, "Seed; the same seed gives the same model.", TRAINING, "--seed")
    verbose: bool = argument(
        False, SWITCH, "Whether to show progress: a bar on a terminal, elsewhere a line now and then."
    )


class Spec(Arguments):
    """Arguments that were checked, as plain Python values, and do not change: `dataclasses.replace` makes another."""

    def __init__(self, **given: Any) -> None:
        checked = {
            one.name: one.metadata["kind"].check(one.name, given.pop(one.name, one.default)) for one in arguments()
        }
        if given:
            raise TypeError(f"unknown arguments: {', '.join(sorted(given))}")
        vars(self).update(checked)
        _check_together(self)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"a Spec does not change: cannot set {name!r}; use dataclasses.replace")

    @classmethod
    def of(cls, given: Arguments) -> Spec:
        check_asked("likelihood", given.likelihood, type(given).likelihood)
        return cls(**{one.name: getattr(given, one.name) for one in arguments()})


def arguments() -> tuple[Field[Any], ...]:
    return fields(Arguments)


def _check_together(given: Spec) -> None:
    """Refuse arguments that do not go together."""
    if given.method == "dnn" and given.objective not in (None, "mse"):
        raise InputError(
            f"method 'dnn' has no distribution over its weights: objective must be 'mse' or None, got "
            f"{given.objective!r}"
        )
    if given.method != "dnn" and given.objective == "mse":
        raise InputError(
            f"objective 'mse' says nothing about the distribution of the weights that method {given.method!r} has: "
            "use method='dnn', or another objective"
        )
    if given.method == "dnn" and given.likelihood in (*COUNTS, STUDENT):
        raise InputError(
            f"method 'dnn' minimises squares and cannot have likelihood {given.likelihood!r}: leave one out"
        )
    calibrated = given.calibrate is True and given.likelihood != CLASSES
    if given.likelihood != GAUSSIAN and (given.objective == EXACT or calibrated):
        refused = f"objective {EXACT!r}" if given.objective == EXACT else "calibrate=True"
        raise InputError(f"likelihood {given.likelihood!r} is not Gaussian: {refused} is for one that is; leave it out")
    shallow = given.method != AUTO and METHODS[given.method].backbone == "identity"
    if shallow and given.embedding not in (AUTO, "none"):
        raise InputError(
            f"method {given.method!r} has no network for an embedding to come before, got embedding="
            f"{given.embedding!r}; leave it out"
        )


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a table in files is fitted: no property of the model."""

    memory: int | str | None = field(
        default=None,
        metadata={"help": "Memory limit of the whole process, such as 2GiB.", "panel": SCALE, "metavar": "SIZE"},
    )
    stream: bool | None = field(
        default=None,
        metadata={
            "help": "Read the rows piece by piece, or never; by default if they do not fit into memory.",
            "panel": SCALE,
        },
    )
    max_steps: int | None = field(
        default=None, metadata={"help": "Maximum number of training steps.", "panel": SCALE, "metavar": "INTEGER"}
    )
    checkpoint: Any = field(
        default=None,
        metadata={
            "help": "File to resume from: the same command, run again, continues as if it had never stopped.",
            "panel": SCALE,
            "metavar": "FILE",
        },
    )

    def __post_init__(self) -> None:
        if self.max_steps is not None:
            check_positive_int("max_steps", self.max_steps)


def parameters_section(of: type[Arguments] = Arguments) -> str:
    """The arguments as numpydoc has them: `name : type, default value`, and the help below."""
    return "\n".join(_entries(of))


def _entries(of: type[Arguments]) -> Iterator[str]:
    for one in (one for one in fields(of) if one.init):
        default = f'"{one.default}"' if isinstance(one.default, str) else one.default
        yield f"    {one.name} : {one.metadata['kind'].type()}, default {default}"
        yield fill(one.metadata["help"], 116, initial_indent=" " * 8, subsequent_indent=" " * 8, break_on_hyphens=False)
