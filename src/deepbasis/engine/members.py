"""Members: E models of one architecture, stacked along a leading axis and run together by `vmap`."""

import logging
from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.utils._pytree import tree_map

from deepbasis.engine.fused.arena import Arena, predicts, why_not
from deepbasis.engine.fused.machine import usable
from deepbasis.engine.memory import is_out_of_memory
from deepbasis.engine.recording import Recording
from deepbasis.errors import InputError, NumericalError, check_number, check_positive_int, first_line
from deepbasis.gp.calibration import Calibration
from deepbasis.gp.model import NO_RESIDUAL_VARIANCE, DeepBasisGP, Terms
from deepbasis.gp.outputs import OutputsCalibration
from deepbasis.gp.posterior import PointWeights
from deepbasis.gp.predictive import Predictive

log = logging.getLogger("deepbasis")


@dataclass(frozen=True)
class Member:
    """What may differ between members. Learning rates belong to the run: one optimiser steps them all."""

    seed: int = 0
    alpha: float = 0.01
    beta: float = 0.01
    noise: float = 1e-2
    """Initial sigma_eps^2."""
    slope: tuple[float, ...] = field(default=(), repr=False)
    """Slope of the prior mean; empty if it is a constant, zeros if other members of the run have one."""

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise InputError(f"a member's seed must be an integer from 0 to 2^63 - 1, got {self.seed!r}")
        check_number("alpha", self.alpha, at_least=0.0)
        check_number("beta", self.beta, at_least=0.0)
        check_number("noise", self.noise, above=0.0)


_FEW_ROWS = 8  # a call costs more than the work: on a CPU such predictions are recorded, for each number of rows

_KERNEL_ROWS = 2**18  # at a time, by the fused kernels

Build = Callable[[Member], DeepBasisGP]
"""Makes a member's model. It must depend on the member only: `build(..., seed=member.seed)` does."""


class Stack:
    """E models as one. `leaves` are what an optimiser steps.

    One member is not stacked at all: its leaves are the parameters of `template` itself, which is called as it is. More
    are stacked parameters [E, ...], run through `template` by `functional_call` under `vmap`. `stacked()` and `map`
    look the same in both cases.
    """

    def __init__(self, models: Sequence[DeepBasisGP], *, device: torch.device, dtype: torch.dtype) -> None:
        if not models:
            raise InputError("a stack needs at least one model, got none")
        if len({tuple((name, value.shape) for name, value in model.named_buffers()) for model in models}) > 1:
            raise InputError(
                "members that are trained together must be of one architecture, but some of these have a slope, or "
                "another buffer, that others have not: give a slope of zeros to a member without a line"
            )
        self.size = len(models)
        self.device, self.dtype = device, dtype
        self.template: DeepBasisGP = deepcopy(models[0]).to(device, dtype)
        if self.size == 1:
            self.leaves: dict[str, Tensor] = dict(self.template.named_parameters())
            self.buffers: dict[str, Tensor] = dict(self.template.named_buffers())
        else:
            parameters, buffers = stack_module_state(list(models))
            self.leaves = {k: p.detach().to(device, dtype).requires_grad_() for k, p in parameters.items()}
            self.buffers = {k: b.to(device) for k, b in buffers.items()}
            self.template.to("meta")  # its own parameters are never used
        self._apply = _Apply(self.template)

    def stacked(self) -> dict[str, Tensor]:
        """Every parameter with its member axis in front, sharing memory with the leaves."""
        return {k: self.with_axis(p.detach()) for k, p in self.leaves.items()}

    def with_axis(self, leaf: Tensor) -> Tensor:
        return leaf.unsqueeze(0) if self.size == 1 else leaf

    def map(self, function: Callable[..., Any], per_member: Any = (), shared: Any = ()) -> Any:
        """`function(model, *per_member, *shared)` for every member's model, results stacked along a first axis.

        `per_member` arguments carry a leading axis E, `shared` ones do not; any may be None or a tuple of tensors.
        `function` is code for one model: it sees no member axis.
        """
        if self.size == 1:
            mine = tree_map(lambda value: None if value is None else value[0], per_member)
            out = function(self.template, *mine, *shared)
            return tree_map(lambda value: value.unsqueeze(0), out)

        def one(state: dict[str, Tensor], mine: Any) -> Any:
            # to look for parameters with two names, which a template has not, would take a thirtieth of a small step
            return functional_call(self._apply, state, (function, *mine, *shared), tie_weights=False)

        state = {f"model.{name}": value for name, value in {**self.leaves, **self.buffers}.items()}
        axes = tree_map(lambda value: None if value is None else 0, per_member)
        return vmap(one, in_dims=(0, axes))(state, per_member)

    def arena(self) -> Arena:
        """Where the fused kernels find the parameters."""
        return Arena(self.template, self.leaves, self.size)

    def for_one_thread(self) -> "Stack":
        """The same stack, the same tensors, and a template of its own.

        While `map` runs the template has the parameters of the members in place of its own, so that no two threads can
        use one. Training has one thread, and keeps the template that was compiled.
        """
        if self.size == 1:  # nothing is put in place of anything
            return self
        mine = copy(self)
        mine._apply = _Apply(_same_tensors(self.template))
        return mine

    @torch.no_grad()
    def member(self, k: int) -> DeepBasisGP:
        """Member k as a model of its own."""
        model = deepcopy(self.template)
        if self.size > 1:
            model = model.to_empty(device=self.device)
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
                tensor.copy_((self.buffers if name in self.buffers else self.leaves)[name][k])
        return model


def _same_tensors(module: nn.Module) -> nn.Module:
    """A copy of the tree of modules alone, which takes a twentieth of the time of a deep copy."""
    twin = module.__new__(type(module))
    modules = {name: None if part is None else _same_tensors(part) for name, part in module._modules.items()}
    parts = {"_modules": modules, "_parameters": dict(module._parameters), "_buffers": dict(module._buffers)}
    twin.__dict__.update(module.__dict__, **parts)
    return twin


class _Apply(nn.Module):
    """Lets `functional_call` run any function of a model, not only its `forward`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., Any], *inputs: Any) -> Any:
        return function(self.model, *inputs)


class Ensemble:
    """Trained members that predict together, in chunks: memory does not grow with the number of rows.

    With a `calibration` each member's prediction, noise included, becomes a mixture of scales. On a GPU members are run
    as a stack; on a CPU one after the other, which is faster from a few rows on. For fewer, what the stack does is
    recorded and repeated.
    """

    def __init__(
        self,
        models: Sequence[DeepBasisGP],
        *,
        calibration: Calibration | OutputsCalibration | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        chunk_rows: int | None = None,
    ) -> None:
        self.stack = Stack(models, device=torch.device(device), dtype=dtype)
        self.calibration = calibration
        if chunk_rows is None:  # a CPU's cache is small, a GPU needs much work at once
            chunk_rows = max(1, 65_536 // len(models)) if self.stack.device.type == "cuda" else 4_096
        self.chunk_rows = check_positive_int("chunk_rows", chunk_rows)
        self._recordings: dict[tuple[Any, int], Recording] = {}

    @cached_property
    def _members(self) -> list[DeepBasisGP]:
        return [self.stack.member(k) for k in range(self.stack.size)]

    def predict(self, x: Tensor) -> Predictive:
        """The equal mixture of the members' predictions for rows x [n, d], calibrated, on the device of `x`.

        In the precision of the stack, or calibrated in float64.
        """
        parts, noise, info = self._map(_predictive, x) if self._arena is None else self._by_kernels(_of_terms, x)
        if bool(info.any()):
            bad = info.any(1).nonzero()[:, 0].tolist()
            raise NumericalError(f"members {bad} cannot predict: their inducing points' kernel is not positive")
        if isinstance(self.stack.template.posterior, PointWeights) and bool(noise.isnan().any()):
            raise InputError(NO_RESIDUAL_VARIANCE)
        predicted = self.stack.template.likelihood.distribution(*parts)
        return predicted if self.calibration is None else self.calibration.apply(predicted.double())

    def means(self, x: Tensor) -> Tensor:
        """The members' means of f [E, n]: all that a DNN has to say before it has its residual variance."""
        means: Tensor = self._map(DeepBasisGP.mean_at, x) if self._arena is None else self._by_kernels(_mean_of, x)
        return means

    @cached_property
    def _arena(self) -> Arena | None:
        """What the fused kernels work on, where they can predict for these members."""
        stack = self.stack
        if stack.dtype != torch.float32 or not usable(stack.device):
            return None
        if why_not(stack.template) is not None or not predicts(stack.template):
            return None
        arena = stack.arena()
        if not kernels_compile(arena.trial().compile, "predicting the plain way"):
            return None
        arena.bind()
        return arena

    @torch.no_grad()
    def _by_kernels(self, function: Callable[..., Any], x: Tensor) -> Any:
        """As `_map`, of what the members say of each chunk."""
        assert self._arena is not None
        stack, slope = self.stack.for_one_thread(), self.stack.buffers.get("slope")
        parts = []
        for chunk in x.split(_KERNEL_ROWS):
            said = self._arena.terms(chunk.to(stack.device, stack.dtype), slope)
            parts.append(tree_map(lambda part: part.to(x.device), stack.map(function, tuple(said))))
        return _joined(parts, 1)

    @torch.no_grad()
    def _map(self, function: Callable[[DeepBasisGP, Tensor], Any], x: Tensor) -> Any:
        """Tensors [E, rows, ...], on the device of `x`, of chunks of rows one after another."""
        torch.get_num_threads()  # a new thread's products heed `set_num_threads` only once torch was asked, so ask
        on_cpu = self.stack.device.type == "cpu"
        chunks = [chunk.to(self.stack.device, self.stack.dtype) for chunk in x.split(self.chunk_rows)]
        if on_cpu and len(x) <= _FEW_ROWS and len(chunks) == 1:
            recording = self._recording(function, chunks[0])
            if recording.valid:
                return recording(chunks[0])
        if on_cpu:
            found = [_joined([function(model, chunk) for chunk in chunks], 0) for model in self._members]
            return tree_map(lambda *members: torch.stack(members).to(x.device), *found)
        stack = self.stack.for_one_thread()
        parts = [stack.map(function, shared=(chunk,)) for chunk in chunks]
        return _joined([tree_map(lambda part: part.to(x.device), part) for part in parts], 1)

    def _recording(self, function: Callable[[DeepBasisGP, Tensor], Any], x: Tensor) -> Recording:
        key = (function, len(x))
        if key not in self._recordings:  # two threads may both make it
            stack = self.stack.for_one_thread()
            self._recordings[key] = Recording(lambda rows: stack.map(function, shared=(rows,)), x)
        return self._recordings[key]

    def __getstate__(self) -> dict[str, Any]:
        """Without what can be made again."""
        kept = {name: value for name, value in vars(self).items() if name not in ("_members", "_arena")}
        return {**kept, "_recordings": {}}


def kernels_compile(compile: Callable[[], None], instead: str) -> bool:
    """Compile the fused kernels; if that cannot be done, the log says so, and what is done instead."""
    try:
        compile()
    except Exception as error:  # such as no C compiler, which Triton needs for what calls a kernel
        if is_out_of_memory(error):
            raise
        log.warning("the fused kernels cannot be compiled (%s): %s", first_line(error), instead)
        return False
    return True


def _joined(parts: Sequence[Any], dim: int) -> Any:
    return parts[0] if len(parts) == 1 else tree_map(lambda *some: torch.cat(some, dim), *parts)


def _predictive(model: DeepBasisGP, x: Tensor) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """What its distribution of y is made of; the noise and the pivot of a failed factorisation, once a chunk."""
    return _of_terms(model, *model(x))


def _of_terms(model: DeepBasisGP, *terms: Tensor) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    said = Terms(*terms)
    return model.predictive(said), model.noise().reshape(1), said.info.reshape(1)


def _mean_of(model: DeepBasisGP, *terms: Tensor) -> Tensor:
    return Terms(*terms).mean
