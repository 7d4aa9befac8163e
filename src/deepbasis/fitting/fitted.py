"""`Fitted`: the result of a fit. It is frozen; it predicts, evaluates, saves and loads."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from deepbasis import __version__, storage
from deepbasis.engine.checks import read_history
from deepbasis.engine.members import Ensemble
from deepbasis.errors import FileFormatError, InputError, NumericalError, check_number, check_positive_int
from deepbasis.fitting import distance as far
from deepbasis.fitting.apart import Apart
from deepbasis.fitting.diagnosis import Diagnosis
from deepbasis.fitting.distribution import PredictiveDistribution, generator, scores
from deepbasis.fitting.kinds import WARP
from deepbasis.fitting.novelty import Novelty, Watch
from deepbasis.fitting.outputs import distribution_of, output_noises
from deepbasis.fitting.plan import Architecture, Plan
from deepbasis.fitting.saved import is_finite, member_model, read_name, read_texts
from deepbasis.fitting.spec import Spec
from deepbasis.gp import learning
from deepbasis.gp.calibration import Calibration
from deepbasis.gp.conformal import Conformal
from deepbasis.gp.counts import RATE
from deepbasis.gp.discrete import Discrete
from deepbasis.gp.exact import Statistics
from deepbasis.gp.likelihoods import GaussianLikelihood
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.outputs import Outputs, OutputsCalibration
from deepbasis.gp.predictive import Predictive
from deepbasis.gp.warped import Warped
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.scaler import Several, TargetScaler
from deepbasis.tables.targets import check_bounds, check_weight

KIND = "model"
MOST_FOLDS = 64

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
    """Of a cross-conformal promise: fits without one part of the rows each, which that part is the promise of."""
    statistics: tuple[Statistics, ...] = ()
    """Sums over the rows of each member, from which `update` goes on; none if it cannot."""
    distance: far.Distance | None = None
    log_likelihoods: tuple[float, ...] = ()
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

    def exposure_columns(self, given: str | None) -> list[str]:
        """The column of an exposure, which is for a model of rates, as a list."""
        if given is not None and self.target.name != RATE:
            raise InputError("exposure is for counts: fit with likelihood='poisson' or 'negative-binomial'")
        return [] if given is None else [given]

    # ---- predictions -------------------------------------------------------------------------------------------

    @cached_property
    def ensemble(self) -> Ensemble:
        dtype = next(self.models[0].parameters()).dtype
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
            yield torch.from_numpy(part).to(self.ensemble.stack.dtype)

    def evaluate(
        self,
        X: Any,
        y: ArrayLike,
        weight: Any = None,
        lower: Any = None,
        upper: Any = None,
        exposure: Any = None,
    ) -> dict[str, float]:
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
            return far.stretched(found, of_member, models, self.calibration, x)

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

    @classmethod
    def load(cls, path: str | PathLike[str], device: torch.device) -> Fitted:
        """What `save` wrote. No code of the file is run."""
        tensors, metadata = storage.load(path, KIND)
        try:
            return _restored(tensors, metadata, device)
        except (ArithmeticError, LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise FileFormatError(f"{path} does not hold a model that this release understands: {error}") from error


def _restored(tensors: dict[str, Tensor], metadata: dict[str, Any], device: torch.device) -> Fitted:
    """Everything is checked before memory of its size is allocated."""
    spec, plan = Spec(**metadata["spec"]), Plan.from_json(metadata["plan"])
    architecture, chosen = Architecture(**metadata["architecture"]), metadata["chosen"]
    if type(chosen) is not int or not 0 <= chosen < len(plan.candidates):
        raise ValueError(f"it has {len(plan.candidates)} candidates, and says that {chosen!r} was chosen")
    planned = plan.candidates[chosen].architecture
    if replace(architecture, rank=planned.rank) != planned or not 0 < architecture.rank <= planned.rank:
        raise ValueError("its architecture is not the one that was planned")
    grouped = storage.grouped(tensors)
    others = ("novelty", "conformal", "apart", "distance")
    novelty, promise, apart, beyond = (grouped.pop(f"{part}/0", None) for part in others)
    preprocessor = Preprocessor.from_state(metadata["preprocessing"])
    folds = _folds(grouped, metadata["folds"], preprocessor, device)
    members = check_positive_int("members", metadata["members"])
    everyone = range(min(members, len(grouped)))
    parts = ("member", "history", *(["learned"] if "learned/0" in grouped else []))
    if len(grouped) != len(parts) * members or grouped.keys() != {f"{part}/{k}" for part in parts for k in everyone}:
        raise ValueError(f"it says that it has {members} members, and has others")
    target = TargetScaler.from_state(metadata["target"])
    if target.classes != architecture.classes:
        raise ValueError(f"its target has {target.classes} classes, its members {architecture.classes}")
    if len(target.outputs) != architecture.outputs:
        raise ValueError(f"its target has {len(target.outputs)} outputs, its members {architecture.outputs}")
    calibration = (OutputsCalibration if target.outputs else Calibration).from_state(metadata["calibration"])
    models = tuple(member_model(architecture, preprocessor.width, grouped[f"member/{k}"]) for k in everyone)
    conformal = Conformal.restored(promise, metadata["conformal"])
    return Fitted(
        spec=spec,
        plan=plan,
        chosen=chosen,
        architecture=architecture,
        preprocessor=preprocessor,
        target=target,
        models=models,
        calibration=calibration,
        novelty=Novelty.from_tensors(novelty or {}, preprocessor.width),
        alpha=check_number("alpha", metadata["alpha"], at_least=0.0),
        beta=check_number("beta", metadata["beta"], at_least=0.0),
        history=tuple(read_history(grouped[f"history/{k}"]) for k in everyone),
        validation={str(k): check_number(k, v) for k, v in metadata["validation"].items()},
        rows=check_positive_int("rows", metadata["rows"]),
        device=device,
        diagnosis=Diagnosis.from_state(metadata["diagnosis"]),
        conformal=conformal,
        apart=Apart.restored(apart, preprocessor.width, conformal),
        folds=folds,
        statistics=tuple(
            learning.unpacked(grouped[f"learned/{k}"], models[k].posterior.rank, architecture.outputs)
            for k in everyone
            if len(parts) > 2
        ),
        distance=far.Distance.restored(beyond, metadata, preprocessor.width, member_model),
        log_likelihoods=tuple(check_number("log_likelihoods", one) for one in metadata["log_likelihoods"]),
        target_name=read_name(metadata["target_name"]),
        versions=read_texts(metadata["versions"]),
    )


def _folds(
    grouped: dict[str, dict[str, Tensor]], described: Any, whole: Preprocessor, device: torch.device
) -> tuple[Fitted, ...]:
    """The fits without a part of the rows each; their tensors are taken out."""
    if type(described) is not list or len(described) > MOST_FOLDS:
        raise ValueError("its fits without some rows are no list, or too many")
    if any(one["folds"] for one in described):
        raise ValueError("its fits without some rows have others")
    found = tuple(_restored(grouped.pop(f"fold/{k}"), one, device) for k, one in enumerate(described))
    if any(one.conformal is None or not one.preprocessor.reads_as(whole) for one in found) or len(found) == 1:
        raise ValueError("its fits without some rows promise nothing, or read other columns")
    return found
