"""The settings of a run: what all its members have in common."""

from dataclasses import dataclass

import torch

from deepbasis.errors import InputError, check_choice, check_number, check_positive_int
from deepbasis.gp.methods import METHODS
from deepbasis.registry import OBJECTIVES

EXACT = "mml"
"""The name of exact training by the marginal likelihood (Algorithm 1), beside the mini-batch objectives."""

OPTIMISERS = ("adamw", "muon", "lbfgs")
PRECISIONS = ("float64", "float32", "tf32", "bf16")


@dataclass(frozen=True)
class Settings:
    """Defaults are the paper's (Appendix B)."""

    objective: str = "dppgp"
    epochs: int = 400
    """With `objective="mml"` an epoch is one full-batch step."""
    passes: int = 1
    """Passes over the rows in an epoch. Validating after each step or two costs as much as the steps."""
    batch_size: int = 1024
    bootstrap: bool = False
    """Whether each member trains on its own bootstrap sample of the rows, drawn once from its seed."""
    optimiser: str = "adamw"
    """Or "muon", for the matrices inside the network's blocks; everything else is stepped by AdamW. Or "lbfgs", for
    exact training: it needs no learning rates, and an epoch is one evaluation."""
    prior: bool = False
    """In exact training: whether the parameters of the kernel have the prior that the expansion says."""
    learning_rate: float = 1e-3
    muon_rate: float = 0.02
    """The learning rate of Muon's matrices: about how far a step moves each of their singular values."""
    posterior_learning_rate: float | None = None
    """For q(w); None is `learning_rate`."""
    noise_learning_rate: float | None = None
    kernel_learning_rate: float | None = None
    """For what the expansion names as its kernel's: of RBF the logarithms of lengthscales, variance and slope."""
    weight_decay: float = 1e-2
    schedule: str = "constant"
    """Or "cosine", down to 0 at the last of `epochs`."""
    warmup_steps: int = 0
    clip: float | None = None
    """The largest norm of a member's gradient."""
    average: float | None = None
    """The decay of a running average of the parameters, such as 0.995, that is validated, kept and used for prediction;
    None uses the parameters themselves."""
    selection: str = "nll"
    """The score that is lowest at the best epoch, on the validation rows: "nll" or "crps"; for a DNN it is the squared
    error. "last" keeps the last epoch, whatever its NLL is."""
    patience: int | None = None
    """A member stops when none of so many epochs came within `margin` of its best validation score; None is never."""
    margin: float = 0.0
    """In units of the score. Where there is little noise it rises and falls until the rate is low; overfitting is what
    leads further away."""
    precision: str = "float32"
    """"float64", "float32", "tf32" or "bf16". The last two are for training steps only: tf32 for all matrix products
    on a GPU, bf16 for the backbone's. Validation and prediction are always in full float32."""
    compile: bool = False
    """torch.compile for the training step."""
    fused: bool = True
    """On a GPU, a step in a few kernels of our own, where they cover it; `compile` is then not needed. On a CPU, its
    gradient by formulas of our own."""
    cuda_graph: bool = True
    """On a GPU, the whole step as one CUDA graph."""
    chunk_rows: int = 8192
    """Rows at a time in exact training and in validation."""

    def __post_init__(self) -> None:
        check_choice("objective", self.objective, {*OBJECTIVES, EXACT})
        check_choice("optimiser", self.optimiser, OPTIMISERS)
        check_choice("schedule", self.schedule, {"constant", "cosine"})
        check_choice("selection", self.selection, {"nll", "crps", "last"})
        check_choice("precision", self.precision, PRECISIONS)
        for name in ("epochs", "passes", "batch_size", "chunk_rows"):
            check_positive_int(name, getattr(self, name))
        own_rates = ("posterior_learning_rate", "noise_learning_rate", "kernel_learning_rate")
        for name in ("learning_rate", "muon_rate", *own_rates, "clip"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), above=0.0)
        check_number("weight_decay", self.weight_decay, at_least=0.0)
        if self.average is not None:
            if check_number("average", self.average, at_least=0.0) >= 1.0:
                raise InputError(f"average must be below 1, or the parameters are never taken in, got {self.average!r}")
            if self.exact:
                raise InputError("average is not for exact training (mml): its q(w) belongs to the current parameters")
        if self.optimiser == "lbfgs" and not self.exact:
            raise InputError(
                "optimiser 'lbfgs' is for exact training (objective 'mml'), whose loss has no noise: use 'adamw' or "
                "'muon', or that objective"
            )
        if not isinstance(self.prior, bool) or (self.prior and not self.exact):
            raise InputError(f"prior must be True or False, and is for exact training (mml), got {self.prior!r}")
        if not isinstance(self.bootstrap, bool):
            raise InputError(f"bootstrap must be True or False, got {self.bootstrap!r}")
        if self.bootstrap and self.exact:
            raise InputError(
                "bootstrap is not for exact training (mml): there all members share one pass over the rows"
            )
        if self.passes > 1 and self.exact:
            raise InputError(f"passes must be 1 in exact training (mml), where an epoch is a step, got {self.passes!r}")
        if self.warmup_steps != 0:
            check_positive_int("warmup_steps", self.warmup_steps)
        if self.patience is not None:
            check_positive_int("patience", self.patience)
        check_number("margin", self.margin, at_least=0.0)

    @property
    def exact(self) -> bool:
        return self.objective == EXACT

    @property
    def score(self) -> str:
        """For people: what is reported of an epoch."""
        name = "MSE" if self.objective == "mse" else "CRPS" if self.selection == "crps" else "NLL"
        return f"{'last' if self.selection == 'last' else 'best'} {name}"

    @property
    def rates(self) -> dict[str, float]:
        """The learning rates of the groups of parameters that have one of their own."""
        own = (self.posterior_learning_rate, self.noise_learning_rate, self.kernel_learning_rate)
        names = ("posterior", "likelihood", "kernel")
        return {name: rate for name, rate in zip(names, own, strict=True) if rate is not None}

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.precision == "float64" else torch.float32


def settings_for(method: str, **changes: object) -> Settings:
    """The settings of a method of the paper, with `changes` to any of them."""
    row = METHODS[METHODS.check("method", method)]
    return Settings(**{"objective": row.objective, **changes})  # type: ignore[arg-type]
