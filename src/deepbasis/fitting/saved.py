"""A model's file, read back: everything is checked, and what is not as we write it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from deepbasis import storage
from deepbasis.engine.checks import LARGEST, read_history
from deepbasis.engine.members import Member
from deepbasis.errors import FileFormatError, check_number, check_positive_int
from deepbasis.fitting import distance as far
from deepbasis.fitting.apart import Apart
from deepbasis.fitting.diagnosis import Diagnosis
from deepbasis.fitting.fitted import KIND, Fitted, is_finite
from deepbasis.fitting.kinds import COUNT, IDENTITY, LOG, ORDINAL, WARP
from deepbasis.fitting.novelty import Novelty
from deepbasis.fitting.plan import Architecture, Plan
from deepbasis.fitting.spec import COUNTS, Spec
from deepbasis.gp import learning
from deepbasis.gp.calibration import Calibration
from deepbasis.gp.conformal import Conformal
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.outputs import OutputsCalibration
from deepbasis.gp.rates import RATE
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.scaler import TargetScaler

_MOST_FOLDS = 64
_FAR = 1e5  # scales: where the rows that a fit is without have nearly all of the weight, it may be far from the others


def load(path: str | PathLike[str], device: torch.device) -> Fitted:
    """What `Fitted.save` wrote. No code of the file is run."""
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
    target = TargetScaler.from_state(metadata["target"])
    folds = _folds(grouped, metadata["folds"], preprocessor, target, device)
    members = check_positive_int("members", metadata["members"])
    everyone = range(min(members, len(grouped)))
    parts = ("member", "history", *(["learned"] if "learned/0" in grouped else []))
    if len(grouped) != len(parts) * members or grouped.keys() != {f"{part}/{k}" for part in parts for k in everyone}:
        raise ValueError(f"it says that it has {members} members, and has others")
    if target.classes != architecture.classes:
        raise ValueError(f"its target has {target.classes} classes, its members {architecture.classes}")
    if architecture.flags not in ((), preprocessor.flags):
        raise ValueError("its members take other columns for 0 and 1 than its table has")
    if len(target.outputs) != architecture.outputs:
        raise ValueError(f"its target has {len(target.outputs)} outputs, its members {architecture.outputs}")
    if (target.name == RATE) != (architecture.likelihood in COUNTS):
        raise ValueError(f"its target is {target.name!r}, and its likelihood {architecture.likelihood!r}")
    likely = tuple(check_number("log_likelihoods", one) for one in metadata["log_likelihoods"])
    if likely and (len(likely) != members or not plan.candidates[chosen].settings.exact):
        raise ValueError(f"it has {len(likely)} marginal likelihoods, of {members} members or of no exact training")
    calibration = (OutputsCalibration if target.outputs else Calibration).from_state(metadata["calibration"])
    models = tuple(_member_model(architecture, preprocessor.width, grouped[f"member/{k}"]) for k in everyone)
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
        distance=far.Distance.restored(beyond, metadata, preprocessor.width, _member_model),
        log_likelihoods=likely,
        target_name=_read_name(metadata["target_name"]),
        versions=_read_texts(metadata["versions"]),
    )


def _folds(
    grouped: dict[str, dict[str, Tensor]],
    described: Any,
    whole: Preprocessor,
    target: TargetScaler,
    device: torch.device,
) -> tuple[Fitted, ...]:
    """The fits without a part of the rows each; their tensors are taken out."""
    if type(described) is not list or len(described) > _MOST_FOLDS:
        raise ValueError("its fits without some rows are no list, or too many")
    if any(one["folds"] for one in described):
        raise ValueError("its fits without some rows have others")
    found = tuple(_restored(grouped.pop(f"fold/{k}"), one, device) for k, one in enumerate(described))
    if any(one.conformal is None or not one.preprocessor.reads_as(whole) for one in found) or len(found) == 1:
        raise ValueError("its fits without some rows promise nothing, or read other columns")
    if not all(_are_alike(one.target, target) for one in found):
        raise ValueError("its fits without some rows are of another target")
    return found


def _are_alike(one: TargetScaler, other: TargetScaler) -> bool:
    """Whether two targets may be of most of the same rows: numbers, and in sight of each other on their scales."""
    if not {one.name, other.name} <= {IDENTITY, LOG, WARP, COUNT, ORDINAL}:
        return False
    ends = torch.tensor([-_FAR, _FAR], dtype=torch.float64)
    lowest, highest = zip(*(target.inverse(ends).tolist() for target in (one, other)), strict=True)
    return max(lowest) <= min(highest)


def _member_model(architecture: Architecture, columns: int, state: dict[str, Tensor]) -> DeepBasisGP:
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
        if not (is_finite(model.predict(some)) and bool(model.noise().isfinite().all())):
            raise ValueError("its predictions, or its noise, are not finite")
    return model


def _read_name(found: Any) -> str | None:
    if not isinstance(found, str | None):
        raise ValueError(f"the name of its target is {found!r}")
    return found


def _read_texts(found: Any) -> dict[str, str]:
    if not isinstance(found, Mapping) or not all(isinstance(text, str) for text in found.values()):
        raise ValueError("its versions are not texts")
    return dict(found)
