"""What a wave does on the device: a step of all its members, and the validation that keeps the best of each."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from deepbasis.engine import distributed
from deepbasis.engine.batches import Batch, Rows, filled
from deepbasis.engine.distributed import Team
from deepbasis.engine.lbfgs import LBFGS
from deepbasis.engine.members import Member, Stack
from deepbasis.engine.muon import Muon
from deepbasis.engine.optimiser import AdamW, Average, Optimiser, Schedule, clip_per_member
from deepbasis.engine.settings import Settings
from deepbasis.engine.streams import Batches, Stream
from deepbasis.gp import exact
from deepbasis.gp.model import DeepBasisGP, Terms
from deepbasis.gp.objectives import Whole
from deepbasis.registry import OBJECTIVES

_FEWEST_ROWS = 1024  # of a validation chunk, however many members there are


class Descent:
    """What becomes of gradients: the mean over workers, clipped per member, a step, the running average."""

    def __init__(self, stack: Stack, settings: Settings, steps: int, team: Team) -> None:
        self.stack, self.team, self._clip = stack, team, settings.clip
        groups = stack.template.parameter_groups()
        self.leaves = {k: p for k, p in stack.leaves.items() if not (settings.exact and groups[k] == "posterior")}
        decay = settings.weight_decay
        hidden = {k: p for k, p in self.leaves.items() if groups[k] == "hidden" and settings.optimiser == "muon"}
        others = {k: p for k, p in self.leaves.items() if k not in hidden}
        rates = settings.rates
        self.search = LBFGS(self.leaves, stack.with_axis) if settings.optimiser == "lbfgs" else None
        self.optimisers: list[Optimiser] = []
        if self.search is None:
            adamw = AdamW(others, groups, learning_rate=settings.learning_rate, rates=rates, weight_decay=decay)
            self.optimisers.append(adamw)
        if hidden:
            self.optimisers.append(Muon(hidden, learning_rate=settings.muon_rate, weight_decay=decay))
        self.average = None if settings.average is None else Average(self.leaves, settings.average)
        self.schedule = Schedule(self.optimisers, settings.schedule, settings.warmup_steps, steps)

    def step(self) -> None:
        leaves = self.leaves.values()
        self.team.mean_gradients(leaves)
        if self._clip is not None:
            clip_per_member([self.stack.with_axis(p.grad) for p in leaves if p.grad is not None], self._clip)
        self.schedule.apply()
        for optimiser in self.optimisers:
            optimiser.step()
        if self.average is not None:
            self.average.update()

    def zero_grad(self) -> None:
        for leaf in self.leaves.values():
            leaf.grad = None

    def compile(self) -> None:
        for optimiser in self.optimisers:
            optimiser.compile()

    def set_step(self, step: int) -> None:
        for part in (*self.optimisers, self.schedule, self.average):
            if part is not None:
                part.set_step(step)

    def memory(self) -> dict[str, dict[str, Tensor]]:
        """What the next step depends on, beside the parameters and the number of steps."""
        memory = {} if self.average is None else {"average": self.average.mean}
        if self.search is not None:
            memory["search"] = self.search.memory()
        for optimiser in self.optimisers:
            memory |= optimiser.memory()
        return memory


class MinibatchSteps:
    """Algorithm 3, lines 2 to 7, for every member."""

    shared_loss = False
    """Of a worker's own rows: that of all is the mean over workers."""

    def __init__(
        self, stack: Stack, source: Batches, descent: Descent, members: Sequence[Member], n: Tensor, objective: str
    ) -> None:
        self.stack, self.source, self.descent = stack, source, descent
        self.alpha, self.beta = (n.new_tensor([getattr(m, name) for m in members]) for name in ("alpha", "beta"))
        self.n, self._objective = n, OBJECTIVES[objective]
        self._alpha = self.alpha if bool((self.alpha != 0).any()) else None  # then there is no trace term to compute
        self.loss_sum = torch.zeros(len(members), device=n.device, dtype=torch.float64)
        self.compiled: Callable[[], Tensor] | None = None
        self.by_formulas: Callable[[Batch], Tensor] | None = None
        """Losses of a batch, whose gradients are then those of the leaves."""

    def step(self) -> None:
        if self.by_formulas is not None:
            self.loss_sum.add_(self.by_formulas(self.source.take()))
        else:
            loss = (self.compiled or self.loss)()
            self.descent.zero_grad()
            loss.backward()
        self.descent.step()

    def loss(self) -> Tensor:
        """The sum over members of their losses on the next batch: its gradient is each one's own."""
        objective = self._objective

        def loss(model: DeepBasisGP, n: Tensor, alpha: Tensor | None, beta: Tensor, batch: tuple[Any, ...]) -> Tensor:
            x, y, weight, whole_weight = batch
            whole = None if whole_weight is None else Whole(whole_weight, distributed.global_max)
            return objective(model, x, y, n, 0.0 if alpha is None else alpha, beta, weight, whole)

        own, batch = (self.n, self._alpha, self.beta), tuple(self.source.take())
        losses = self.stack.map(loss, own, (batch,)) if self.source.shared else self.stack.map(loss, (*own, batch))
        self.loss_sum.add_(losses.detach())
        return losses.sum()


class ExactSteps:
    """Algorithm 1, for every member: the gradient of -log p(y) / n, chunk by chunk, then the new solution.

    With a prior of the kernel's parameters it is the gradient of -log p(y, parameters) / n.
    """

    shared_loss = True
    """Of all rows, at every worker. A mean over workers would be another number, by rounding."""

    def __init__(self, stack: Stack, source: Batches, descent: Descent, n: Tensor, settings: Settings) -> None:
        self.stack, self.source, self.descent = stack, source, descent
        self._n, self._chunk_rows, self._team = n.double(), settings.chunk_rows, descent.team
        self._prior = settings.prior
        self.loss_sum = torch.zeros(stack.size, device=n.device, dtype=torch.float64)
        self.solution: exact.Solution | None = None

    def step(self) -> None:
        """Lines 2 to 5; or, with L-BFGS, one evaluation: then a member is where it was, or at a better place."""
        search = self.descent.search
        if search is None:
            assert self.solution is not None
            self.loss_sum.add_(self._gradient(self.solution))
            self.descent.step()
            self.solve()
            return
        search.propose()
        solution = self._solution()
        losses = self._gradient(solution)
        self._team.mean_gradients(self.descent.leaves.values())
        self._keep(solution, search.judge(losses))
        self.loss_sum.add_(search.value)

    def _gradient(self, solution: exact.Solution) -> Tensor:
        """Minus the likelihood by row, and the prior, of each member; its gradient is that of the leaves then."""
        n = self._n
        self.descent.zero_grad()
        squared = torch.zeros_like(self.loss_sum)
        for x, y, weight in self._chunks():
            loss, chunk_squared = self.stack.map(_chunk_loss, (solution, weight), (x, y))
            (loss / (n / self._team.size)).sum().backward()  # a sum over workers, of which the mean will be taken
            squared += chunk_squared
        self._team.sum_(squared)
        losses = self.stack.map(exact.model_shared_loss, (solution, n))
        prior = self.stack.map(exact.model_log_prior) if self._prior else torch.zeros_like(losses)
        ((losses - prior) / n).sum().backward()
        return -(self.stack.map(exact.model_likelihood, (solution, squared, n)) + prior.detach()) / n

    def solve(self) -> None:
        """Eq. 10 at the current parameters, for the next gradient; and as q(w), which the validation predicts with."""
        self._keep(self._solution())

    @torch.no_grad()
    def _solution(self) -> exact.Solution:
        total: Any = None
        for x, y, weight in self._chunks():
            chunk = self.stack.map(_statistics, (weight,), (x, y))
            total = chunk if total is None else total.plus(chunk)
        if not self._team.alone:
            total = exact.Statistics(*(part.contiguous() for part in total))  # vmap repeats what all members share
            self._team.sum_(*total)
        return self.stack.map(exact.model_solution, (total,))

    @torch.no_grad()
    def _keep(self, solution: exact.Solution, of: Tensor | None = None) -> None:
        """Of all members, or of those that are marked."""
        if self.solution is None:
            self.solution = exact.Solution(*(part.clone() for part in solution))
        for place, part in zip(self.solution, solution, strict=True):
            mine = part if of is None else torch.where(of.view(-1, *[1] * (part.dim() - 1)), part, place)
            place.copy_(mine)  # in place: a CUDA graph reads and writes fixed addresses
        for name, value in self.stack.map(exact.model_posterior, (self.solution,)).items():
            self.stack.with_axis(self.stack.leaves[f"posterior.{name}"].detach()).copy_(value)

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """x [b, d], y [b], and each member's weights [E, b]."""
        for x, y, weight, _ in self.source.chunks(self._chunk_rows):
            yield x, y, None if weight is None else weight.expand(self.stack.size, -1)


def _chunk_loss(
    model: DeepBasisGP, solution: exact.Solution, weight: Tensor | None, x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    return exact.model_chunk_loss(model, solution, x, y, weight)


def _statistics(model: DeepBasisGP, weight: Tensor | None, x: Tensor, y: Tensor) -> exact.Statistics:
    return exact.model_statistics(model, x, y, weight)


Scores = tuple[Tensor, Tensor, Tensor]
"""For each member: validation score, noise, and the pivot of a failed factorisation or 0."""


class Validation:
    """Validates at the end of an epoch, and keeps the parameters of each member's best one."""

    def __init__(self, steps: MinibatchSteps | ExactSteps, rows: Rows, settings: Settings) -> None:
        self.stack, self.average, self.team = steps.stack, steps.descent.average, steps.descent.team
        self.settings, self._loss_sum, self._shared_loss = settings, steps.loss_sum, steps.shared_loss
        device, members = self.stack.device, self.stack.size
        placed = rows.to(device, self.stack.dtype).part(self.team)
        self.chunks = _chunked(placed, settings.chunk_rows // members)
        self._weight = total_weight(rows).to(device)
        self.best = {name: value.clone() for name, value in self.stack.stacked().items()}
        self.best_score = torch.full_like(self._loss_sum, math.inf)
        self.active = torch.ones(members, dtype=torch.bool, device=device)
        self.compiled: Callable[[Batch], Scores] | None = None
        self.terms: Callable[[Tensor], Terms] | None = None
        """What stacked members say of rows, where kernels or formulas of our own do that."""

    @torch.no_grad()
    def close_epoch(self) -> Tensor:
        """[5, E]: summed training loss, validation score, noise, pivot of a failed factorisation or 0, improved or not.

        Device work alone.
        """
        if not self._shared_loss:
            self.team.mean_(self._loss_sum)
        with nullcontext() if self.average is None else self.average.in_place():
            score, noise, info = self._scores()
            better = score.isfinite() if self.settings.selection == "last" else score < self.best_score
            improved = self.active & better & self._loss_sum.isfinite()
            self.best_score.copy_(torch.where(improved, score, self.best_score))
            for name, value in self.stack.stacked().items():
                best = self.best[name]
                best.copy_(torch.where(improved.view(-1, *[1] * (value.dim() - 1)), value, best))
        return torch.stack([self._loss_sum, score, noise, info, improved.double()])

    def _scores(self) -> Scores:
        total: Any = torch.zeros_like(self._loss_sum)
        for chunk in self.chunks:
            score, noise, info = (self.compiled or self.score)(chunk)
            total = total + score
        self.team.sum_(total)
        return total / self._weight, noise, info

    def score(self, chunk: Batch) -> Scores:
        assert chunk.weight is not None
        weight = chunk.weight.expand(self.stack.size, -1)
        if self.terms is None:
            return self.stack.map(self._score_of_one, (weight,), chunk[:2])
        return self.stack.map(self._score_of_terms, (weight, tuple(self.terms(chunk.x))), (chunk.y,))

    def _score_of_one(self, model: DeepBasisGP, weight: Tensor, x: Tensor, y: Tensor) -> Scores:
        return self._score_of_terms(model, weight, model(x), y)

    def _score_of_terms(self, model: DeepBasisGP, weight: Tensor, terms: tuple[Tensor, ...], y: Tensor) -> Scores:
        t = Terms(*terms)
        if self.settings.objective == "mse":  # NOTE[DIFF]: the paper selects by NLL, which a DNN does not have
            rows = (y - t.mean).square()
        elif self.settings.selection == "crps":
            rows = model.likelihood.distribution(*model.predictive(t)).crps(y)
            rows = rows if rows.dim() == 1 else rows.mean(1)  # over several outputs
        else:
            rows = -model.log_density(t, y)
        rows = torch.where(weight > 0, weight * rows.double(), 0.0)
        return rows.sum(), model.noise().double(), t.info.double()


def _chunked(data: Batch, rows: int) -> list[Batch]:
    """Chunks of equal size, so that one compilation serves them all; the last is filled up with rows of weight 0."""
    rows = min(max(rows, _FEWEST_ROWS), len(data.y))
    x, y, weight = filled(*data[:3], -len(data.y) % rows)
    return [Batch(*chunk) for chunk in zip(x.split(rows), y.split(rows), weight.split(rows, -1), strict=True)]


def total_weight(data: Rows | Stream) -> Tensor:
    """Of all rows, or of those of each member [E]."""
    if isinstance(data, Rows) and data.weight is not None:
        return data.weight.double().sum(-1)
    total = float(len(data)) if isinstance(data, Rows) or data.total_weight is None else data.total_weight
    return torch.tensor(total, dtype=torch.float64)
