"""The one engine: E members (E >= 1), stacked and trained together (Algorithms 1 and 3).

    outcomes = train(build, members, Rows(x, y), Rows(x_val, y_val), Settings(epochs=100))

A member's start, its rows and their order depend on its seed alone, so it ends the same alone or among eighty. Several
workers (`distributed.start()` under torchrun) share the rows of every batch, or the members.
"""

import gc
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from os import PathLike, fspath

import torch

from deepbasis import __version__, storage
from deepbasis.engine import device as devices
from deepbasis.engine import wire
from deepbasis.engine.batches import Rows
from deepbasis.engine.checkpoint import ACTIVE, FAILED, FINISHED, Check, Outcome, RunState, WaveState, outcome_of
from deepbasis.engine.checks import Expected
from deepbasis.engine.distributed import ALONE, Team
from deepbasis.engine.members import Build, Member
from deepbasis.engine.memory import available_bytes, is_out_of_memory, members_at_a_time
from deepbasis.engine.settings import Settings
from deepbasis.engine.streams import Stream
from deepbasis.engine.wave import Wave
from deepbasis.errors import FileFormatError, InputError, check_choice, check_positive_int
from deepbasis.gp.exact import check_exact
from deepbasis.gp.model import DeepBasisGP
from deepbasis.progress import EpochReport, Progress

log = logging.getLogger("deepbasis")

wire.allow(RunState, WaveState)

_MEMBERS_OF_A_THREAD = 2  # whatever the number of cores, so that results do not depend on it


def train(
    build: Build,
    members: Sequence[Member],
    data: Rows | Stream,
    validation: Rows,
    settings: Settings | None = None,
    *,
    device: torch.device | str = "cpu",
    checkpoint: str | PathLike[str] | None = None,
    checkpoint_seconds: float = 60.0,
    progress: Progress | None = None,
    wave_size: int | None = None,
    threads: int | None = None,
    team: Team = ALONE,
    spread: str = "auto",
    clock: Callable[[], float] = time.monotonic,
    deadline: float | None = None,
) -> list[Outcome]:
    """Train every member and return their outcomes, in order.

    `build(member)` makes a member's model; the engine stacks them. With `checkpoint`, the run is written there at most
    every `checkpoint_seconds` and when it ends; the same call then resumes from it. Two runs cannot have one checkpoint
    at the same time. Ctrl-C ends the run after the current step, with the best parameters so far; a second one ends it
    at once. `wave_size` is the number of members at a time; by default as many as fit. `progress` is called after each
    epoch. Speed and seconds are by the `clock`; at its `deadline` the run ends as if it were interrupted.

    On a CPU, `threads` trains so many waves at a time, of two members each, with one of torch's threads for each wave:
    where products are small torch's own threads mostly wait for each other, and beside other work for long.

    Every worker of a `team` makes the same call and gets the same outcomes. What is spread over them is the members,
    each worker training its own (`spread="members"`, the default for `Rows` where there are enough), or the rows of
    every batch (`spread="rows"`, the default otherwise), with the same result as one worker. The first worker writes
    the checkpoint and calls `progress`; a run may be resumed by any number of workers.
    """
    settings = settings or Settings()
    place = torch.device(device)
    members = list(members)
    if not members:
        raise InputError("train needs at least one member, got none")
    columns = data.columns if isinstance(data, Stream) else data.x.shape[1]
    if columns != validation.x.shape[1]:
        raise InputError(f"the training data have {columns} columns, the validation data {validation.x.shape[1]}")
    if settings.bootstrap and isinstance(data, Stream):
        raise InputError(
            f"bootstrap needs rows in memory: every member sees the same batches of stream {data.name!r}; "
            "set bootstrap=False, or train on Rows"
        )
    if settings.exact:
        check_exact(build(members[0]))
    by_members = _by_members(spread, team, members, data)
    file = (checkpoint, checkpoint_seconds)
    run = _Run(build, members, data, validation, settings, place, progress, *file, clock, threads, team, by_members)
    with interrupts() as interrupted, torch.enable_grad(), ExitStack() as held:  # a caller's no_grad() is not for us
        if checkpoint is not None:
            team.from_first(lambda: held.enter_context(storage.reserved(checkpoint)))
        run.go(lambda: interrupted() or (deadline is not None and clock() >= deadline), wave_size)
    return run.outcomes()


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a flag that the engine checks between steps; the second one raises as usual."""
    seen = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # handlers can be set only in the main thread
        yield seen.is_set
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: object) -> None:
        seen.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield seen.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def _by_members(spread: str, team: Team, members: list[Member], data: Rows | Stream) -> bool:
    check_choice("spread", spread, {"auto", "rows", "members"})
    if spread == "members" and isinstance(data, Stream) and not team.alone:
        raise InputError("spread='members' needs data in memory: of a stream each worker has a part of the rows alone")
    if spread == "auto":
        return isinstance(data, Rows) and not team.alone and len(members) >= team.size
    return spread == "members" and not team.alone


@dataclass
class _Run:
    """Waves of members, one after another, and what must be remembered between them."""

    build: Build
    members: list[Member]
    data: Rows | Stream
    validation: Rows
    settings: Settings
    device: torch.device
    progress: Progress | None
    path: str | PathLike[str] | None
    """Of the checkpoint."""
    every_seconds: float
    clock: Callable[[], float]
    threads: int | None
    team: Team
    """Every worker."""
    by_members: bool
    """Whether each worker has members of its own."""

    def __post_init__(self) -> None:
        self.together = ALONE if self.by_members else self.team  # those that take each step together
        self.state = RunState(identity={}, pending=[])
        self.cut_short: list[WaveState] = []
        if self.threads is not None:
            check_positive_int("threads", self.threads)
            if self.device.type != "cpu" or isinstance(self.data, Stream):
                raise InputError("threads are for rows in memory, on a CPU; leave them out")
        self._written = self.clock()
        self._epoch_seconds = 0.0

    def go(self, interrupted: Callable[[], bool], wave_size: int | None) -> None:
        self._check_that_all_are_alike(wave_size)
        self.state = self._beginning(wave_size)
        interrupted = self.together.now_and_then(interrupted)
        while self.state.pending and not interrupted():
            try:
                self._train_waves(interrupted)
            except Exception as error:
                if not is_out_of_memory(error) or len(self.state.pending[0].indices) == 1 or not self.together.alone:
                    raise
                self._halve()
            if self.settings.compile:
                gc.collect()  # what was compiled refers back to the wave, whose memory is wanted
        if self.by_members:
            self._gather()

    def _beginning(self, wave_size: int | None) -> RunState:
        """The state in the file, or every member before its first epoch; of these, what this worker is to train."""
        path, identity = self.path, {} if self.path is None else self._identity()
        saved = None if path is None else self.team.from_first(lambda: RunState.load(path, identity, self._check()))
        everyone = list(range(len(self.members)))
        if not self.by_members:
            return saved or RunState(identity, self._waves(everyone, wave_size))
        if saved is not None:
            return saved.share(self.team.rank, self.team.size)
        return RunState(identity, self._waves(everyone[self.team.rank :: self.team.size], wave_size))

    def _check(self) -> Check:
        start = dict(self.build(self.members[0]).named_parameters())
        return Expected(len(self.members), self.settings, start).check

    def _gather(self) -> None:
        """The outcomes of all workers' members, at every worker."""
        found = self.team.gather_objects((self.state, self.cut_short))
        self.state = RunState.joined([state for state, _ in found])
        self.cut_short = [wave for _, cut_short in found for wave in cut_short]
        if self.path is not None:
            path = self.path
            self.team.from_first(lambda: self.state.save_joined(path))

    def outcomes(self) -> list[Outcome]:
        states = {state.indices[0]: state for state in self.state.ended}
        for state in [*self.state.pending, *self.cut_short]:  # an interrupted run has these
            for k, index in enumerate(state.indices):
                states[index] = state.select([k])
        outcomes = [outcome_of(self.members[k], states[k]) for k in range(len(self.members))]
        for outcome in outcomes:
            if outcome.status == FAILED and self.team.first:
                log.warning("member %s failed at %s", outcome.member, outcome.reason)
        return outcomes

    def _train_waves(self, interrupted: Callable[[], bool]) -> None:
        waves = [self._wave(state) for state in self.state.pending[: self.threads or 1]]
        with devices.threads(self.threads) as each:
            going = waves
            while going := [wave for wave in going if wave.active and wave.state.epoch < self.settings.epochs]:
                start = self.clock()
                if not all(each(lambda wave: wave.train_epoch(interrupted), going)):
                    # The file keeps its last state, at the end of an epoch; what is returned is the best so far.
                    self.cut_short = [wave.export() for wave in waves]
                    return
                each(Wave.end_epoch, going)
                self._tell(waves, self.clock() - start)
                due = self.clock() - self._written >= self.every_seconds
                if self.together.agree(due and self.together.first):  # their clocks differ
                    self.state.pending[: len(waves)] = [wave.export() for wave in waves]
                    self._write()
        for wave in waves:
            wave.state.status = [FINISHED if status == ACTIVE else status for status in wave.state.status]
            self.state.ended += wave.ended()
        del self.state.pending[: len(waves)]
        self._write()

    def _wave(self, state: WaveState) -> Wave:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        members = [self.members[k] for k in state.indices]
        data = (self.data, self.validation)
        wave = Wave(self.build, state.indices, members, *data, self.settings, self.device, self.together)
        if state.epoch > 0:
            if not wave.fits(state):
                raise FileFormatError(
                    f"{self.path} does not hold what this run's optimiser has to remember: delete it to start again"
                )
            wave.restore(state)
        wave.prepare()
        return wave

    def _write(self) -> None:
        if self.path is not None:
            path = f"{fspath(self.path)}.worker{self.team.rank}" if self.by_members else self.path
            self.together.from_first(lambda: self.state.save(path))
        self._written = self.clock()

    def _halve(self) -> None:
        """Out of memory: continue from the last saved state, with half as many members at a time."""
        state = self.state.pending.pop(0)
        everyone = list(range(len(state.indices)))
        half = len(everyone) // 2
        log.warning("out of memory with %d members at a time: continuing with %d", len(everyone), half)
        self.state.pending[:0] = [state.select(everyone[:half]), state.select(everyone[half:])]

    def _waves(self, indices: list[int], wave_size: int | None) -> list[WaveState]:
        size = self._fitting(len(indices)) if wave_size is None else check_positive_int("wave_size", wave_size)
        if wave_size is None and self.threads is not None:
            size = min(size, _MEMBERS_OF_A_THREAD)
        return [WaveState.fresh(indices[k : k + size]) for k in range(0, len(indices), size)]

    def _fitting(self, count: int) -> int:
        settings = self.settings
        batch = self.together.share(min(settings.batch_size, len(self.data)))
        rows = settings.chunk_rows if settings.exact else batch
        model, columns = self.build(self.members[0]), self.validation.x.shape[1]
        free = available_bytes(self.device)
        fitting = members_at_a_time(count, model, rows, columns, settings.dtype, free)
        return min(self.together.gather_objects(fitting))

    def _check_that_all_are_alike(self, wave_size: int | None) -> None:
        """Workers that do different things would wait for each other forever."""
        if self.team.alone:
            return
        mine = {
            "members": [_plain(member) for member in self.members],
            "settings": _plain(self.settings),
            "training rows": len(self.data),
            "validation rows": len(self.validation),
            "checkpoint": None if self.path is None else fspath(self.path),
            "wave_size": wave_size,
            "spread": self.by_members,
        }
        for rank, theirs in enumerate(self.team.gather_objects(mine)):
            different = [name for name in mine if mine[name] != theirs[name]]
            if different:
                name = different[0]
                raise InputError(
                    f"every worker must make the same call, but {name} is {mine[name]} at worker {self.team.rank} and "
                    f"{theirs[name]} at worker {rank}"
                )

    def _identity(self) -> dict[str, object]:
        return {
            "version": __version__,
            "settings": _plain(self.settings),
            "training data": self.data.fingerprint(),
            "validation data": self.validation.fingerprint(),
            "members": [_plain(member) for member in self.members],  # the data may be in them
            "model": _description(self.build(self.members[0])),
        }

    def _tell(self, waves: Sequence[Wave], seconds: float) -> None:
        if self.progress is None or not self.team.first:
            return
        self._epoch_seconds = seconds if self._epoch_seconds == 0.0 else 0.8 * self._epoch_seconds + 0.2 * seconds
        rows = (isinstance(self.data, Stream) and self.data.epoch_rows) or len(self.data)
        turns = -(-len(self.state.pending) // len(waves))
        epoch, active = max(wave.state.epoch for wave in waves), sum(wave.active for wave in waves)
        self.progress(
            EpochReport(
                epoch=epoch,
                epochs=self.settings.epochs,
                active=active,
                members=sum(len(wave.state.indices) for wave in waves),
                best=min(float(wave.state.tensors["best_score"].min()) for wave in waves),
                rows_per_second=self.settings.passes * rows * active / max(seconds, 1e-9),
                seconds_left=self._epoch_seconds * (turns * self.settings.epochs - epoch),
                turns=turns,
                score=self.settings.score,
            )
        )


def _plain(values: Settings | Member) -> dict[str, object]:
    """As JSON gives it back: numpy's numbers as Python's, tuples as lists."""
    plain = {k: v.item() if hasattr(v, "item") else v for k, v in asdict(values).items()}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}


def _description(model: DeepBasisGP) -> dict[str, str]:
    """Distinguishes models: the shape and a digest of the initial values of each parameter and buffer; the jitter."""
    values = {name: f"{list(p.shape)} {storage.digest({name: p}, {})[:8]}" for name, p in model.state_dict().items()}
    return {**values, "jitter": str(getattr(model.expansion, "jitter", None))}
