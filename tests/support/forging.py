"""Files of our own format made on purpose: anything inside, and the checksum right."""

import copy
import json
import math
import os
import random
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from deepbasis import storage

FORGERIES = 10_000 if os.environ.get("DEEPBASIS_FULL_FUZZ") == "1" else 500

Tensors = dict[str, Tensor]


def write(path: Path, kind: str, tensors: Tensors, metadata: Any) -> None:
    """As `storage.save`, without its scruples: NaN and infinity may be in the JSON."""
    envelope = {"format": 1, "kind": kind, "metadata": metadata}
    text = json.dumps({**envelope, "sha256": storage.digest(tensors, envelope)}, sort_keys=True)
    path.write_bytes(save(tensors, {"deepbasis": text}))


def forged(tensors: Tensors, metadata: Any, rng: random.Random) -> tuple[Tensors, Any]:
    """A copy with one to four changes, half of them in the metadata."""
    tensors, metadata = dict(tensors), copy.deepcopy(metadata)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        if rng.random() < 0.5:
            _change_tree(metadata, rng)
        elif tensors:
            _change_tensor(tensors, rng)
    return tensors, metadata


_WORDS = ["", "x", "auto", "active", "numeric", "categorical", "float16", "dbk-rbf", "\ud83d\ude00", "1"]
_NUMBERS = [0, -1, 1, 2, 3, 7, 10**6, 2**31, 2**63, 10**30, 0.0, -0.0, 0.5, 1e-300, 1e-30, 1e30, 1e150, 1e308]
_ODD = [None, True, False, [], {}, [[]], {"": None}, math.nan, math.inf, -math.inf, 10**400]


def _strange(old: Any, rng: random.Random) -> Any:
    """Something else in its place: near it, or far off."""
    if type(old) is bool and rng.random() < 0.5:
        return not old
    if isinstance(old, int | float) and rng.random() < 0.6:
        return rng.choice([old + 1, old - 1, -old, old * 2, old * 1000, old / 7, float(old), str(old), [old]])
    return copy.deepcopy(rng.choice([rng.choice(_WORDS), rng.choice(_NUMBERS), rng.choice(_ODD)]))


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Every container in it, with each of its keys."""
    items = list(tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ())
    return [(tree, key) for key, _ in items] + [place for _, value in items for place in _places(value)]


def _change_tree(tree: Any, rng: random.Random) -> None:
    places = _places(tree)
    if not places:
        return
    inside, key = rng.choice(places)
    other, other_key = rng.choice(places)
    match rng.choice(["strange", "strange", "strange", "drop", "swap", "copy", "more"]):
        case "strange":
            inside[key] = _strange(inside[key], rng)
        case "drop":
            del inside[key]
        case "swap":
            mine, theirs = copy.deepcopy(inside[key]), copy.deepcopy(other[other_key])
            inside[key] = theirs
            if (other, other_key) != (inside, key) and not _contains(inside, other) and not _contains(mine, other):
                other[other_key] = mine
        case "copy":
            inside[key] = copy.deepcopy(other[other_key])
        case "more" if isinstance(inside, list):
            inside.insert(key, copy.deepcopy(inside[key]))
        case "more":
            inside[rng.choice(_WORDS)] = _strange(None, rng)


def _contains(tree: Any, part: Any) -> bool:
    return tree is part or any(_contains(inside[key], part) for inside, key in _places(tree) if inside[key] is part)


def _change_tensor(tensors: Tensors, rng: random.Random) -> None:
    name, other = rng.choice(sorted(tensors)), rng.choice(sorted(tensors))
    old = tensors[name]
    match rng.choice(
        ["number", "number", "number", "all", "bits", "type", "shape", "longer", "drop", "swap", "rename"]
    ):
        case "number" if old.numel():
            flat = old.clone().reshape(-1)
            value = rng.choice([math.nan, math.inf, -math.inf, 0.0, -1.0, 1e-30, 1e4, 1e9, 1e20, 1e30, -1e30, 1e300])
            flat[rng.randrange(len(flat))] = _within(value, old.dtype)
            tensors[name] = flat.reshape(old.shape)
        case "all":
            factor = rng.choice([0.0, -1.0, 2.0, 1e3, 1e10, 1e30, math.nan, math.inf])
            tensors[name] = old * factor if old.is_floating_point() else torch.full_like(old, rng.choice([-1, 0, 9]))
        case "bits" if old.numel():
            bits = old.clone().reshape(-1).view(torch.uint8)
            bits[rng.randrange(len(bits))] ^= 1 << rng.randrange(8)
            tensors[name] = bits.view(old.dtype).reshape(old.shape)
        case "type":
            kinds = [torch.float16, torch.float32, torch.float64, torch.int64, torch.bool, torch.uint8]
            tensors[name] = old.nan_to_num().clamp(0, 1).to(rng.choice(kinds)) if old.numel() else old
        case "shape":
            tensors[name] = rng.choice([old.reshape(-1), old[None], old.reshape(-1)[:1], old.reshape(-1)[:0]]).clone()
        case "longer":
            tensors[name] = torch.cat([old.reshape(-1), old.reshape(-1)])
        case "drop":
            del tensors[name]
        case "swap":
            tensors[name], tensors[other] = tensors[other].clone(), tensors[name].clone()
        case "rename":
            tensors[rng.choice(["x", f"{name}x", name[1:], name.replace("0", "1")])] = tensors.pop(name)


def _within(value: float, dtype: torch.dtype) -> float:
    if dtype.is_floating_point:
        return value if abs(value) <= torch.finfo(dtype).max else math.copysign(torch.finfo(dtype).max, value)
    return int(max(-9.0, min(9.0, value))) if math.isfinite(value) else 0
