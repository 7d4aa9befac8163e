"""`build`: a model by the name of its method."""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy

import torch
from torch import nn

from deepbasis.errors import InputError, check_number, check_positive_int
from deepbasis.gp.backbone import Identity, ResNet
from deepbasis.gp.expansion import JITTER
from deepbasis.gp.likelihoods import Likelihood
from deepbasis.gp.methods import METHODS
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.posterior import PointWeights, WeightPosterior
from deepbasis.registry import EMBEDDINGS, EXPANSIONS, LIKELIHOODS


def build(
    method: str,
    d: int,
    *,
    rank: int = 128,
    width: int = 64,
    blocks: int = 2,
    inner: int | None = None,
    embedding: str | nn.Module | Callable[[], nn.Module] | None = None,
    likelihood: str | Callable[..., Likelihood] = "gaussian",
    noise: float = 1e-2,
    slope: Sequence[float] = (),
    jitter: float = JITTER,
    autocast: torch.dtype | None = None,
    seed: int | None = None,
) -> DeepBasisGP:
    """A model of `method` for inputs of `d` columns, with the paper's sizes and initialisation.

    With a `seed` its parameters depend on that seed alone, and torch's global random state is left as it was. They are
    float32; `.double()` gives the same start in float64.

    `inner` is the width inside a block, by default `width`. `embedding` comes before the backbone: None or "none";
    another name that is registered; a ready module, of which the model has a copy
    (`PiecewiseLinear(quantile_edges(x, 16))`); or a function that makes one, with parameters from the seed
    (`lambda: Periodic(d, 16, scale=0.5)`).

    `likelihood` is the name of one, or a function that makes one from its starting `noise`.

    `slope`, a number for each column, is that of the prior mean, which is a constant without it. `jitter` is that of a
    kernel with inducing points.
    """
    row = METHODS[METHODS.check("method", method)]
    rank = check_positive_int("rank", rank)
    check_number("noise", noise, above=0.0)
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64):
        raise InputError(f"seed must be None or an integer in [0, 2^64), got {seed!r}")
    if len(slope) not in (0, d) or not all(map(math.isfinite, slope)):
        raise InputError(f"slope must have a finite number for each of {d} columns, got {list(slope)[:8]}")
    make_likelihood = likelihood if callable(likelihood) else LIKELIHOODS[LIKELIHOODS.check("likelihood", likelihood)]
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
        expansion = EXPANSIONS[row.expansion](backbone.width, rank, jitter=jitter)
        # NOTE[DIFF]: the noise of a DNN is not known before its residuals are: nothing is predicted with a start.
        observed = make_likelihood(noise=None if row.point_weights else noise)
        size = check_positive_int("the expansion's rank", getattr(expansion, "rank", None))
        latents = getattr(observed, "latents", 0)
        if row.point_weights and latents:
            raise InputError(f"method {method!r} predicts one number: use another")
        own = getattr(observed, "own_covariances", False)
        posterior = PointWeights(size) if row.point_weights else WeightPosterior(size, latents, own)
        return DeepBasisGP(backbone, expansion, posterior, observed, line, corrected=row.corrected)


def _embedding(embedding: str | nn.Module | Callable[[], nn.Module] | None, d: int) -> nn.Module | None:
    if isinstance(embedding, nn.Module):
        return deepcopy(embedding).float()  # no two models share parameters
    if callable(embedding):
        return embedding().float()
    make = None if embedding is None else EMBEDDINGS[EMBEDDINGS.check("embedding", embedding)]
    return None if make is None else make(d)
