"""A fitted regressor to a file and back, through `storage.py`: tensors and JSON, looked at before they are used."""

import hashlib
import json
import math
import sys
from dataclasses import asdict
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepbasis import __version__, storage
from deepbasis.engine.checkpoint import HISTORY
from deepbasis.engine.members import Member
from deepbasis.errors import FileFormatError, check_choice, check_number, check_positive_int
from deepbasis.gp.calibration import Calibration
from deepbasis.gp.expansion import JITTER
from deepbasis.gp.methods import METHODS
from deepbasis.gp.model import DeepBasisGP
from deepbasis.planning import inner_of
from deepbasis.recipes import HALF, TRENDS
from deepbasis.registry import EMBEDDINGS
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.targets import TargetScaler

KIND = "regressor"


def save(regressor: Any, path: str | PathLike[str]) -> None:
    """Write everything needed to predict to one .safetensors file, atomically."""
    storage.save(path, KIND, *_contents(regressor))


def fingerprint(regressor: Any) -> str:
    """Tells models apart that predict differently."""
    tensors, metadata = _contents(regressor)
    told = {name: metadata[name] for name in ("preprocessing", "target", "members", "calibration")}
    if metadata["jitter"] != JITTER:  # once the same for all, and not told
        told["jitter"] = metadata["jitter"]
    digest = hashlib.sha256(json.dumps([regressor.method_, told], sort_keys=True).encode())
    for name in sorted(tensors):
        if not name.startswith("history/"):
            digest.update(name.encode())
            digest.update(tensors[name].detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def _contents(regressor: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    arrays, preprocessing = regressor.preprocessor_.state()
    tensors = {f"preprocessor/{name}": torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}
    for k, model in enumerate(regressor.models_):
        tensors |= {f"member/{k}/{name}": value for name, value in model.state_dict().items()}
        tensors |= {f"history/{k}/{name}": torch.from_numpy(v) for name, v in regressor.history_[k].items()}
    parameters = {k: v.item() if isinstance(v, np.generic) else v for k, v in regressor.get_params().items()}
    if not isinstance(parameters["random_state"], int | None):
        parameters["random_state"] = None  # a generator's state is not part of the model
    parameters["device"] = str(parameters["device"])  # it may be a torch.device
    names = getattr(regressor, "feature_names_in_", None)
    return tensors, {
        "version": __version__,
        "parameters": parameters,
        "method": regressor.method_,
        "embedding": regressor.embedding_,
        "inner": regressor.inner_,
        "trend": regressor.trend_,
        "jitter": regressor.jitter_,
        "members": len(regressor.models_),
        "preprocessing": preprocessing,
        "target": regressor.target_.state(),
        "calibration": None if regressor.calibration_ is None else asdict(regressor.calibration_),
        "validation": regressor.validation_,
        "alpha": regressor.alpha_,
        "beta": regressor.beta_,
        "rows": getattr(regressor, "rows_", None),
        "n_features": regressor.n_features_in_,
        "feature_names": None if names is None else [str(name) for name in names],
    }


def load(make: Any, path: str | PathLike[str], device: torch.device) -> Any:
    """What `save` wrote, as `make(**parameters)` with everything that a fit gives. No code of the file is run."""
    tensors, metadata = storage.load(path, KIND)
    try:
        return _restored(make, tensors, metadata, device)
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        raise FileFormatError(f"{path} does not hold a regressor that this release understands: {error}") from error


def _restored(make: Any, tensors: dict[str, Tensor], metadata: dict[str, Any], device: torch.device) -> Any:
    parameters = metadata["parameters"]
    # Before there was `inner` it was the width, and before there were `embedding` and `trend` there were none.
    regressor = make(**{"inner": parameters["width"], "embedding": "none", "trend": "none", **parameters})
    regressor._check_parameters()
    regressor.method_ = check_choice("method", metadata.get("method", parameters["method"]), METHODS)  # once without it
    if parameters["method"] not in ("auto", regressor.method_):
        raise ValueError(f"its method is {parameters['method']!r}, its members are of {regressor.method_!r}")
    regressor.embedding_ = check_choice("embedding", metadata.get("embedding", "none"), EMBEDDINGS)
    if regressor.embedding not in ("auto", regressor.embedding_):
        raise ValueError(f"its embedding is {regressor.embedding!r}, its members have {regressor.embedding_!r}")
    regressor.trend_ = check_choice("trend", metadata.get("trend", "none"), (*TRENDS, HALF))
    if regressor.trend not in ("auto", regressor.trend_):
        raise ValueError(f"its trend is {regressor.trend!r}, its members have {regressor.trend_!r}")
    regressor.jitter_ = check_number("jitter", metadata.get("jitter", JITTER), at_least=0.0)  # once the same for all
    before = inner_of(regressor, sys.maxsize)  # before it was told, it was the same for tables of all sizes
    regressor.inner_ = check_positive_int("inner", metadata.get("inner", before))
    if regressor.inner not in ("auto", regressor.inner_):
        raise ValueError(f"it is to be {regressor.inner!r} wide inside a block, its members are {regressor.inner_!r}")
    regressor.rank_ = int(regressor.rank)
    if METHODS[regressor.method_].backbone == "identity":  # it may have fewer
        regressor.rank_ = min(regressor.rank_, len(tensors["member/0/expansion.Z"]))
    arrays = {name: tensor.numpy() for name, tensor in _under("preprocessor/", tensors).items()}
    regressor.preprocessor_ = Preprocessor.from_state(arrays, metadata["preprocessing"])
    regressor.target_ = TargetScaler.from_state(metadata["target"])
    regressor.alpha_, regressor.beta_ = (check_number(name, metadata[name], at_least=0.0) for name in ("alpha", "beta"))
    regressor.validation_ = {str(k): check_number(k, v, at_least=-math.inf) for k, v in metadata["validation"].items()}
    if metadata.get("rows") is not None:  # once it was not told
        regressor.rows_ = check_positive_int("rows", metadata["rows"])
    _restore_columns(regressor, metadata)
    members = check_positive_int("members", metadata["members"])
    parts = {tuple(name.split("/")[:2]) for name in tensors if not name.startswith("preprocessor/")}
    everyone = range(min(members, len(parts)))
    if len(parts) != 2 * members or parts != {(part, str(k)) for part in ("member", "history") for k in everyone}:
        raise ValueError(f"it says that it has {members} members, and has others")
    models = [_member(regressor, _under(f"member/{k}/", tensors)) for k in range(members)]
    regressor.history_ = [
        {name: _under(f"history/{k}/", tensors)[name].numpy() for name in HISTORY} for k in range(members)
    ]
    calibration = _calibration(metadata.get("calibration"))  # release 0.1 had none
    regressor._set_models(models, next(models[0].parameters()).dtype, device, calibration)
    return regressor


def _calibration(found: Any) -> Calibration | None:
    if found is None:
        return None
    if not isinstance(found, dict) or found.keys() != {"scales", "weights"}:
        raise ValueError("its calibration has no scales and weights, or has more")
    if not all(isinstance(values, list) for values in found.values()):
        raise ValueError("its calibration is not of lists")
    return Calibration(**{name: tuple(values) for name, values in found.items()})


def _restore_columns(regressor: Any, metadata: dict[str, Any]) -> None:
    columns, names = len(regressor.preprocessor_.encodings), regressor.preprocessor_.input_columns
    if (
        type(metadata["n_features"]) is not int
        or metadata["n_features"] != columns
        or metadata["feature_names"] != names
    ):
        raise ValueError("its columns are not those of its preprocessing")
    regressor.n_features_in_ = columns
    if names is not None:
        regressor.feature_names_in_ = np.array(names, dtype=object)


def _member(regressor: Any, state: dict[str, Tensor]) -> DeepBasisGP:
    """A member's model from its parameters, which are looked at before anything of their size is made."""
    blocks = {name.split(".")[2] for name in state if name.startswith("backbone.blocks.")}
    if METHODS[regressor.method_].backbone == "resnet" and len(blocks) != regressor.blocks:
        raise ValueError(f"{regressor.blocks} blocks were to be there, {len(blocks)} are")
    with torch.device("meta"):  # shapes without memory
        slope = () if regressor.trend_ == "none" else (0.0,) * regressor.preprocessor_.width
        model: DeepBasisGP = regressor._build(Member(slope=slope))
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


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
