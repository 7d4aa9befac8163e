"""A wave: the members that train together on one device, one epoch after another."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from deepbasis.engine.batches import Resident, Rows
from deepbasis.engine.checkpoint import ACTIVE, FAILED, HISTORY, STOPPED, VALIDATION, WaveState, status_after, to_cpu
from deepbasis.engine.device import captured, compiled, training_precision
from deepbasis.engine.distributed import ALONE, Team
from deepbasis.engine.formulas.gradients import gradients_for
from deepbasis.engine.fused import steps as fused
from deepbasis.engine.members import Build, Member, Stack, kernels_compile
from deepbasis.engine.memory import is_out_of_memory
from deepbasis.engine.settings import Settings
from deepbasis.engine.steps import Descent, ExactSteps, MinibatchSteps, Validation, total_weight
from deepbasis.engine.streams import Batches, Stream, Streamed
from deepbasis.errors import first_line

log = logging.getLogger("deepbasis")

_EVALUATIONS, _HARDLY = 10, 1e-4  # for L-BFGS: 1e-4 nats by row


class Wave:
    """Trains `members` together. `train_epoch` does device work only; `end_epoch` reads the results, once per epoch.

    Nothing in here mixes members: the loss is a sum over them, clipping is per member, optimisers work element by
    element or matrix by matrix. So a member that fails turns only its own numbers into NaN.

    Several workers that share the rows (`team`) have the same wave, with the same parameters at all times: each finds
    the gradient of its rows, and steps with the mean over workers, which is the gradient of one worker with all rows.

    Nothing that a wave holds refers back to it, so that its memory is freed as soon as it is dropped.
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
        self.settings, self.device = settings, device
        dtype = settings.dtype
        data = data.seen_by(indices) if isinstance(data, Rows) else data
        validation = validation.seen_by(indices)
        self.stack = Stack([build(member) for member in members], device=device, dtype=dtype)
        batch_size = len(data) if settings.exact and isinstance(data, Rows) else settings.batch_size
        self.source: Batches
        if isinstance(data, Stream):
            self.source = Streamed(data, batch_size, device, dtype, team)
        else:
            seeds, rows = [member.seed for member in members], data.present().to(device, dtype)
            self.source = Resident(rows, seeds, batch_size, team, bootstrap=settings.bootstrap)
        arena = fused.arena_for(self.stack, self.source, settings)
        n = total_weight(data).to(device, dtype).expand(len(members))
        steps = 1 if settings.exact else self.source.steps * settings.passes
        self.descent = Descent(self.stack, settings, settings.epochs * steps, team)
        self.steps: MinibatchSteps | ExactSteps
        if settings.exact:
            self.steps = ExactSteps(self.stack, self.source, self.descent, n, settings)
        else:
            self.steps = MinibatchSteps(self.stack, self.source, self.descent, members, n, settings.objective)
        self.fused: fused.FusedSteps | None = None
        if arena is not None and isinstance(self.steps, MinibatchSteps):
            memories = (self.descent.optimisers, self.descent.average)
            self.fused = fused.FusedSteps(self.steps, *memories, arena, settings, settings.epochs * steps)
        self.validation = Validation(self.steps, validation, settings)
        if self.fused is not None:
            self.validation.terms = self.fused.terms
        elif isinstance(self.steps, MinibatchSteps):
            gradients = gradients_for(self.stack, self.source, settings, self.steps.alpha, self.steps.beta / n)
            if gradients is not None:
                self.steps.by_formulas, self.validation.terms = gradients.losses, gradients.terms
        self.step: Callable[[], None] = (self.fused or self.steps).step
        self.close: Callable[[], Tensor] = self.validation.close_epoch
        self.steps_this_epoch = 0
        self.state = WaveState.fresh(indices)

    # ---- an epoch ----------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Compile and capture what can be; otherwise continue without, and log one line."""
        if self.fused is not None:
            self._compile_kernels()
        if self.settings.compile and self.fused is None:
            self._compile()
        if isinstance(self.steps, ExactSteps):
            self.steps.solve()
        if self.device.type == "cuda" and self.settings.cuda_graph:
            self._capture()

    def train_epoch(self, interrupted: Callable[[], bool]) -> bool:
        """Every batch once, or `passes` times. False if the epoch was cut short."""
        self.steps.loss_sum.zero_()
        self.steps_this_epoch = 0
        first = self.settings.passes * self.state.epoch
        with self.training_precision():
            for number in range(first, first + self.settings.passes):
                self.source.start_epoch(number)
                while self._more():
                    if interrupted():
                        return False
                    self.step()
                    self.steps_this_epoch += 1
        return True

    def end_epoch(self) -> None:
        """Validate, keep the best parameters of each member, and decide which continue: the only synchronisation."""
        state = self.state
        state.epoch += 1
        state.step += self.steps_this_epoch
        results = self.close().cpu()
        results[0] /= max(1, self.steps_this_epoch)
        state.tensors["history"] = torch.cat([state.tensors["history"], results[: len(HISTORY)].T[:, None, :]], 1)
        best_epoch = state.tensors["best_epoch"]
        for k, (loss, score, _, info, improved) in enumerate(results.T.tolist()):
            if state.status[k] != ACTIVE:
                continue
            state.tensors["last_epoch"][k] = state.epoch
            if improved:
                state.tensors["best_score"][k], best_epoch[k] = score, state.epoch
            best = int(best_epoch[k]), float(state.tensors["best_score"][k])
            recent = state.tensors["history"][k, -(self.settings.patience or 1) :, VALIDATION].tolist()
            status = status_after(self.settings, state.epoch, *best, loss, recent)
            if status == FAILED:
                self._end(k, FAILED, _failure(state.epoch, loss, score, int(info)))
            elif status == STOPPED:
                self._end(k, STOPPED, f"no better validation score for {state.epoch - int(best_epoch[k])} epochs")
            elif self.settings.optimiser == "lbfgs" and _has_settled(state.tensors["history"][k, :, 0]):
                self._end(k, STOPPED, "the likelihood no longer grows")

    def _end(self, k: int, status: str, reason: str) -> None:
        self.state.status[k], self.state.reason[k] = status, reason
        self.validation.active[k] = False

    @property
    def active(self) -> int:
        return self.state.status.count(ACTIVE)

    def _more(self) -> bool:
        return self.steps_this_epoch == 0 if self.settings.exact else self.source.advance()

    # ---- compilation, capture and precision --------------------------------------------------------------------

    def _compile(self) -> None:
        """The steps and the validation. Where kernels take the steps, to compile the rest would not pay."""
        if isinstance(self.steps, ExactSteps):
            log.warning("exact training is not compiled: continuing eagerly")
            return
        try:
            score = compiled(self.validation.score, self.device)
            loss = compiled(self.steps.loss, self.device)
            with self.training_precision():
                self._rewind()
                loss().backward()
            with torch.no_grad():
                score(self.validation.chunks[0])
        except Exception as error:
            if is_out_of_memory(error):
                raise
            log.warning("torch.compile failed (%s): continuing eagerly", first_line(error))
            return
        finally:
            self.descent.zero_grad()
        self.validation.compiled = score
        self.steps.compiled = loss
        if self.device.type == "cuda":
            self.descent.compile()  # on a CPU the fused step is as fast

    def _compile_kernels(self) -> None:
        assert self.fused is not None
        if not kernels_compile(self.fused.compile, "continuing the plain way"):
            self.fused.release()
            self.fused, self.validation.terms, self.step = None, None, self.steps.step

    def _capture(self) -> None:
        """Record a step and the validation as CUDA graphs. What the warm-up changed is put back."""
        before = self.export()
        step, close, zero_grad = self.step, self.close, self.descent.zero_grad
        try:
            with self.training_precision():
                self.step = captured(step, self._rewind, self.device)
            self.close = captured(close, zero_grad, self.device)
            if not self.source.shared:
                self.source.recorded = captured(self.source.reorder, zero_grad, self.device)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            log.warning("CUDA graph capture failed (%s): continuing eagerly", first_line(error))
            self.step, self.close, self.source.recorded = step, close, None
            torch.cuda.synchronize(self.device)
        self.restore(before)

    def _rewind(self) -> None:
        self.descent.zero_grad()  # a graph's gradients have their places in it
        self.source.start_epoch(0)
        self.source.advance()

    def training_precision(self) -> AbstractContextManager[None]:
        return training_precision(self.settings.precision, self.stack.template.backbone)

    # ---- memory ------------------------------------------------------------------------------------------------

    def _places(self) -> dict[str, Tensor]:
        """All that training changes on the device, each with the member axis in front."""
        groups = {"parameters": self.stack.leaves, **self.descent.memory()}
        places = {
            f"{group}/{name}": self.stack.with_axis(value.detach())
            for group, values in groups.items()
            for name, value in values.items()
        }
        return places | {f"best/{name}": value for name, value in self.validation.best.items()}

    def export(self) -> WaveState:
        """Everything that `restore` needs to continue from here, on the CPU."""
        return self.state.with_tensors(to_cpu({**self.state.tensors, **self._places()}))

    def fits(self, state: WaveState) -> bool:
        """Whether a saved state is one of this wave, after as many steps."""
        mine, theirs = (
            {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items() if name != "history"}
            for tensors in ({**self.state.tensors, **self._places()}, state.tensors)
        )
        steps = 1 if self.settings.exact else self.source.steps * self.settings.passes
        return mine == theirs and (isinstance(self.source, Streamed) or state.step == state.epoch * steps)

    @torch.no_grad()
    def restore(self, state: WaveState) -> None:
        for name, place in self._places().items():
            place.copy_(state.tensors[name])
        kept = {name: state.tensors[name] for name in self.state.tensors}
        self.state = state.with_tensors(to_cpu(kept))
        self.validation.best_score.copy_(state.tensors["best_score"])
        self.validation.active.copy_(torch.tensor([status == ACTIVE for status in state.status]))
        self.descent.set_step(state.step)
        if self.fused is not None:
            self.fused.set_step(state.step)
        if isinstance(self.steps, ExactSteps) and self.steps.solution is not None:
            self.steps.solve()

    def ended(self) -> list[WaveState]:
        """Each member on its own, without what it would need to continue."""
        best = {f"best/{name}": value for name, value in self.validation.best.items()}
        state = self.state.with_tensors(to_cpu({**self.state.tensors, **best}))
        return [state.select([k]) for k in range(self.stack.size)]


def _has_settled(losses: Tensor) -> bool:
    """Whether the loss by row has hardly fallen in the last evaluations."""
    return len(losses) > _EVALUATIONS and bool(losses[-1 - _EVALUATIONS] - losses[-1] < _HARDLY)


def _failure(epoch: int, loss: float, score: float, info: int) -> str:
    if info:
        return f"epoch {epoch}: the inducing points' kernel matrix could not be factorised (pivot {info})"
    return f"epoch {epoch}: not finite (training loss {loss:g}, validation score {score:g})"
