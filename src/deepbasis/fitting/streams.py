"""From a table in files to what the engine trains on: one pass for the statistics, then a stream of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from deepbasis.engine.batches import Rows
from deepbasis.engine.distributed import ALONE, Team
from deepbasis.engine.members import Member
from deepbasis.engine.memory import bytes_per_member
from deepbasis.engine.streams import Stream
from deepbasis.errors import InputError
from deepbasis.fitting.budget import Budget, Sizes
from deepbasis.fitting.decide import hold_out, needs_line, scaling
from deepbasis.fitting.plan import Facts, Plan
from deepbasis.fitting.spec import Spec
from deepbasis.fitting.start import straight_line
from deepbasis.progress import RowCounter
from deepbasis.tables.arrow import FileBlock
from deepbasis.tables.columns import Array
from deepbasis.tables.order import Piece, Prefetcher, Shard, batches, mixed
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.roles import Roles
from deepbasis.tables.source import Source
from deepbasis.tables.survey import Encoder, TableStatistics, scan
from deepbasis.tables.table import HeldOut, most_rows
from deepbasis.tables.targets import TargetScaler

T = TypeVar("T")

_VALIDATION_COPIES = 4  # as encoded, as tensors, in the engine's chunks, and one in flight


@dataclass(frozen=True)
class Survey:
    """The result of the first pass, the same for every worker."""

    source: Source
    roles: Roles
    held_out: HeldOut
    statistics: TableStatistics
    held: list[Any]
    """Tables of held-out rows, in the order of their places."""

    def preprocessor(self, scaling: str) -> Preprocessor:
        with FileBlock(self.source.name, 0, None).located():
            return self.statistics.preprocessor(scaling)

    def validation(self, encoder: Encoder) -> Rows:
        rows = encoder.held_rows(self.held, self.source.name)
        if not len(rows):
            raise InputError(
                f"{self.source.name} has no rows to validate on: give a larger validation_fraction, more groups, or "
                "validation rows of their own"
            )
        return _as_rows(rows, encoder)

    @contextmanager
    def stream(self, encoder: Encoder, plan: Plan, sizes: Sizes, seed: int, team: Team = ALONE) -> Iterator[Stream]:
        """The training rows as shuffled batches, read by a thread that stops when the block ends."""
        settings = plan.candidates[0].settings
        shard = Shard.of(self.statistics.kept, team.rank, team.size)
        mine = shard.share(plan.epoch_rows, self.statistics.rows)
        buffer_rows = min(sizes.buffer_rows, max(mine, 1))

        def read(epoch: int) -> Iterator[Array]:
            return self._blocks(encoder, shard.pieces(epoch, mine, seed), sizes.block_rows)

        def mix(epoch: int, blocks: Iterable[Array]) -> Iterator[Array]:
            rng = np.random.default_rng([seed, 2, team.rank, team.size, epoch])
            return mixed(blocks, buffer_rows, sizes.block_rows, rng)

        def read_in_order(_: int) -> Iterator[Array]:
            return self._blocks(encoder, shard.all_pieces(), sizes.block_rows)

        epochs = Prefetcher(read, settings.epochs, sizes.queue, mix)
        passes = Prefetcher(read_in_order, 1, sizes.queue)

        def open_epoch(epoch: int) -> Iterator[tuple[Tensor, ...]]:
            for batch in batches(epochs.epoch(epoch), team.share(settings.batch_size)):
                yield _parts(torch.from_numpy(batch), encoder)

        def open_pass(rows: int) -> Iterator[tuple[Tensor, ...]]:
            for chunk in batches(passes.epoch(0), rows):
                yield _parts(torch.from_numpy(chunk), encoder)

        among = min(sizes.buffer_rows, plan.epoch_rows)
        order = f"seed {seed}, blocks of {sizes.block_rows} rows, mixed among {among}"
        try:
            yield Stream(
                open_epoch,
                rows=self.statistics.rows,
                columns=encoder.preprocessor.width,
                name=f"{self.source.fingerprint()}, {plan.epoch_rows} rows an epoch, {order}",
                epoch_rows=plan.epoch_rows,
                total_weight=None if self.roles.weight is None else self.statistics.mass,
                open_pass=open_pass,
            )
        finally:
            epochs.close()
            passes.close()

    def _blocks(self, encoder: Encoder, pieces: Iterable[Piece], block_rows: int) -> Iterator[Array]:
        """The rows of an epoch, or of a pass, unit by unit."""
        for unit, skip, take in pieces:
            for block in encoder.training_rows(self.source, self.held_out, unit, block_rows):
                part = block[skip : skip + take]
                skip, take = max(0, skip - len(block)), take - len(part)
                if len(part):
                    yield part
                if not take:
                    break


def take_survey(
    source: Source, roles: Roles, fraction: float | None, limit: int | None, team: Team = ALONE, visible: bool = False
) -> Survey:
    """One pass over the rows, each worker over its own units. `fraction` of them is held out; None: nothing is."""
    if source.rows < 2:
        raise InputError(f"a fit needs at least 2 rows, {source.name} has {source.rows}")
    if fraction is None:
        held_out = HeldOut.none()
    elif roles.groups is not None:
        held_out = HeldOut.groups(fraction, source.rows, most_rows(len(roles.features)))
    else:
        held_out = HeldOut.choose(fraction, source.file_rows, most_rows(len(roles.features)))
    mine = range(team.rank, len(source.units), team.size)

    def look() -> tuple[TableStatistics, list[Any]]:
        sizes = Budget.of(limit).sizes(source.row_bytes(), len(source.names), len(source.names), 8)
        with RowCounter(sum(source.units[unit].rows for unit in mine), visible and team.first) as progress:
            return scan(source, roles, held_out, mine, sizes.block_rows, progress)

    everyone = _from_all(look, team)
    statistics = TableStatistics.merged([found for found, _ in everyone])
    in_order = sorted((one for _, held in everyone for one in held), key=lambda one: (one.unit, one.first_row))
    if statistics.rows < 1:
        raise InputError(f"{source.name} has no row left to train on: every row is held out, or has weight 0")
    return Survey(source, roles, held_out, statistics, [one.table for one in in_order])


def all_rows(source: Source, encoder: Encoder, limit: int | None) -> Rows:
    """Every row of another table, to validate on; they are held in memory and have no weights."""
    source.check_rows()
    plain = encoder.for_validation()
    plain.roles.check_numbers(source)
    budget = Budget.of(limit)
    need = _VALIDATION_COPIES * source.rows * plain.width * plain.dtype.itemsize
    if need > budget.left // 2:
        raise InputError(
            f"{source.name} has {source.rows:,} rows, too many to validate on: they are held in memory; give fewer"
        )
    sizes = budget.sizes(source.row_bytes(), len(source.names), plain.width, plain.dtype.itemsize)
    blocks = source.all_blocks(plain.roles.columns, sizes.block_rows)
    return _as_rows(np.concatenate([plain.rows(block) for block in blocks]), plain)


@dataclass(frozen=True)
class StreamData:
    """A table that is streamed, ready to be fitted."""

    survey: Survey
    preprocessor: Preprocessor
    target: TargetScaler
    validation_source: Source | None
    limit: int | None
    """Of the memory."""

    @classmethod
    def of(
        cls, spec: Spec, source: Source, roles: Roles, validation: Source | None, limit: int | None, team: Team = ALONE
    ) -> StreamData:
        if validation is not None and spec.trend == "linear":
            raise InputError(
                "trend='linear' draws its line through the rows that a streamed fit holds out, and with validation "
                "rows of their own none are held out: leave one of the two out, or the stream"
            )
        fraction = None if validation is not None else hold_out(spec, source.rows).fraction
        survey = take_survey(source, roles, fraction, limit, team, spec.verbose)
        preprocessor = survey.preprocessor(scaling(spec))
        return cls(survey, preprocessor, survey.statistics.target(), validation, limit)

    def encoder(self, dtype: torch.dtype) -> Encoder:
        return Encoder(self.survey.roles, self.preprocessor, self.target, torch.empty(0, dtype=dtype).numpy().dtype)

    def validation(self, dtype: torch.dtype) -> Rows:
        if self.validation_source is None:
            return self.survey.validation(self.encoder(dtype))
        return all_rows(self.validation_source, self.encoder(dtype), self.limit)

    def facts(self, spec: Spec) -> Facts:
        rows, line_leaves = self.survey.statistics.rows, None
        # Rows of another table may lie elsewhere and have other slopes.
        if needs_line(spec, rows) and self.validation_source is None:
            line_leaves = straight_line(self.validation(torch.float64)).share_left
        return Facts(
            table_rows=rows,
            rows=rows,
            columns=self.preprocessor.width,
            number_columns=self.preprocessor.coordinates,
            grouped=self.survey.roles.groups is not None,
            streamed=True,
            line_leaves=line_leaves,
        )

    def room(self, plan: Plan, validation: Rows, team: Team = ALONE) -> Room:
        """Room at this worker; the number of members is what every worker has room for."""
        candidate = plan.candidates[0]
        encoder, source = self.encoder(candidate.settings.dtype), self.survey.source

        def own() -> Room:
            settings, on_host = candidate.settings, plan.device == "cpu"
            rows = settings.chunk_rows if settings.exact else settings.batch_size
            slope = () if candidate.architecture.trend == "none" else (0.0,) * self.preprocessor.width
            model = candidate.architecture.build(self.preprocessor.width, Member(slope=slope))
            need = bytes_per_member(model, rows, self.preprocessor.width, settings.dtype)
            held = _VALIDATION_COPIES * validation.x.numel() * validation.x.element_size()
            members = candidate.members * len(candidate.weights)
            at_a_time = Budget.of(self.limit, held).members_at_a_time(members, need) if on_host else members
            budget = Budget.of(self.limit, held + at_a_time * need * on_host)
            columns, width, item_bytes = len(source.names), encoder.width, encoder.dtype.itemsize
            return Room(at_a_time, budget.sizes(source.row_bytes(), columns, width, item_bytes, mixing=True))

        everyone = _from_all(own, team)
        return Room(min(one.members for one in everyone), everyone[team.rank].sizes)


@dataclass(frozen=True)
class Room:
    """What fits into memory besides the rest."""

    members: int
    """To be trained at a time."""
    sizes: Sizes


def _from_all(work: Callable[[], T], team: Team) -> list[T]:
    """The results of all workers, at every worker; or, if one fails, an error at every worker, so that nobody waits."""
    found: T | Exception
    try:
        found = work()
    except Exception as error:
        found = error
    everyone = team.gather_objects(found)
    for one in (found, *everyone):
        if isinstance(one, Exception):
            raise one
    return everyone  # type: ignore[return-value]


def _as_rows(rows: Array, encoder: Encoder) -> Rows:
    return Rows(*(part.contiguous() for part in _parts(torch.from_numpy(rows), encoder)))


def _parts(rows: Tensor, encoder: Encoder) -> tuple[Tensor, ...]:
    """Inputs [n, d], target [n], and the weight [n] where there is one."""
    inputs = encoder.preprocessor.width
    return (rows[:, :inputs], *rows[:, inputs:].unbind(1))
