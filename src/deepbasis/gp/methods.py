"""Every method of the paper as a row of one table (Appendix B, "Baselines"), and our own. A new method is a new row."""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor, nn

from deepbasis.errors import InputError, check_choice, check_positive_int
from deepbasis.gp import objectives
from deepbasis.gp.backbone import Identity, ResNet
from deepbasis.gp.embedding import Fourier, Periodic
from deepbasis.gp.expansion import JITTER, RBF, PassThrough, SiLU
from deepbasis.gp.model import DeepBasisGP, Noise, Terms
from deepbasis.gp.posterior import PointWeights, WeightPosterior

Objective = Callable[[Terms, Tensor, Tensor, Tensor, Tensor, Tensor | None, objectives.Whole | None], Tensor]
"""(terms, y, n, alpha, beta, weight, whole) -> loss: the same arguments for all, each takes what it needs."""

OBJECTIVES: MappingProxyType[str, Objective] = MappingProxyType(
    {
        "dppgp": objectives.dppgp,
        "dppgp-detached": partial(objectives.dppgp, through_maximum=False),
        "ppgp": lambda t, y, n, alpha, beta, weight, *whole: objectives.ppgp(t, y, n, beta, weight, *whole),
        "elbo": lambda t, y, n, alpha, beta, weight, *whole: objectives.elbo(t, y, n, 1.0, weight, *whole),
        "mse": lambda t, y, n, alpha, beta, weight, *whole: objectives.mse(t, y, weight, *whole),
    }
)


@dataclass(frozen=True)
class Method:
    backbone: str
    expansion: str
    objective: str
    corrected: bool
    """Whether predictions carry the variance correction of Eq. 4."""


METHODS: MappingProxyType[str, Method] = MappingProxyType(
    {
        "dbk-silu": Method("resnet", "silu", "dppgp", corrected=False),
        "dbk-rbf": Method("resnet", "rbf", "dppgp", corrected=False),
        "vbll": Method("resnet", "silu", "elbo", corrected=False),
        "sv-dkl": Method("resnet", "rbf", "elbo", corrected=True),
        "pp-dkl": Method("resnet", "rbf", "ppgp", corrected=True),
        "sv-rbf": Method("identity", "rbf", "elbo", corrected=True),
        "sv-rbf-linear": Method("identity", "rbf-linear", "elbo", corrected=True),
        "dnn": Method("resnet", "none", "mse", corrected=False),
    }
)

EXPANSIONS: MappingProxyType[str, Callable[[int, int, float], SiLU | RBF]] = MappingProxyType(
    {
        "silu": lambda h, rank, jitter: SiLU(h, rank),
        "rbf": lambda h, rank, jitter: RBF(h, rank, jitter=jitter),
        "rbf-linear": lambda h, rank, jitter: RBF(h, rank, jitter=jitter, linear=True),
    }
)
"""(width of the backbone, rank, jitter) -> expansion."""

EMBEDDINGS = ("none", "periodic", "fourier")
"""Those that need no data to be made."""


def build(
    method: str,
    d: int,
    *,
    rank: int = 128,
    width: int = 64,
    blocks: int = 2,
    inner: int | None = None,
    embedding: str | nn.Module | Callable[[], nn.Module] | None = None,
    noise: float = 1e-2,
    noise_parameterisation: str = "log",
    slope: Sequence[float] = (),
    jitter: float = JITTER,
    autocast: torch.dtype | None = None,
    seed: int | None = None,
) -> DeepBasisGP:
    """A model of `method` for inputs of `d` columns, with the paper's sizes and initialisation.

    With a `seed` its parameters depend on that seed alone, and torch's global random state is left as it was. They are
    float32; `.double()` gives the same start in float64.

    `inner` is the width inside a block, by default `width`. `embedding` comes before the backbone: None or "none";
    "periodic" or "fourier"; a ready module, of which the model has a copy (`PiecewiseLinear(quantile_edges(x, 16))`);
    or a function that makes one, with parameters from the seed (`lambda: Periodic(d, 16, scale=0.5)`).

    `slope`, a number for each column, is that of the prior mean, which is a constant without it. `jitter` is that of a
    kernel with inducing points.
    """
    row = METHODS[check_choice("method", method, METHODS)]
    rank = check_positive_int("rank", rank)
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64):
        raise InputError(f"seed must be None or an integer in [0, 2^64), got {seed!r}")
    if len(slope) not in (0, d) or not all(map(math.isfinite, slope)):
        raise InputError(f"slope must have a finite number for each of {d} columns, got {list(slope)[:8]}")
    line = torch.tensor(slope, dtype=torch.float32) if len(slope) else None
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.default_generator.manual_seed(seed)  # the CPU's alone
        embedded = _embedding(embedding, d)
        backbone: ResNet | Identity
        if row.backbone == "resnet":
            backbone = ResNet(d, width, blocks=blocks, inner=inner, autocast=autocast, embedding=embedded)
        elif embedded is not None:
            raise InputError(f"method {method!r} has no network for an embedding to come before; leave it out")
        else:
            backbone = Identity(d)
        expansion: SiLU | RBF | PassThrough
        posterior: WeightPosterior | PointWeights
        if row.expansion == "none":
            expansion, posterior = PassThrough(backbone.width), PointWeights(backbone.width)
        else:
            expansion = EXPANSIONS[row.expansion](backbone.width, rank, jitter)
            posterior = WeightPosterior(expansion.rank)
        return DeepBasisGP(backbone, expansion, posterior, Noise(noise, parameterisation=noise_parameterisation), line)


def _embedding(embedding: str | nn.Module | Callable[[], nn.Module] | None, d: int) -> nn.Module | None:
    if embedding is None or embedding == "none":
        return None
    if isinstance(embedding, nn.Module):
        return deepcopy(embedding).float()  # no two models share parameters
    if callable(embedding):
        return embedding().float()
    check_choice("embedding", embedding, EMBEDDINGS)
    return Periodic(d) if embedding == "periodic" else Fourier(d)
