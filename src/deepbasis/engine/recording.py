"""The tensor operations of a function, recorded once and then repeated without the function.

A prediction of one row is a few dozen operations of a few microseconds each. `vmap`, modules and what depends on
parameters alone take ten times as long.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

_SHAPES = {torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default, torch.ops.aten.expand.default}


class _Slot:
    """Stands for a tensor that depends on the input, by its number."""

    def __init__(self, number: int) -> None:
        self.number = number


class Recording(TorchDispatchMode):
    """A pure function of one tensor, for inputs of one shape: `Recording(function, x)(x2)` is `function(x2)`.

    Whatever does not depend on the input is computed once. Several threads may call it at once, but what it gives may
    share memory with what it holds: it is to be read only. `valid` says whether the function could be recorded: it must
    not change a tensor in place that depends on the input, nor look at its values.
    """

    def __init__(self, function: Callable[[Tensor], Any], x: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.valid = True
        self._steps: list[tuple[Any, tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = []
        self._size = 1
        self._slots = {id(x): _Slot(0)}
        self._alive: list[Any] = [x]  # so that no other tensor gets an id that is in use
        with self:
            result = function(x)
        self._result = self._slotted(result)
        self._slots, self._alive = {}, []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        out = func(*args, **kwargs)
        self._alive.append(out)
        if not any(id(value) in self._slots for value in tree_leaves((args, kwargs))):
            return out
        outs = out if isinstance(out, tuple | list) else (out,)
        if _changes_in_place(func) or not all(isinstance(one, Tensor) for one in outs):
            self.valid = False
        elif func in _SHAPES and outs[0].shape == args[0].shape:
            self._slots[id(out)] = self._slots[id(args[0])]
        else:
            places = tuple(range(self._size, self._size + len(outs)))
            self._steps.append((func, *self._slotted((args, kwargs)), places))
            self._slots |= {id(one): _Slot(place) for one, place in zip(outs, places, strict=True)}
            self._size += len(outs)
        return out

    def _slotted(self, tree: Any) -> Any:
        return tree_map(lambda value: self._slots.get(id(value), value), tree)

    def __call__(self, x: Tensor) -> Any:
        values: list[Any] = [x] * self._size
        for func, args, kwargs, places in self._steps:
            out = func(
                *[_filled(one, values) for one in args], **{k: _filled(one, values) for k, one in kwargs.items()}
            )
            if len(places) == 1:
                values[places[0]] = out
            else:
                values[places[0] : places[-1] + 1] = out
        return _filled(self._result, values)


def _changes_in_place(func: Any) -> bool:
    """By its name: aten::add_.Tensor, aten::add.out."""
    name, _, overload = func.name().partition(".")
    return name.endswith("_") or overload.endswith("out")


def _filled(tree: Any, values: list[Any]) -> Any:
    kind = type(tree)
    if kind is _Slot:
        return values[tree.number]
    return kind(_filled(one, values) for one in tree) if kind is list or kind is tuple else tree
