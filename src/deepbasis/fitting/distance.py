"""`Distance`: predictions where there were no rows, of a fit with distance="widen".

Three rules, all nothing on familiar rows, or nearly so:

- A value that is unknown, a category never seen, a number far outside the range of its column or a gap where there was
  none, is drawn from the known ones: the prediction is averaged over some rows of the fit that lend theirs. Its
  variance is then that of a random known value, by the law of total variance.
- Beside the networks there may be a shallow kernel of some rows, if it predicts held-out rows about as well. Far from
  the rows it goes on smoothly, and its variance, with the correction of Eq. 4, returns to its prior one. With a weight
  w(x) that grows from 0 to 1 there, the prediction is the mixture of both, by its mean and variance:

      mean = (1 - w) mean_e + w m,    variance = (1 - w) variance_e + w v + w (1 - w) (mean_e - m)^2

- What members disagree about widens them where the nearest rows are far away (`fitting.slopes`).

The functions at the end take None for the distance of any other fit, which then predicts as its members do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from deepbasis.engine.checks import LARGEST
from deepbasis.engine.members import Ensemble
from deepbasis.errors import InputError, check_number
from deepbasis.fitting.plan import Architecture
from deepbasis.fitting.slopes import Slopes
from deepbasis.gp.likelihoods import NOISE_FLOOR
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.predictive import GaussianMixture, Predictive, as_mixture
from deepbasis.tables.preprocessing import GAP, Preprocessor

DONORS = 32
"""Rows of the fit that lend their values."""
KERNEL_ROWS, FEWEST_ROWS = 600, 30
"""The most rows to train a kernel beside the networks on, and the fewest, to train it or to judge it."""
AS_GOOD = 1.1
"""How many times the networks' CRPS on held-out rows the kernel's may be."""

_REACH = 2.0  # times the range of most values, beyond its ends: where a number becomes unknown
_ROUNDING = 1e-3  # of an encoded value
_MOST = (0.01, 0.99)  # of the values
_SOME = 6_000  # rows, to learn the ranges from
_AT_A_TIME = 2_048  # rows with unknown values
_SURELY = 0.05  # of a column's range outside it: there the kernel predicts alone
_USUAL = 0.95  # of familiar rows have a smaller variance of the kernel than the weight begins at
_SHARPNESS = 8.0


@dataclass(frozen=True)
class Kernel:
    """A shallow kernel beside the networks, in the units that the target is trained in."""

    model: DeepBasisGP
    architecture: Architecture
    usual: float
    """The variance of f that few familiar rows pass."""

    @cached_property
    def ensemble(self) -> Ensemble:
        return Ensemble((self.model,), dtype=self.model.mean.dtype)

    def predict(self, x: Float[Tensor, "b d"], outside: Float[Tensor, " b"]) -> tuple[Tensor, Tensor, Tensor]:
        """Its mean and variance, noise included, and its weight beside the networks."""
        found = self.ensemble.predict(x.cpu()).double()
        variance = found.variance
        return found.mean, variance, self.weight(variance - self.model.noise().item(), outside)

    @classmethod
    def of(cls, model: DeepBasisGP, architecture: Architecture, familiar: Predictive) -> Kernel:
        """With what it predicts for familiar rows that it has not seen."""
        usual = float((familiar.variance.double() - model.noise().item()).quantile(_USUAL))
        return cls(model, architecture, max(usual, NOISE_FLOOR))

    def weight(self, variance: Float[Tensor, " b"], outside: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
        """1 - (usual / variance)^8 where the kernel knows less than of familiar rows; 1 outside of their range."""
        doubt = 1.0 - (self.usual / variance.clamp_min(self.usual)) ** _SHARPNESS
        return torch.maximum(doubt, (outside / _SURELY).clamp_max(1.0))


@dataclass(frozen=True)
class Distance:
    donors: Float[Tensor, "k d"]
    """Encoded rows of the fit."""
    low: Float[Tensor, " d"]
    high: Float[Tensor, " d"]
    """Of encoded columns: the range of the rows of the fit."""
    least: Float[Tensor, " d"]
    most: Float[Tensor, " d"]
    """Beyond them a number is unknown."""
    kernel: Kernel | None = None
    slopes: Slopes | None = None
    """None of one member, or of rows all alike."""

    @classmethod
    def fit(cls, x: Float[Tensor, "n d"], preprocessor: Preprocessor, models: Sequence[DeepBasisGP]) -> Distance:
        """From encoded rows of the fit, some at random, and the members."""
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        some = x[order[:_SOME]].float()
        low, high = some.aminmax(dim=0)
        lower, upper = some.quantile(torch.tensor(_MOST), dim=0)
        least, most = torch.full_like(low, -LARGEST), torch.full_like(low, LARGEST)
        for column, kind in _blocks(preprocessor):
            if kind == "numeric":
                first = column.start
                reach = _REACH * (upper[first] - lower[first])
                least[first] = torch.minimum(low[first], lower[first] - reach) - _ROUNDING
                most[first] = torch.maximum(high[first], upper[first] + reach) + _ROUNDING
        return cls(some[:DONORS], low, high, least, most, slopes=Slopes.fit(models, x))

    def unknown(self, x: Float[Tensor, "b d"], preprocessor: Preprocessor) -> Bool[Tensor, "b d"]:
        """Which encoded values are not known: those of a number far outside, and all of a category without a column, or
        of a gap in a column that had none."""
        found = (x < self.least.to(x)) | (x > self.most.to(x))
        gaps = x == GAP
        any_gap = bool(gaps.any())
        for columns, kind in _blocks(preprocessor):
            if kind == "categorical":
                found[:, columns] = (x[:, columns] <= GAP).all(1, keepdim=True)
            elif any_gap:
                found[:, columns] |= gaps[:, columns.start, None]
        return found

    def predicted(self, ensemble: Ensemble, x: Float[Tensor, "b d"], preprocessor: Preprocessor) -> GaussianMixture:
        unknown = self.unknown(x, preprocessor)
        found = self._widened(ensemble, torch.where(unknown, self.donors[0].to(x), x))
        strange = unknown.any(1).nonzero()[:, 0]
        if not len(strange):
            return found
        means, variances = found.means.clone(), found.variances.clone()
        k = len(self.donors)
        more = (k + 1) / max(1, k - 1)  # k / (k - 1) for their mean, (1 + 1 / k) for another draw beside it
        for rows in strange.split(_AT_A_TIME):
            lent = torch.where(unknown[rows, None], self.donors.to(x), x[rows, None])  # [b, k, d]
            each = self._widened(ensemble, lent.flatten(0, 1))
            mean, variance = (part.unflatten(1, lent.shape[:2]) for part in (each.means, each.variances))
            means[:, rows], variances[:, rows] = mean.mean(2), variance.mean(2) + more * mean.var(2, correction=0)
        return replace(found, means=means, variances=variances)

    def mean(self, ensemble: Ensemble, x: Float[Tensor, "b d"], preprocessor: Preprocessor) -> Float[Tensor, " b"]:
        """That of `predicted`, without variances where there need be none."""
        if bool(self.unknown(x, preprocessor).any()):
            return self.predicted(ensemble, x, preprocessor).mean
        mean = ensemble.means(x).mean(0, dtype=torch.float64)
        if self.kernel is None:
            return mean
        smooth, _, w = self.kernel.predict(x, self.outside(x))
        return torch.lerp(mean, smooth, w)

    def _widened(self, ensemble: Ensemble, x: Float[Tensor, "b d"]) -> GaussianMixture:
        found = as_mixture(ensemble.predict(x).double())
        if self.slopes is not None:
            added = self.slopes.added(found.means[: ensemble.stack.size], x)  # a calibration repeats the means
            found = replace(found, variances=found.variances + added)
        if self.kernel is None:
            return found
        mean, variance, w = self.kernel.predict(x, self.outside(x))
        means = torch.lerp(found.means, mean.expand_as(found.means), w)
        apart = w * (1.0 - w) * (found.means - mean).square()
        variances = torch.lerp(found.variances, variance.expand_as(found.variances), w) + apart
        return replace(found, means=means, variances=variances)

    def outside(self, x: Float[Tensor, "b d"]) -> Float[Tensor, " b"]:
        """How far a row is outside of the range of a column at most, in units of that range."""
        low, high = self.low.to(x), self.high.to(x)
        beyond = torch.maximum(low - x, x - high) / (high - low).clamp_min(1e-6)
        return beyond.amax(1).clamp_min(0.0).double()

    # ---- the file ----------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        found = {name: getattr(self, name) for name in _TENSORS}
        if self.slopes is not None:
            found |= self.slopes.tensors()
        if self.kernel is not None:
            found |= {f"kernel.{name}": value for name, value in self.kernel.model.state_dict().items()}
        return found

    def state(self) -> dict[str, Any]:
        """What is no tensor."""
        if self.kernel is None:
            return {"kernel": None}
        return {"kernel": {"usual": self.kernel.usual, "architecture": asdict(self.kernel.architecture)}}

    @classmethod
    def restored(
        cls,
        found: Mapping[str, Tensor] | None,
        metadata: Mapping[str, Any],
        width: int,
        build: Callable[[Architecture, int, dict[str, Tensor]], DeepBasisGP],
    ) -> Distance | None:
        """From a file of a model of `width` encoded columns; what `contents` cannot have given is a `ValueError`."""
        state = metadata.get("distance")
        if found is None and state is None:
            return None
        if metadata["architecture"]["likelihood"] != "gaussian":
            raise ValueError("it has a distance, and its likelihood is not Gaussian")
        if found is None or not isinstance(state, Mapping) or state.keys() != {"kernel"}:
            raise ValueError("its distance has other parts")
        own: dict[str, Any] = {name: value for name, value in found.items() if "." not in name}
        if own.keys() != set(_TENSORS):
            raise ValueError("its distance has other parts")
        rows = own["donors"].shape[0]
        for name, values in own.items():
            shape = (rows, width) if name == "donors" else (width,)
            if values.dtype != torch.float32 or values.shape != shape or not 0 < rows <= DONORS:
                raise ValueError(f"the {name} of its distance has another shape or type")
            if not bool((values.abs() <= LARGEST).all()):
                raise ValueError(f"the {name} of its distance is not finite, or beyond {LARGEST:g}")
        if bool((own["low"] > own["high"]).any()) or bool((own["least"] > own["most"]).any()):
            raise ValueError("the ranges of its distance are not in order")
        slopes = {name: value for name, value in found.items() if name.startswith("slopes.")}
        parameters = {name.removeprefix("kernel."): found[name] for name in found.keys() - own.keys() - slopes.keys()}
        own["slopes"] = Slopes.from_tensors(slopes, width, LARGEST)
        if state["kernel"] is None:
            if parameters:
                raise ValueError("its distance has a kernel that its metadata do not mention")
            return cls(**own)
        usual = check_number("usual", state["kernel"]["usual"], above=0.0)
        architecture = Architecture(**state["kernel"]["architecture"])
        if not architecture.is_shallow or architecture.likelihood != "gaussian" or architecture.trend != "none":
            raise ValueError("the kernel of its distance is not a shallow one")
        return cls(**own, kernel=Kernel(build(architecture, width, parameters), architecture, usual))


_TENSORS = ("donors", "low", "high", "least", "most")


def _blocks(preprocessor: Preprocessor) -> list[tuple[slice, str]]:
    """The encoded columns of each input column that varies, and its kind."""
    found, start = [], 0
    for encoding in preprocessor.encodings:
        if encoding.varies:
            found.append((slice(start, start + encoding.width), encoding.kind))
        start += encoding.width
    return found


def predict(distance: Distance | None, ensemble: Ensemble, x: Tensor, preprocessor: Preprocessor) -> Predictive:
    """What an ensemble predicts for encoded rows, in float64."""
    return ensemble.predict(x).double() if distance is None else distance.predicted(ensemble, x, preprocessor)


def mean(distance: Distance | None, ensemble: Ensemble, x: Tensor, preprocessor: Preprocessor) -> Tensor:
    """Its mean."""
    if distance is None:
        return ensemble.means(x).mean(0, dtype=torch.float64)
    return distance.mean(ensemble, x, preprocessor)


def apart(distance: Distance | None, means: Float[Tensor, "e n"], x: Tensor) -> Float[Tensor, "e n"]:
    """How far from their mean the means of members are, so that the variance between them has what slopes add to it."""
    away = means - means.mean(0)
    if distance is None or distance.slopes is None:
        return away
    between = away.square().mean(0).clamp_min(torch.finfo(away.dtype).tiny)
    return away * (1.0 + distance.slopes.added(means, x) / between).sqrt()


def stretched(
    drawn: Tensor, of_member: list[int], models: Sequence[DeepBasisGP], distance: Distance | None, x: Tensor
) -> Tensor:
    """Draws [rows, n] of the functions of members, with their means as far apart as `apart` has them."""
    if distance is None or distance.slopes is None:
        return drawn
    means = torch.stack([model.mean_at(x) for model in models])
    return drawn + (apart(distance, means, x) - (means - means.mean(0)))[of_member].mT


def contents(distance: Distance | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and metadata of a model's file: none for None."""
    if distance is None:
        return {}, {}
    tensors = {f"distance/0/{name}": value for name, value in distance.tensors().items()}
    return tensors, {"distance": distance.state()}


def check_none(distance: Distance | None, what: str) -> None:
    """For what knows the members alone."""
    if distance is not None:
        raise InputError(f"{what} is not for a model that was fitted with distance='widen': fit without it")
