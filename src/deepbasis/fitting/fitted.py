"""`Fitted`: the result of a fit. It is frozen; it predicts, evaluates, saves and loads."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from deepbasis import __version__, storage
from deepbasis.engine.checkpoint import HISTORY
from deepbasis.engine.members import Ensemble, Member
from deepbasis.errors import FileFormatError, InputError, check_number, check_positive_int
from deepbasis.fitting.distribution import PredictiveDistribution, generator
from deepbasis.fitting.plan import Architecture, Plan
from deepbasis.fitting.spec import Spec
from deepbasis.gp import metrics
from deepbasis.gp.calibration import Calibration
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.predictive import Predictive
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.targets import TargetScaler, check_target

KIND = "regressor"

ROWS_AT_A_TIME = 65_536


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
    calibration: Calibration | None
    alpha: float
    beta: float
    history: tuple[dict[str, NDArray[np.float64]], ...]
    """For each member "train_loss", "validation" and "noise" (standardised units), one number per epoch."""
    validation: dict[str, float]
    """Metrics of the held-out rows, in the target's units."""
    rows: int
    """Rows of the table, held-out rows included."""
    device: torch.device
    interrupted: bool = False
    warnings: tuple[str, ...] = ()

    # ---- predictions -------------------------------------------------------------------------------------------

    @cached_property
    def ensemble(self) -> Ensemble:
        dtype = next(self.models[0].parameters()).dtype
        return Ensemble(self.models, calibration=self.calibration, device=self.device, dtype=dtype)

    @property
    def noise(self) -> NDArray[np.float64]:
        """Noise variance of each member, in squared units of the target, before calibration."""
        return np.array([model.noise().item() for model in self.models]) * self.target.scale**2

    def predict(self, X: Any, rows: int = ROWS_AT_A_TIME) -> PredictiveDistribution:
        """The distribution of the target for every row of a table; `rows` of them are encoded at a time."""
        return PredictiveDistribution(self.predict_encoded(self._chunks(X, rows)))

    def predict_encoded(self, chunks: Iterable[Tensor]) -> Predictive:
        """The same of rows that the preprocessor has encoded, one chunk after another: only one is held at a time."""
        first, *others = (self.ensemble.predict(x).double() for x in chunks)
        predicted = first.followed_by(others) if others else first
        return predicted.affine(self.target.scale, self.target.mean)

    def _chunks(self, X: Any, rows: int = ROWS_AT_A_TIME) -> Iterator[Tensor]:
        for part in self.preprocessor.chunks(X, rows):
            yield torch.from_numpy(part).to(self.ensemble.stack.dtype)

    def evaluate(self, X: Any, y: ArrayLike) -> dict[str, float]:
        target = check_target(y)
        predicted = self.predict(X).tensors
        if len(predicted.mean) != len(target):
            raise InputError(f"X has {len(predicted.mean)} rows but y has {len(target)}: they must agree")
        return metrics.evaluate(predicted, torch.from_numpy(target))

    def sample_functions(self, n: int, random_state: Any = None) -> Callable[[Any], NDArray[np.float64]]:
        """Draws of the noise-free function: X -> [rows, n]."""
        check_positive_int("n", n)
        draws_from = generator(random_state)
        models = self.models
        of_member = torch.randint(len(models), (n,), generator=draws_from).tolist()
        draws = [models[k].sample_functions(1, generator=draws_from) for k in of_member]
        farther = 1.0 if self.calibration is None else math.sqrt(self.calibration.mean_scale)

        @torch.no_grad()
        def drawn(x: Tensor) -> Tensor:
            means = {k: models[k](x).mean for k in set(of_member)}
            return torch.stack(
                [torch.lerp(means[k], draw(x)[0], farther) for k, draw in zip(of_member, draws, strict=True)], 1
            )

        def functions(X: Any) -> NDArray[np.float64]:
            rows = torch.cat([drawn(x) for x in self._chunks(X)]).double().numpy()
            return rows * self.target.scale + self.target.mean

        return functions

    # ---- the file ----------------------------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Write everything needed to predict to one .safetensors file, atomically."""
        storage.save(path, KIND, *self._contents())

    @cached_property
    def fingerprint(self) -> str:
        """Differs between models that predict differently."""
        tensors, metadata = self._contents()
        named = {name: metadata[name] for name in ("architecture", "preprocessing", "target", "calibration")}
        digest = hashlib.sha256(json.dumps(named, sort_keys=True).encode())
        for name in sorted(tensors):
            if not name.startswith("history/"):
                digest.update(name.encode())
                digest.update(tensors[name].detach().cpu().numpy().tobytes())
        return digest.hexdigest()

    def _contents(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        arrays, preprocessing = self.preprocessor.state()
        tensors = {f"preprocessor/{name}": torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}
        for k, model in enumerate(self.models):
            tensors |= {f"member/{k}/{name}": value for name, value in model.state_dict().items()}
            tensors |= {f"history/{k}/{name}": torch.from_numpy(v) for name, v in self.history[k].items()}
        spec = dict(vars(self.spec))
        if not isinstance(spec["random_state"], int | None):
            spec["random_state"] = None  # a generator's state is not part of the model
        return tensors, {
            "version": __version__,
            "spec": spec,
            "plan": self.plan.to_json(),
            "chosen": self.chosen,
            "architecture": asdict(self.architecture),
            "members": len(self.models),
            "preprocessing": preprocessing,
            "target": self.target.state(),
            "calibration": None if self.calibration is None else asdict(self.calibration),
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
        except (KeyError, TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
            raise FileFormatError(f"{path} does not hold a regressor that this release understands: {error}") from error

    def on(self, device: torch.device) -> Fitted:
        return replace(self, device=device)


def _restored(tensors: dict[str, Tensor], metadata: dict[str, Any], device: torch.device) -> Fitted:
    """Everything is checked before memory of its size is allocated."""
    spec, plan = Spec(**metadata["spec"]), Plan.from_json(metadata["plan"])
    architecture, chosen = Architecture(**metadata["architecture"]), metadata["chosen"]
    if type(chosen) is not int or not 0 <= chosen < len(plan.candidates):
        raise ValueError(f"it has {len(plan.candidates)} candidates, and says that {chosen!r} was chosen")
    planned = plan.candidates[chosen].architecture
    if replace(architecture, rank=planned.rank) != planned or not 0 < architecture.rank <= planned.rank:
        raise ValueError("its architecture is not the one that was planned")
    grouped = _grouped(tensors)
    arrays = {name: tensor.numpy() for name, tensor in grouped.pop("preprocessor", {}).items()}
    preprocessor = Preprocessor.from_state(arrays, metadata["preprocessing"])
    members = check_positive_int("members", metadata["members"])
    everyone = range(min(members, len(grouped)))
    if len(grouped) != 2 * members or grouped.keys() != {
        f"{part}/{k}" for part in ("member", "history") for k in everyone
    }:
        raise ValueError(f"it says that it has {members} members, and has others")
    histories = [grouped[f"history/{k}"] for k in range(members)]
    return Fitted(
        spec=spec,
        plan=plan,
        chosen=chosen,
        architecture=architecture,
        preprocessor=preprocessor,
        target=TargetScaler.from_state(metadata["target"]),
        models=tuple(_model(architecture, preprocessor.width, grouped[f"member/{k}"]) for k in range(members)),
        calibration=_calibration(metadata["calibration"]),
        alpha=check_number("alpha", metadata["alpha"], at_least=0.0),
        beta=check_number("beta", metadata["beta"], at_least=0.0),
        history=tuple({name: history[name].numpy() for name in HISTORY} for history in histories),
        validation={str(k): check_number(k, v) for k, v in metadata["validation"].items()},
        rows=check_positive_int("rows", metadata["rows"]),
        device=device,
    )


def _model(architecture: Architecture, columns: int, state: dict[str, Tensor]) -> DeepBasisGP:
    """A member's model from its parameters, whose shapes are checked against a model on the meta device."""
    blocks = {name.split(".")[2] for name in state if name.startswith("backbone.blocks.")}
    if not architecture.is_shallow and len(blocks) != architecture.blocks:
        raise ValueError(f"{architecture.blocks} blocks were to be there, {len(blocks)} are")
    with torch.device("meta"):
        slope = () if architecture.trend == "none" else (0.0,) * columns
        model = architecture.build(columns, Member(slope=slope))
    dtype = state["mean"].dtype
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"its parameters are {dtype}")
    expected = {name: (value.shape, dtype) for name, value in model.state_dict().items()}
    if expected != {name: (value.shape, value.dtype) for name, value in state.items()}:
        raise ValueError("its parameters are not those of its method and sizes")
    if not all(bool(value.isfinite().all()) for value in state.values()):
        raise ValueError("it has parameters that are not finite")
    model.load_state_dict(state, assign=True)
    return model


def _calibration(found: Any) -> Calibration | None:
    if found is None:
        return None
    if not isinstance(found, Mapping) or found.keys() != {one.name for one in fields(Calibration)}:
        raise ValueError("its calibration has no scales and weights, or has more")
    if not all(isinstance(values, list) for values in found.values()):
        raise ValueError("its calibration is not of lists")
    return Calibration(**{name: tuple(values) for name, values in found.items()})


def _grouped(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """By what they belong to: "preprocessor", "member/0", "history/0", ..."""
    grouped: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        words = name.split("/")
        count = 1 if words[0] == "preprocessor" else 2
        grouped.setdefault("/".join(words[:count]), {})["/".join(words[count:])] = tensor
    return grouped
