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
from deepbasis.engine.checks import LARGEST, read_history
from deepbasis.engine.members import Ensemble, Member
from deepbasis.errors import FileFormatError, InputError, NumericalError, check_number, check_positive_int
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
    statistics: tuple[Statistics, ...] = ()
    """Sums over the rows of each member, from which `update` goes on; none if it cannot."""
    distance: far.Distance | None = None
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
        if not _is_finite(predicted if isinstance(predicted, Outputs) else unwarped):
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

    def guarantee(self) -> Conformal:
        if self.conformal is None:
            raise InputError("guarantee needs rows that the fit has not seen: fit with calibrate='conformal'")
        return self.conformal

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
        if len(predicted) != len(target):
            raise InputError(f"X has {len(predicted)} rows but y has {len(target)}: they must agree")
        weights = None if weight is None else check_weight(weight, len(target))
        return scores(predicted, target, bounds, weights, self.target.outputs)

    def sample_functions(self, n: int, random_state: Any = None) -> Callable[[Any], NDArray[np.float64]]:
        """Draws of the noise-free function: X -> [rows, n]."""
        check_positive_int("n", n)
        if self.target.outputs:
            raise InputError("sample_functions is for one target, and this model has several outputs: take sample_y")
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
        parts = ("architecture", "preprocessing", "target", "calibration", "conformal", "distance")
        named = {name: metadata[name] for name in parts if name in metadata}
        return storage.digest({k: v for k, v in tensors.items() if not k.startswith("history/")}, named)

    def _contents(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, beyond = far.contents(self.distance)
        for k, model in enumerate(self.models):
            tensors |= {f"member/{k}/{name}": value for name, value in model.state_dict().items()}
            tensors |= {f"history/{k}/{name}": torch.from_numpy(v) for name, v in self.history[k].items()}
        tensors |= {f"novelty/0/{name}": value for name, value in self.novelty.tensors().items()}
        if self.conformal is not None:
            tensors |= {f"conformal/0/{name}": value for name, value in self.conformal.tensors().items()}
        if self.apart is not None:
            tensors |= {f"apart/0/{name}": value for name, value in self.apart.tensors().items()}
        for k, sums in enumerate(self.statistics):
            tensors |= {f"learned/{k}/{name}": value for name, value in learning.packed(sums).items()}
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
            "diagnosis": None if self.diagnosis is None else asdict(self.diagnosis),
            "alpha": self.alpha,
            "beta": self.beta,
            "validation": self.validation,
            "rows": self.rows,
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
    models = tuple(_model(architecture, preprocessor.width, grouped[f"member/{k}"]) for k in everyone)
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
        statistics=tuple(
            learning.unpacked(grouped[f"learned/{k}"], models[k].posterior.rank) for k in everyone if len(parts) > 2
        ),
        distance=far.Distance.restored(beyond, metadata, preprocessor.width, _model),
        target_name=_name(metadata["target_name"]),
        versions=_texts(metadata["versions"]),
    )


def _model(architecture: Architecture, columns: int, state: dict[str, Tensor]) -> DeepBasisGP:
    """A member's model from its parameters, whose shapes are checked against a model on the meta device."""
    blocks = {name.split(".")[2] for name in state if name.startswith("backbone.blocks.")}
    if not architecture.is_shallow and len(blocks) != architecture.blocks:
        raise ValueError(f"{architecture.blocks} blocks were to be there, {len(blocks)} are")
    with torch.device("meta"):
        slope = () if architecture.trend == "none" else (0.0,) * columns
        model = architecture.build(columns, Member(slope=slope))
    if (dtype := state["mean"].dtype) not in (torch.float32, torch.float64):
        raise ValueError(f"its parameters are {dtype}")
    expected = {name: (value.shape, dtype) for name, value in model.state_dict().items()}
    if expected != {name: (value.shape, value.dtype) for name, value in state.items()}:
        raise ValueError("its parameters are not those of its method and sizes")
    if not all(bool((value.abs() <= LARGEST).all()) for value in state.values()):
        raise ValueError(f"it has parameters that are not finite, or beyond {LARGEST:g}")
    model.load_state_dict(state, assign=True)
    with torch.no_grad():  # logarithms among them are too large long before; predictions may bound the noise
        some = torch.tensor([[0.0], [1.0], [-1.0]], dtype=dtype).expand(3, columns)
        if not (_is_finite(model.predict(some)) and bool(model.noise().isfinite().all())):
            raise ValueError("its predictions, or its noise, are not finite")
    return model


def _is_finite(predicted: Predictive) -> bool:
    if isinstance(predicted, GaussianMixture | Classes):
        return all(bool(numbers.isfinite().all()) for numbers in (predicted.means, predicted.variances))
    return bool((predicted.mean.isfinite() & predicted.variance.isfinite()).all())


def _name(found: Any) -> str | None:
    if not isinstance(found, str | None):
        raise ValueError(f"the name of its target is {found!r}")
    return found


def _texts(found: Any) -> dict[str, str]:
    if not isinstance(found, Mapping) or not all(isinstance(text, str) for text in found.values()):
        raise ValueError("its versions are not texts")
    return dict(found)
