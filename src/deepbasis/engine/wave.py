"""A wave: the members that train together on one device, one epoch after another."""

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from deepbasis.engine import distributed
from deepbasis.engine.averaging import Average
from deepbasis.engine.batches import Batch, Batches, Rows
from deepbasis.engine.checkpoint import ACTIVE, FAILED, HISTORY, STOPPED, WaveState, empty_history, to_cpu
from deepbasis.engine.device import captured, compiled, training_precision
from deepbasis.engine.distributed import ALONE, Team
from deepbasis.engine.members import Build, Member, Stack
from deepbasis.engine.memory import is_out_of_memory
from deepbasis.engine.optimiser import AdamW, Schedule, clip_per_member
from deepbasis.engine.settings import Settings
from deepbasis.engine.streams import Stream
from deepbasis.gp import exact
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.objectives import Whole
from deepbasis.registry import OBJECTIVES

log = logging.getLogger("deepbasis")

_FEWEST_ROWS = 1024  # of a validation chunk, however many members there are


class Wave:
    """Trains `members` together. `train_epoch` does device work alone; `end_epoch` reads the results, once an epoch.

    Nothing in here mixes members: the loss is a sum over them, clipping is per member, AdamW works element by element.
    So a member that fails turns its own numbers into NaN, and no others.

    Several workers that share the rows (`team`) have the same wave, with the same parameters at all times: each finds
    the gradient of its rows, and steps with the mean over workers, which is the gradient of one worker with all rows.
    """

    def __init__(
        self,
        build: Build,
        indices: list[int],
        members: Sequence[Member],
        data: Rows | Stream,
        validation: Rows,
        settings: Settings,
        device: torch.device,
        team: Team = ALONE,
    ) -> None:
        self.settings = settings
        self.device = device
        self.team = team
        dtype = settings.dtype
        self.stack = Stack([build(member) for member in members], device=device, dtype=dtype)
        batch_size = len(data) if settings.exact and isinstance(data, Rows) else settings.batch_size
        seeds = [member.seed for member in members]
        self.source: Batches = data.batches(seeds, batch_size, device, dtype, team, bootstrap=settings.bootstrap)
        self._validation = _chunked(validation.to(device, dtype).part(team), settings.chunk_rows // len(members))
        self._validation_weight = _total_weight(validation).to(device)
        self.alpha = torch.tensor([member.alpha for member in members], device=device, dtype=dtype)
        self.beta = torch.tensor([member.beta for member in members], device=device, dtype=dtype)
        self.n = _total_weight(data).to(device, dtype)
        self.loss: Callable[[], Tensor] = self._eager_loss
        self.score: Callable[[Batch], tuple[Tensor, Tensor, Tensor]] = self._eager_score

        groups = self.stack.template.parameter_groups()
        trained = {k: p for k, p in self.stack.leaves.items() if not (settings.exact and groups[k] == "posterior")}
        self.optimiser = AdamW(
            trained,
            groups,
            learning_rate=settings.learning_rate,
            posterior_learning_rate=settings.posterior_learning_rate,
            noise_learning_rate=settings.noise_learning_rate,
            kernel_learning_rate=settings.kernel_learning_rate,
            weight_decay=settings.weight_decay,
        )
        self.average = None if settings.average is None else Average(trained, settings.average)
        steps = 1 if settings.exact else self.source.steps * settings.passes
        self.schedule = Schedule(self.optimiser, settings.schedule, settings.warmup_steps, settings.epochs * steps)
        self._loss_sum = torch.zeros(len(members), device=device, dtype=torch.float64)
        self._solution: exact.Solution | None = None
        self.step: Callable[[], None] = self._exact_step if settings.exact else self._minibatch_step
        self.close: Callable[[], Tensor] = self._eager_close
        self._steps_this_epoch = 0
        self.state = WaveState.fresh(indices)
        self.state.tensors = {
            "best_score": torch.full((len(members),), math.inf, dtype=torch.float64),
            "best_epoch": torch.zeros(len(members), dtype=torch.int64),
            "last_epoch": torch.zeros(len(members), dtype=torch.int64),
            "history": empty_history(len(members)),
        }
        self._best = {k: p.clone() for k, p in self.stack.stacked().items()}
        self._best_score = torch.full_like(self._loss_sum, math.inf)
        self._active = torch.ones(len(members), dtype=torch.bool, device=device)

    # ---- an epoch ----------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Compile and capture what can be; go on without, and say so in one line, where it cannot."""
        if self.settings.compile:
            self._compile()
        if self.settings.exact:
            self._solve()
        if self.device.type == "cuda" and self.settings.cuda_graph:
            self._capture()

    def train_epoch(self, interrupted: Callable[[], bool]) -> bool:
        """Every batch once, or `passes` times. False if the epoch was cut short."""
        self._loss_sum.zero_()
        self._steps_this_epoch = 0
        first = self.settings.passes * self.state.epoch
        with self.training_precision():
            for number in range(first, first + self.settings.passes):
                self.source.start_epoch(number)
                while self._more():
                    if interrupted():
                        return False
                    self.step()
                    self._steps_this_epoch += 1
        return True

    def end_epoch(self) -> None:
        """Validate, keep the best parameters of each member, and decide who goes on. The one synchronisation."""
        state = self.state
        state.epoch += 1
        state.step += self._steps_this_epoch
        told = self.close().cpu()
        told[0] /= max(1, self._steps_this_epoch)
        state.tensors["history"] = torch.cat([state.tensors["history"], told[: len(HISTORY)].T[:, None, :]], 1)
        best_epoch = state.tensors["best_epoch"]
        for k, (loss, score, _, info, improved) in enumerate(told.T.tolist()):
            if state.status[k] != ACTIVE:
                continue
            state.tensors["last_epoch"][k] = state.epoch
            if improved:
                state.tensors["best_score"][k], best_epoch[k] = score, state.epoch
            elif not (math.isfinite(loss) and math.isfinite(score)):
                state.status[k], state.reason[k] = FAILED, _failure(state.epoch, loss, score, int(info))
                self._active[k] = False
            elif self.settings.patience is not None and state.epoch - best_epoch[k] >= self.settings.patience:
                state.status[k] = STOPPED
                state.reason[k] = f"no better validation score for {self.settings.patience} epochs"
                self._active[k] = False

    @property
    def active(self) -> int:
        return self.state.status.count(ACTIVE)

    def _more(self) -> bool:
        return self._steps_this_epoch == 0 if self.settings.exact else self.source.advance()

    # ---- one step; device work alone ---------------------------------------------------------------------------

    def _minibatch_step(self) -> None:
        """Algorithm 3, lines 2 to 7, for every member."""
        loss = self.loss()
        self.optimiser.zero_grad()
        loss.backward()
        self._descend()

    def _eager_loss(self) -> Tensor:
        """The sum over members of their losses on the next batch: its gradient is each one's own."""
        batch = tuple(self.source.take())
        objective = OBJECTIVES[self.settings.objective]

        def loss(
            model: DeepBasisGP,
            alpha: Tensor,
            beta: Tensor,
            x: Tensor,
            y: Tensor,
            weight: Tensor | None,
            whole_weight: Tensor | None,
            n: Tensor,
        ) -> Tensor:
            whole = None if whole_weight is None else Whole(whole_weight, distributed.global_max)
            return objective(model, x, y, n, alpha, beta, weight, whole)

        if self.source.shared:
            losses = self.stack.map(loss, (self.alpha, self.beta), (*batch, self.n))
        else:
            losses = self.stack.map(loss, (self.alpha, self.beta, *batch), (self.n,))
        self._loss_sum.add_(losses.detach())
        return losses.sum()

    def _exact_step(self) -> None:
        """Algorithm 1, lines 2 to 5: the gradient of -log p(y) / n, chunk by chunk, then the new solution."""
        solution = self._solution
        assert solution is not None
        n = self.n.double()
        self.optimiser.zero_grad()
        squared = torch.zeros_like(self._loss_sum)
        for x, y, weight, _ in self.source.chunks(self.settings.chunk_rows):
            loss, chunk_squared = self.stack.map(exact.model_chunk_loss, (solution,), (x, y, weight))
            (loss / (n / self.team.size)).sum().backward()  # a sum over workers, of which the mean will be taken
            squared += chunk_squared
        self.team.sum_(squared)
        losses = self.stack.map(exact.model_shared_loss, (solution,), (n,))
        (losses / n).sum().backward()
        self._loss_sum.sub_(self.stack.map(exact.model_likelihood, (solution, squared), (n,)) / n)
        self._descend()
        self._solve()

    def _descend(self) -> None:
        leaves = self.optimiser.leaves.values()
        self.team.mean_gradients(leaves)
        if self.settings.clip is not None:
            clip_per_member([self.stack.with_axis(p.grad) for p in leaves if p.grad is not None], self.settings.clip)
        self.schedule.apply()
        self.optimiser.step()
        if self.average is not None:
            self.average.update()

    @torch.no_grad()
    def _solve(self) -> None:
        """Eq. 10 at the present parameters, for the next gradient; and as q(w), which the validation predicts with."""
        total: Any = None
        for x, y, weight, _ in self.source.chunks(self.settings.chunk_rows):
            chunk = self.stack.map(exact.model_statistics, (), (x, y, weight))
            total = chunk if total is None else total.plus(chunk)
        if not self.team.alone:
            total = exact.Statistics(*(part.contiguous() for part in total))  # vmap repeats what all members have
            self.team.sum_(*total)
        solution = self.stack.map(exact.model_solution, (total,))
        if self._solution is None:
            self._solution = exact.Solution(*(part.clone() for part in solution))
        for place, part in zip(self._solution, solution, strict=True):
            place.copy_(part)  # in place: a CUDA graph reads and writes fixed addresses
        for name, value in self.stack.map(exact.model_posterior, (solution,)).items():
            self.stack.with_axis(self.stack.leaves[f"posterior.{name}"].detach()).copy_(value)

    # ---- validation --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _eager_close(self) -> Tensor:
        """Validate and keep the best: device work alone.

        [5, E]: summed training loss, validation score, noise, pivot of a failed factorisation or 0, improved or not.
        """
        self.team.mean_(self._loss_sum)
        with nullcontext() if self.average is None else self.average.in_place():
            score, noise, info = self._validate()
            better = score.isfinite() if self.settings.selection == "last" else score < self._best_score
            improved = self._active & better & self._loss_sum.isfinite()
            self._best_score.copy_(torch.where(improved, score, self._best_score))
            for name, value in self.stack.stacked().items():
                best = self._best[name]
                best.copy_(torch.where(improved.view(-1, *[1] * (value.dim() - 1)), value, best))
        return torch.stack([self._loss_sum, score, noise, info, improved.double()])

    def _validate(self) -> tuple[Tensor, Tensor, Tensor]:
        """The validation score, noise and info of each member."""
        total: Any = torch.zeros_like(self._loss_sum)
        for chunk in self._validation:
            score, noise, info = self.score(chunk)
            total = total + score
        self.team.sum_(total)
        return total / self._validation_weight, noise, info

    def _eager_score(self, chunk: Batch) -> tuple[Tensor, Tensor, Tensor]:
        return self.stack.map(self._score_of_one, (), chunk[:3])

    def _score_of_one(self, model: DeepBasisGP, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        t = model(x)
        if self.settings.objective == "mse":
            rows = (y - t.mean).square()
        else:
            predicted = model.likelihood.distribution(*model.predictive(t))
            rows = predicted.crps(y) if self.settings.selection == "crps" else -predicted.log_prob(y)
        rows = torch.where(weight > 0, weight * rows.double(), 0.0)
        return rows.sum(), model.noise().double(), t.info.double()

    # ---- compilation, capture and precision --------------------------------------------------------------------

    def _compile(self) -> None:
        if self.settings.exact:
            log.warning("exact training is not compiled: going on eagerly")
            return
        try:
            loss = compiled(self._eager_loss, self.device)
            score = compiled(self._eager_score, self.device)
            with self.training_precision():
                self._rewind()
                loss().backward()
            with torch.no_grad():
                score(self._validation[0])
        except Exception as error:
            if is_out_of_memory(error):
                raise
            log.warning("torch.compile failed (%s): going on eagerly", _first_line(error))
            return
        finally:
            self.optimiser.zero_grad()
        self.loss, self.score = loss, score
        if self.device.type == "cuda":
            self.optimiser.compile()  # on a CPU the fused step is as fast

    def _capture(self) -> None:
        """Record a step and the validation as CUDA graphs. What the warm-up changed is put back."""
        before = self.export()
        step, close, reorder = self.step, self.close, self.source.reorder
        try:
            with self.training_precision():
                self.step = captured(step, self._rewind, self.device)
            self.close = captured(close, self.optimiser.zero_grad, self.device)
            if not self.source.shared:
                self.source.reorder = captured(reorder, self.optimiser.zero_grad, self.device)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            log.warning("CUDA graph capture failed (%s): going on eagerly", _first_line(error))
            self.step, self.close, self.source.reorder = step, close, reorder
            torch.cuda.synchronize(self.device)
        self.restore(before)

    def _rewind(self) -> None:
        self.optimiser.zero_grad()  # a graph's gradients have their places in it
        self.source.start_epoch(0)
        self.source.advance()

    def training_precision(self) -> AbstractContextManager[None]:
        return training_precision(self.settings.precision, self.stack.template.backbone)

    # ---- memory ------------------------------------------------------------------------------------------------

    def export(self) -> WaveState:
        """Everything that `restore` needs to go on from here, on the CPU."""
        state = self.state
        moments: dict[str, Tensor] = {}
        for name in self.optimiser.leaves:
            for prefix, moment in (("first", self.optimiser.first), ("second", self.optimiser.second)):
                moments[f"{prefix}/{name}"] = self.stack.with_axis(moment[name])
            if self.average is not None:
                moments[f"average/{name}"] = self.stack.with_axis(self.average.mean[name])
        tensors = {
            **{f"parameters/{k}": v for k, v in self.stack.stacked().items()},
            **moments,
            **{f"best/{k}": v for k, v in self._best.items()},
            **{k: state.tensors[k] for k in ("best_score", "best_epoch", "last_epoch", "history")},
        }
        return WaveState(
            list(state.indices), state.epoch, state.step, list(state.status), list(state.reason), to_cpu(tensors)
        )

    @torch.no_grad()
    def restore(self, state: WaveState) -> None:
        self.state = WaveState(**{**vars(state), "tensors": to_cpu(state.tensors)})
        self.stack.load(state.group("parameters"))
        for name, value in state.group("best").items():
            self._best[name].copy_(value)
        self._best_score.copy_(state.tensors["best_score"])
        self._active.copy_(torch.tensor([status == ACTIVE for status in state.status]))
        for prefix, moment in (("first", self.optimiser.first), ("second", self.optimiser.second)):
            for name, value in state.group(prefix).items():
                self.stack.with_axis(moment[name]).copy_(value)
        self.optimiser.set_count(state.step)
        self.schedule.set_step(state.step)
        if self.average is not None:
            self.average.set_step(state.step)
            for name, value in state.group("average").items():
                self.stack.with_axis(self.average.mean[name]).copy_(value)
        if self._solution is not None:
            self._solve()

    def ended(self) -> list[WaveState]:
        """Each member on its own, without its moments."""
        state = self.export()
        for name in [k for k in state.tensors if k.startswith(("first/", "second/", "average/", "parameters/"))]:
            del state.tensors[name]
        return [state.select([k]) for k in range(self.stack.size)]


def _chunked(data: Batch, rows: int) -> list[Batch]:
    """Chunks of one size, so that one compilation serves them all; the last is filled up with rows of weight 0."""
    rows = min(max(rows, _FEWEST_ROWS), len(data.y))
    weight = torch.ones_like(data.y) if data.weight is None else data.weight
    missing = -len(data.y) % rows
    x = torch.cat([data.x, data.x[:1].expand(missing, -1)])
    y = torch.cat([data.y, data.y[:1].expand(missing)])
    weight = torch.cat([weight, weight.new_zeros(missing)])
    return [Batch(*parts) for parts in zip(x.split(rows), y.split(rows), weight.split(rows), strict=True)]


def _total_weight(data: Rows | Stream) -> Tensor:
    if isinstance(data, Rows) and data.weight is not None:
        return data.weight.double().sum()
    total = float(len(data)) if isinstance(data, Rows) or data.total_weight is None else data.total_weight
    return torch.tensor(total, dtype=torch.float64)


def _failure(epoch: int, loss: float, score: float, info: int) -> str:
    if info:
        return f"epoch {epoch}: the inducing points' kernel matrix could not be factorised (pivot {info})"
    return f"epoch {epoch}: not finite (training loss {loss:g}, validation score {score:g})"


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
