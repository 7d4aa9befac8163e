"""`FusedSteps`: the steps of a wave by the kernels, on the same parameters and memories as the plain steps."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import torch
from torch import Tensor

from deepbasis.engine.batches import Resident
from deepbasis.engine.fused.arena import Arena, predicts, why_not
from deepbasis.engine.fused.layout import Launch, Layout
from deepbasis.engine.fused.machine import usable
from deepbasis.engine.fused.ways import FULL, Given, ManyTiling, Products, Shares, Tiling, power
from deepbasis.engine.members import Stack
from deepbasis.engine.muon import Muon
from deepbasis.engine.optimiser import BETAS, AdamW, Average, Optimiser, factor
from deepbasis.engine.settings import Settings
from deepbasis.engine.streams import Batches
from deepbasis.gp.likelihoods import GaussianLikelihood
from deepbasis.gp.model import Terms

log = logging.getLogger("deepbasis")

_TRACES = {"dppgp": (True, True), "dppgp-detached": (True, False), "ppgp": (False, False), "elbo": (False, False)}
"""Of an objective: whether it has a trace term, and whether the gradient passes through its maximum."""
_PRECISIONS = {"float32": (FULL, FULL), "tf32": ("tf32", "tf32"), "bf16": ("bf16", FULL)}
"""Of the network's products, and of those behind it."""
_BLOCK = 1024  # numbers of an arena that one program steps
_MOST_ROWS, _MOST_COLUMNS = 8_192, 1_024  # with more, PyTorch's large products are the better ones
_FEW_MEMBERS = 16  # for more, without products over all rows, what torch compiles is faster: if it is asked for
_CORRECTED_STEPS = 20_000  # b2^t is below float32's rounding then


def arena_for(stack: Stack, source: object, settings: Settings) -> Arena | None:
    """What the kernels work on, if they cover a wave; otherwise the log says why not."""
    if not settings.fused or not usable(stack.device):
        return None
    reason = _uncovered(stack, source, settings)
    if reason is not None:
        log.info("a training step goes the plain way, not by the fused kernels: %s", reason)
        return None
    arena = stack.arena()
    arena.bind()
    return arena


def _uncovered(stack: Stack, source: object, settings: Settings) -> str | None:
    if settings.objective not in _TRACES or settings.precision not in _PRECISIONS:
        return f"they do not know the objective {settings.objective} in {settings.precision}"
    if not isinstance(source, Resident) or not source.team.alone:
        return "they take rows in memory, by one worker"
    if source.data.y.dim() > 1:
        return "they know targets of one number"
    if source.batch_size > _MOST_ROWS or source.data.x.shape[1] > _MOST_COLUMNS:
        return f"they take batches of up to {_MOST_ROWS} rows and {_MOST_COLUMNS} columns"
    reason = why_not(stack.template)
    if reason is None and settings.compile and stack.size > _FEW_MEMBERS:
        faster = not Products.pay(Layout.of(stack.template), stack.size, source.batch_size)
        return f"what torch compiles is faster for {stack.size} members" if faster else None
    return reason


class Plain(Protocol):
    """The plain steps, as far as they are known here: `steps.MinibatchSteps`."""

    stack: Stack
    source: Batches
    alpha: Tensor
    beta: Tensor
    n: Tensor
    loss_sum: Tensor


class FusedSteps:
    """Algorithm 3, lines 2 to 7, in a few launches: see docs/engine.md.

    The memories of the optimisers and of the average become arenas too; checkpoints are those of the plain steps.
    """

    def __init__(
        self,
        plain: Plain,
        optimisers: Sequence[Optimiser],
        average: Average | None,
        arena: Arena,
        settings: Settings,
        total_steps: int,
    ) -> None:
        from deepbasis.engine.fused import updates  # Triton takes a moment, and few processes need it

        self._updates = updates
        stack, source = plain.stack, plain.source
        assert isinstance(source, Resident)
        self.stack, self.source, self.loss_sum = stack, source, plain.loss_sum
        device, E = stack.device, stack.size
        layout = arena.layout
        self._arena = arena
        self.layout, self.parameters, N = layout, arena.parameters, layout.numbers
        self.count = torch.zeros(1, dtype=torch.int64, device=device)

        self.gradients = torch.zeros_like(self.parameters)
        self._momentum = self._mean = self.gradients  # of which nothing is read if there is none
        rates, decays = dict.fromkeys(layout.places, -1.0), dict.fromkeys(layout.places, 0.0)
        self._muon: Muon | None = None
        for optimiser in optimisers:
            if isinstance(optimiser, AdamW):
                for rate, decay, names in optimiser.groups:
                    rates |= dict.fromkeys(names, float(rate))
                    decays |= dict.fromkeys(names, decay)
                self._first, self._second = arena.rebind(optimiser.first), arena.rebind(optimiser.second)
            else:
                assert isinstance(optimiser, Muon)
                self._muon, self._momentum = optimiser, arena.rebind(optimiser.momentum)
        if average is not None:
            self._mean = arena.rebind(average.mean)
        self._rates = layout.filled(-1.0, rates, torch.float32, device)
        self._decays = layout.filled(0.0, decays, torch.float32, device)
        kinds = dict.fromkeys(layout.places, 0.0)
        kinds |= {"posterior.m": 1.0, "posterior.lower": 1.0, "posterior.log_diagonal": 2.0}
        self._kinds = layout.filled(0.0, kinds, torch.int32, device)
        table = [factor(step, settings.schedule, settings.warmup_steps, total_steps) for step in range(total_steps)]
        self._factors = torch.tensor(table if settings.schedule != "constant" or settings.warmup_steps else [1.0])
        self._factors = self._factors.to(device, torch.float32)
        t = torch.arange(1, min(total_steps, _CORRECTED_STEPS) + 1, dtype=torch.float64)
        corrections = torch.stack([1.0 - BETAS[0] ** t, (1.0 - BETAS[1] ** t).sqrt()], 1)
        self._corrections = corrections.float().contiguous().to(device)
        self._batches = source.numbered()
        self._slope = stack.buffers.get("slope")
        self._slopes = arena.slopes(self._slope, source.data.x.shape[1])
        trace, through = _TRACES[settings.objective]
        expected = settings.objective == "elbo"
        self._kl_weights = ((1.0 if expected else plain.beta) / plain.n).float().contiguous()
        self._blocks = -(-N // _BLOCK)
        self._squares = torch.zeros(E, self._blocks, device=device)
        self._divergences = torch.zeros(E, self._blocks, device=device)
        likelihood = stack.template.likelihood
        assert isinstance(likelihood, GaussianLikelihood)
        alphas, precisions = plain.alpha.float().contiguous(), _PRECISIONS[settings.precision]
        self._given = Given(
            layout, self.parameters, source.data, self._slopes, self._batches, self.count, alphas, self._kl_weights,
            likelihood.floor,
            trace and bool((alphas != 0).any()), through, expected, layout.rbf and not trace, precisions,
            float(getattr(stack.template.expansion, "jitter", 0.0)),
        )  # fmt: skip
        self.way: Shares | Products
        self.tile(self._chosen())
        self._stepping: dict[str, Any] = {
            "CLIP": settings.clip is not None,
            "AVERAGE": average is not None,
            "MOST_BLOCKS": power(self._blocks),
        }
        self._limit = 0.0 if settings.clip is None else settings.clip
        self._slowest = 0.0 if settings.average is None else 1.0 - settings.average
        self._matrices(settings, precisions[0])

    def tile(self, tiling: Tiling | ManyTiling) -> None:
        """Go this way, in these tiles, and take the memory that it needs."""
        if isinstance(tiling, Tiling):
            assert not self.layout.rbf, "an RBF basis is taken by the way of many members"
            self.way = Shares(self._given, tiling)
        else:
            self.way = Products(self._given, self.gradients.zero_(), tiling)

    def _chosen(self) -> Tiling | ManyTiling:
        members, batch = self.stack.size, self._batches.order.shape[-1]
        many = Products.pay(self.layout, members, batch)
        if not many:
            return Tiling.chosen(members, batch)
        return ManyTiling.chosen(members, batch, self._given.precisions, self.layout.rbf)

    def _matrices(self, settings: Settings, precision: str) -> None:
        if self._muon is None:
            return
        places, strides = [], []
        H, inner = self.layout.constants["H"], self.layout.arguments["inner"]
        for name in self._muon.leaves:
            tall = (inner > H) if name.endswith("widen.weight") else (inner < H)
            row = H if name.endswith("widen.weight") else inner  # numbers in a row
            places.append(self.layout.places[name])
            strides.append([1, row] if tall else [row, 1])
        device = self.stack.device
        self._places = torch.tensor(places, dtype=torch.int32, device=device)
        self._strides = torch.tensor(strides, dtype=torch.int32, device=device)
        self._muon_numbers = (settings.muon_rate, settings.weight_decay)
        self._muon_constants: dict[str, Any] = {
            "LOW": min(H, inner),
            "HIGH": max(H, inner),
            "PRECISION": precision,
            "num_warps": 8,
        }

    def set_step(self, step: int) -> None:
        self.count.fill_(step)

    @property
    def terms(self) -> Callable[[Tensor], Terms] | None:
        """What stacked members say of rows, if there is a kernel for it."""
        return (lambda x: self._arena.terms(x, self._slope)) if predicts(self.stack.template) else None

    def step(self) -> None:
        for launch in self._launches():
            launch.go()

    def compile(self) -> None:
        """All kernels at once, in threads: most of the work is outside of Python. They are kept on disk."""
        first = [self._arena.trial()] if predicts(self.stack.template) else []  # the one that takes longest
        launches = [*first, *self._launches()]
        with ThreadPoolExecutor(len(launches)) as pool:
            list(pool.map(Launch.compile, launches))

    def release(self) -> None:
        """Leave parameters and memories to the plain steps, as they were before."""
        self._arena.release()

    def _launches(self) -> list[Launch]:
        """The kernels of a step, with what they are given: the same at every step."""
        E, N, b, way = self.stack.size, self.layout.numbers, self._batches, self.way
        last, corrected = len(self._factors) - 1, len(self._corrections) - 1
        launches = way.launches()
        complete = isinstance(way, Products)  # with the gradient of the KL
        shared = way.shares is not self.gradients
        arguments: tuple[Any, ...] = (
            self.parameters, way.shares, self.gradients, self._kinds, self._kl_weights, self._squares,
            self._divergences, b.step, int(b.advance and not complete), N, way.slices,
        )  # fmt: skip
        gathered = not complete or self._stepping["CLIP"] or (shared and self._muon is not None)
        if gathered:
            constants = {"BLOCK": _BLOCK, "COMPLETE": complete, "SHARED": shared}
            launches += [Launch(self._updates.gather, (E, self._blocks), arguments, constants)]
        arguments = (
            self.parameters, way.shares, self.gradients, self._first, self._second, self._mean, self._rates,
            self._decays, self._factors, self._corrections, self._squares, self._divergences, way.losses,
            self.loss_sum, self.count, N, self._blocks, way.losses.shape[1], last, corrected, self._limit,
            self._slowest,
        )  # fmt: skip
        constants = {**self._stepping, "MOST_PROGRAMS": power(way.losses.shape[1]), "BLOCK": _BLOCK}
        constants["SHARES"] = 1 if gathered else way.slices
        launches += [Launch(self._updates.adamw, (E, self._blocks), arguments, constants)]
        if self._muon is not None:
            arguments = (
                self.parameters, self.gradients, self._momentum, self._mean, self._places, self._strides,
                self._factors, self._squares, self.count, N, self._blocks, last, *self._muon_numbers, self._limit,
                self._slowest,
            )  # fmt: skip
            constants = {**self._stepping, **self._muon_constants}
            launches += [Launch(self._updates.muon, (E, len(self._places)), arguments, constants)]
        return launches
