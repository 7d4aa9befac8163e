"""`Fitted`: the result of a fit. It is frozen; it predicts, evaluates and saves; `saved` reads its file."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from deepbasis import __version__, storage
from deepbasis.engine.members import Ensemble
from deepbasis.errors import InputError, NumericalError, check_positive_int
from deepbasis.fitting import distance as far
from deepbasis.fitting.apart import Apart
from deepbasis.fitting.diagnosis import Diagnosis
from deepbasis.fitting.distribution import PredictiveDistribution, generator, scores
from deepbasis.fitting.kinds import WARP
from deepbasis.fitting.novelty import Novelty, Watch
from deepbasis.fitting.outputs import distribution_of, output_noises
from deepbasis.fitting.plan import Architecture, Plan
from deepbasis.fitting.spec import Spec
from deepbasis.gp import learning
from deepbasis.gp.calibration import Calibration
from deepbasis.gp.classes import Classes
from deepbasis.gp.conformal import Conformal
from deepbasis.gp.discrete import Discrete
from deepbasis.gp.exact import Statistics
from deepbasis.gp.likelihoods import GaussianLikelihood
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.outputs import Outputs, OutputsCalibration
from deepbasis.gp.predictive import GaussianMixture, Predictive
from deepbasis.gp.rates import RATE
from deepbasis.gp.warped import Warped
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.scaler import Several, TargetScaler
from deepbasis.tables.targets import check_bounds, check_weight

KIND = "model"

ROWS_AT_A_TIME = 65_536


def _versions() -> dict[str, str]:
    return {"deepbasis": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}


@dataclass(frozen=True)
class Fitted:
    spec: Spec
    plan: Plan
    chosen: int
    """Which of the plan's candidates won."""
    architecture: Architecture
    """The candidate's, with the actual rank of its members."""
    preprocessor: Preprocessor
    target: TargetScaler
    models: tuple[DeepBasisGP, ...]
    calibration: Calibration | OutputsCalibration | None
    novelty: Novelty
    alpha: float
    beta: float
    history: tuple[dict[str, NDArray[np.float64]], ...]
    """For each member "train_loss", "validation" and "noise" (standardised units), one number per epoch."""
    validation: dict[str, float]
    """Metrics of the held-out rows, in the target's units."""
    rows: int
    """Rows of the table, held-out rows included."""
    device: torch.device
    diagnosis: Diagnosis | None = None
    conformal: Conformal | None = None
    """From rows that nothing else of the fit has seen, if it was asked for."""
    apart: Apart | None = None
    """These rows."""
    folds: tuple[Fitted, ...] = ()
    """Of a cross-conformal promise: a fit without each part of the rows in turn; its promise is from that part."""
    statistics: tuple[Statistics, ...] = ()
    """Sums over the rows of each member, from which `update` goes on; none if it cannot."""
    distance: far.Distance | None = None
    """What is predicted where there were no rows, if it was asked for."""
    log_likelihoods: tuple[float, ...] = ()
    """log p(y) of the rows of each member, in the target's units; none if it was not trained exactly."""
    interrupted: bool = False
    warnings: tuple[str, ...] = ()
    target_name: str | None = None
    """The column or the series that the target was; an array has no name."""
    versions: Mapping[str, str] = field(default_factory=_versions)
    """What it was fitted with."""

    def target_column(self, given: str | None = None) -> str:
        """The column that is named, or that of the fit."""
        if given is None and self.target_name is None:
            raise InputError("target must be named: the model was fitted to an array, which has no name")
        return str(self.target_name if given is None else given)

    def target_columns(self, given: str | None) -> tuple[str, ...]:
        """The same of a model of several outputs, which cannot be named."""
        if self.target.outputs and given is not None:
            raise InputError("target is for a model of one: the outputs of this one have the names of the fit")
        return self.target.outputs or (self.target_column(given),)

    def check_target_name(self, where: str, name: Any) -> None:
        """Refuse the targets of another column; an array, or a model of one, has no name."""
        if isinstance(name, str) and name and self.target_name and name != self.target_name:
            raise InputError(
                f"{where} is {name!r}, and the model predicts {self.target_name!r}: if these are its targets, in the "
                "same units, give them that name; otherwise fit a model of their own"
            )

    def exposure_columns(self, given: str | None) -> list[str]:
        """The column of an exposure, which is for a model of rates, as a list."""
        if given is not None and self.target.name != RATE:
            raise InputError("exposure is for counts: fit with likelihood='poisson' or 'negative-binomial'")
        return [] if given is None else [given]

    def scored_exposure(self, given: str | None) -> str | None:
        """The column of what counts to be scored were counted over: the one that is named, or that of the fit."""
        found = self.target.exposure if given is None else given
        self.target.check_exposed(bool(self.exposure_columns(found)))
        return found

    # ---- predictions -------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> torch.dtype:
        """Of encoded rows, and of the members' parameters."""
        return next(self.models[0].parameters()).dtype

    @cached_property
    def ensemble(self) -> Ensemble:
        dtype = torch.float64 if self.architecture.is_shallow else self.dtype  # K_ZZ^(-1/2) takes digits away
        return Ensemble(self.models, calibration=self.calibration, device=self.device, dtype=dtype)

    @property
    def noise(self) -> NDArray[np.float64]:
        """Noise variance of each member before calibration, in squared units of the target, or of its warp. Of several
        outputs it is [members, m]."""
        if isinstance(self.target.warp, Several):
            return output_noises(self.target.warp, self.models)
        return np.array([model.noise().item() for model in self.models]) * self.target.scale**2

    def predict(self, X: Any, rows: int = ROWS_AT_A_TIME) -> PredictiveDistribution:
        """The distribution of the target for every row of a table; `rows` of them are encoded at a time."""
        watch = Watch(self.novelty, self.preprocessor)
        found = distribution_of(self.target, self.predict_encoded(watch.over(self.chunks(X, rows))), self.device)
        watch.warn()
        return found

    def look(self, X: Any) -> int:
        """The number of rows of a table; as `predict` does, it warns where many are unlike those of the fit."""
        watch = Watch(self.novelty, self.preprocessor)
        rows = sum(len(x) for x in watch.over(self.chunks(X)))
        watch.warn()
        return rows

    def predict_encoded(self, chunks: Iterable[Tensor]) -> Predictive:
        """The same of rows that the preprocessor has encoded, one chunk after another: only one is held at a time."""
        first, *others = (far.predict(self.distance, self.ensemble, x, self.preprocessor) for x in chunks)
        predicted = first.followed_by(others) if others else first
        found = self.target.distribution(predicted)
        unwarped = found.base if isinstance(found, Warped | Discrete) else found
        if not is_finite(predicted if isinstance(predicted, Outputs) else unwarped):
            raise NumericalError("some predictions are not finite: parameters of the model are too large; fit it again")
        return found

    def mean(self, X: Any) -> NDArray[np.float64]:
        """That of `predict(X)`. Where it is the mean of f, no variance is computed."""
        kind = type(self.models[0].likelihood)
        gaussian = (GaussianLikelihood.predictive, GaussianLikelihood.distribution)
        if self.target.warp is None and (kind.predictive, kind.distribution) == gaussian:  # of a subclass, perhaps
            watch = Watch(self.novelty, self.preprocessor)
            chunks = watch.over(self.chunks(X))
            means = [far.mean(self.distance, self.ensemble, x, self.preprocessor) for x in chunks]
            found = self.target.inverse(torch.cat(means))
            if bool(found.isfinite().all()):
                watch.warn()
                return found.numpy()
        return self.predict(X).mean  # or the error that says why there is none

    def p_values(self, X: Any) -> NDArray[np.float64]:
        """Of "a row like those of the fit", for every row of a table."""
        return torch.cat([self.novelty.p_values(x) for x in self.chunks(X)]).numpy()

    def chunks(self, X: Any, rows: int = ROWS_AT_A_TIME) -> Iterator[Tensor]:
        for part in self.preprocessor.chunks(X, rows):
            yield torch.from_numpy(part).to(self.dtype)

    def evaluate(
        self,
        X: Any,
        y: ArrayLike,
        weight: Any = None,
        lower: Any = None,
        upper: Any = None,
        exposure: Any = None,
    ) -> dict[str, float]:
        self.target.check_exposed(exposure is not None)
        target = self.target.check(y)
        bounds = check_bounds(target, lower, upper)
        found = self.predict(X)
        predicted = (found if exposure is None else found.exposed(exposure)).tensors
        weights = None if weight is None else check_weight(weight, len(target))
        return scores(predicted, target, bounds, weights, self.target.outputs)

    def sample_functions(self, n: int, random_state: Any = None) -> Callable[[Any], NDArray[np.float64]]:
        """Draws of the noise-free function: X -> [rows, n]."""
        check_positive_int("n", n)
        if self.target.outputs:
            raise InputError("sample_functions is for one target, and this model has several outputs: use sample_y")
        draws_from = generator(random_state)
        models = self.models
        of_member = torch.randint(len(models), (n,), generator=draws_from).tolist()
        draws = [models[k].sample_functions(1, generator=draws_from) for k in of_member]
        farther = 1.0 if self.calibration is None else math.sqrt(self.calibration.mean_scale)

        @torch.no_grad()
        def drawn(x: Tensor) -> Tensor:
            means = {k: models[k].mean_at(x) for k in set(of_member)}
            each = zip(of_member, draws, strict=True)
            found = torch.stack([torch.lerp(means[k], draw(x)[0], farther) for k, draw in each], 1)
            return far.stretched(found, of_member, models, self.distance, x)

        def functions(X: Any) -> NDArray[np.float64]:
            return self.target.inverse(torch.cat([drawn(x) for x in self.chunks(X)]).double()).numpy()

        return functions

    # ---- the file ----------------------------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Write everything needed to predict to one .safetensors file, atomically."""
        storage.save(path, KIND, *self._contents())

    @cached_property
    def fingerprint(self) -> str:
        """Differs between models that predict differently."""
        tensors, metadata = self._contents()
        parts = ("architecture", "preprocessing", "target", "calibration", "conformal", "distance", "folds")
        named = {name: metadata[name] for name in parts if name in metadata}
        return storage.digest({k: v for k, v in tensors.items() if "history/" not in k}, named)

    def _contents(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, beyond = far.contents(self.distance)
        for k, model in enumerate(self.models):
            tensors |= {f"member/{k}/{name}": value for name, value in model.state_dict().items()}
            tensors |= {f"history/{k}/{name}": torch.from_numpy(v) for name, v in self.history[k].items()}
        for part, held in (("novelty", self.novelty), ("conformal", self.conformal), ("apart", self.apart)):
            tensors |= {} if held is None else {f"{part}/0/{name}": value for name, value in held.tensors().items()}
        for k, sums in enumerate(self.statistics):
            tensors |= {f"learned/{k}/{name}": value for name, value in learning.packed(sums).items()}
        without = [fold._contents() for fold in self.folds]
        for k, (parts, _) in enumerate(without):
            tensors |= {f"fold/{k}/{name}": value for name, value in parts.items()}
        spec = dict(vars(self.spec))
        if not isinstance(spec["random_state"], int | None):
            spec["random_state"] = None  # a generator's state is not part of the model
        if not isinstance(spec["target"], str):
            spec["target"] = WARP  # a transformer was tabulated
        return tensors, beyond | {
            "versions": dict(self.versions),
            "target_name": self.target_name,
            "spec": spec,
            "plan": self.plan.to_json(),
            "chosen": self.chosen,
            "architecture": asdict(self.architecture),
            "members": len(self.models),
            "preprocessing": self.preprocessor.state(),
            "target": self.target.state(),
            "calibration": None if self.calibration is None else asdict(self.calibration),
            "conformal": None if self.conformal is None else self.conformal.groups,
            "folds": [described for _, described in without],
            "diagnosis": None if self.diagnosis is None else asdict(self.diagnosis),
            "alpha": self.alpha,
            "beta": self.beta,
            "validation": self.validation,
            "rows": self.rows,
            "log_likelihoods": self.log_likelihoods,
        }


def is_finite(predicted: Predictive) -> bool:
    if isinstance(predicted, GaussianMixture | Classes):
        return all(map(_all_finite, (predicted.means, predicted.variances)))
    return all(map(_all_finite, (predicted.mean, predicted.variance)))


def _all_finite(numbers: Tensor) -> bool:
    """A sum takes a tenth of the time that a look at each does; it may overflow, and then each is looked at."""
    return bool(numbers.sum().isfinite()) or bool(numbers.isfinite().all())
