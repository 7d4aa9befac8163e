"""From a table in files to what the engine trains on: one pass for the statistics, then a stream of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from deepbasis.engine import wire
from deepbasis.engine.batches import Rows
from deepbasis.engine.distributed import ALONE, Team
from deepbasis.engine.streams import Stream
from deepbasis.errors import InputError
from deepbasis.fitting.apart import MOST_APART, Apart
from deepbasis.fitting.budget import VALIDATION_COPIES, Budget, Room, Sizes
from deepbasis.fitting.candidate import needs_line
from deepbasis.fitting.decide import hides_categories, hold_out, make_plan, scaling, spikes_above
from deepbasis.fitting.kinds import CONFORMAL
from deepbasis.fitting.novelty import CALIBRATION, REFERENCE, Novelty
from deepbasis.fitting.plan import Facts, Plan
from deepbasis.fitting.spec import Spec
from deepbasis.fitting.start import straight_line
from deepbasis.fitting.targets import outputs_scaler, target_scaler
from deepbasis.progress import RowCounter
from deepbasis.tables.arrow import FileBlock
from deepbasis.tables.columns import Array, Column
from deepbasis.tables.effects import InTraining, position_parts
from deepbasis.tables.encoded import Encoder
from deepbasis.tables.order import Piece, Prefetcher, Shard, batches, mixed
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.roles import Roles
from deepbasis.tables.scaler import TargetScaler
from deepbasis.tables.source import Source
from deepbasis.tables.survey import MOST_TEXT, HeldRows, Moments, TableStatistics, sample_rows, scan
from deepbasis.tables.table import HeldOut, most_rows
from deepbasis.tables.targets import check_ends

T = TypeVar("T")

_SOME_CELLS = 4_000_000  # of the encoded rows that novelty is learned from


@dataclass(frozen=True)
class Survey:
    """The result of the first pass, the same for every worker."""

    source: Source
    roles: Roles
    held_out: HeldOut
    statistics: TableStatistics
    held: HeldRows
    """In the order of their places."""

    def preprocessor(self, spec: Spec) -> Preprocessor:
        with FileBlock(self.source.name, 0, None).located():
            spikes = spikes_above(spec, classes=self.roles.labels is not None)
            return self.statistics.preprocessor(scaling(spec), spec.columns, self.source.decimal, spikes)

    def validation(self, encoder: Encoder) -> Rows:
        rows = encoder.held_rows(self.held, self.source)
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

        epochs = Prefetcher(read, settings.epochs, sizes.queue, mix)
        passes = Prefetcher(lambda _: self._blocks(encoder, shard.all_pieces(), sizes.block_rows), 1, sizes.queue)

        def cut(blocks: Iterable[Array], rows: int) -> Iterator[tuple[Tensor, ...]]:
            return (_parts(torch.from_numpy(batch), encoder) for batch in batches(blocks, rows))

        among = min(sizes.buffer_rows, plan.epoch_rows)
        content = f"{self.source.fingerprint()}-{self.statistics.fingerprint()}"
        order = f"seed {seed}, blocks of {sizes.block_rows} rows, mixed among {among}"
        try:
            yield Stream(
                lambda epoch: cut(epochs.epoch(epoch), team.share(settings.batch_size)),
                rows=self.statistics.rows,
                columns=encoder.preprocessor.width,
                name=f"{content}, {plan.epoch_rows} rows an epoch, {order}",
                epoch_rows=plan.epoch_rows,
                total_weight=None if self.roles.weight is None else self.statistics.mass,
                target_numbers=encoder.target_numbers,
                open_pass=lambda rows: cut(passes.epoch(0), rows),
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
        held_out = HeldOut()
    elif roles.groups is not None:
        held_out = HeldOut.groups(fraction, source.rows, most_rows(len(roles.features)))
    else:
        held_out = HeldOut.choose(fraction, source.file_rows, most_rows(len(roles.features)))
    mine = range(team.rank, len(source.units), team.size)

    def look() -> tuple[TableStatistics, HeldRows]:
        held = _held_rows(source, roles, fraction)
        growing = 8 * held * len(roles.features)  # while held-out rows are put together there are two of each
        taken = source.open_bytes + _statistics_bytes(source, roles, held) + growing
        columns = len(source.names)
        sizes = Budget.of(limit, taken).sizes(source.row_bytes, columns, columns, 2)  # nothing is encoded yet
        with RowCounter(sum(source.units[unit].rows for unit in mine), visible and team.first) as progress:
            return scan(source, roles, held_out, mine, sizes.block_rows, progress)

    everyone = _from_all(look, team)
    statistics = TableStatistics.merged([found for found, _ in everyone])
    if statistics.rows < 1:
        raise InputError(f"{source.name} has no row left to train on: every row is held out, or has weight 0")
    return Survey(source, roles, held_out, statistics, HeldRows.joined([held for _, held in everyone]))


def _held_rows(source: Source, roles: Roles, fraction: float | None) -> int:
    """How many rows will be held out, about."""
    return 0 if fraction is None else min(most_rows(len(roles.features)), int(fraction * source.rows))


def _statistics_bytes(source: Source, roles: Roles, held: int) -> int:
    """What the first pass finds: the sample, the rows held out, and the texts of both."""
    columns = len(roles.features)
    texts = source.rows * source.row_bytes if source.text_columns() else 0
    sample = min(sample_rows(columns), source.rows) * 3 // 2  # with rows that wait to be taken in
    return 8 * columns * (sample + held) + 2 * min(MOST_TEXT, texts)


def all_rows(source: Source, encoder: Encoder, limit: int | None) -> Rows:
    """Every row of another table, to validate on; they are held in memory and have no weights."""
    source.check_rows()
    plain = encoder.for_validation()
    plain.roles.check_numbers(source)
    budget = Budget.of(limit, source.open_bytes)
    need = VALIDATION_COPIES * source.rows * plain.width * plain.dtype.itemsize
    if need > budget.left // 2:
        raise InputError(
            f"{source.name} has {source.rows:,} rows, too many to validate on: they are held in memory; give fewer"
        )
    sizes = budget.sizes(source.row_bytes, len(source.names), plain.width, plain.dtype.itemsize)
    blocks = source.all_blocks(plain.roles.columns, sizes.block_rows)
    return _as_rows(np.concatenate([plain.rows(block) for block in blocks]), plain)


@dataclass(frozen=True)
class StreamData:
    """A table that is streamed, ready to be fitted."""

    survey: Survey
    preprocessor: Preprocessor
    target: TargetScaler
    target_because: str
    some: Tensor
    """Encoded rows: some of those that are trained on, at random."""
    validation_source: Source | None
    limit: int | None
    """Of the memory."""
    promising: bool = False
    """Every second row held out is set apart, and not even validated on."""
    in_training: InTraining | None = None
    """What is different about the rows that are trained on, where there are categories."""

    @classmethod
    def of(
        cls, spec: Spec, source: Source, roles: Roles, validation: Source | None, limit: int | None, team: Team = ALONE
    ) -> StreamData:
        if validation is not None and spec.trend == "linear":
            raise InputError(
                "trend='linear' draws its line through the rows that a streamed fit holds out, and with validation "
                "rows of their own none are held out: leave one of the two out, or the stream"
            )
        promising = spec.calibrate == CONFORMAL
        if promising and (validation is not None or roles.groups is not None):
            raise InputError(
                "calibrate='conformal' sets apart half of the rows that a streamed fit holds out, without groups: "
                "leave out the validation rows or the groups, or the stream"
            )
        fraction = None if validation is not None else hold_out(spec, source.rows).fraction
        _from_all(lambda: _refuse_early(spec, source, roles, fraction, limit), team)
        survey = take_survey(source, roles, fraction, limit, team, spec.verbose)
        statistics = survey.statistics
        rows, moments = statistics.in_order(), statistics.target_moments
        hide = hides_categories(spec, statistics.rows)
        preprocessor, training = statistics.in_training(survey.preprocessor(spec), roles, hide)

        def inputs(some: Array) -> Array:
            sample = [column.rows(rows[some]) for column in statistics.sample]
            x = preprocessor.encoded(sample)
            part, _ = position_parts(statistics.hashes[rows[some]])
            return x if training is None else training.crossed(sample, part, x)

        if roles.labels is not None:
            target, because = TargetScaler(0.0, 1.0, roles.labels), str(roles.labels)
        else:
            weight = None if statistics.weight is None else statistics.weight[rows]
            y, ends = statistics.sample_y[rows], np.array([moments.low, moments.high])

            with FileBlock(source.name, 0, None).located():
                if roles.outputs:
                    target, because = outputs_scaler(spec, roles.outputs, y, weight, y, inputs)
                else:
                    beside: Any = {"exposure": None if roles.exposure is None else y[:, 1], "complete": False}
                    beside |= {"censored": roles.is_censored, "exposure_name": roles.exposure}
                    beside |= {"bound_names": (roles.lower, roles.upper)}
                    if roles.is_censored:
                        check_ends(y[:, 1:])
                    y = y if y.ndim == 1 else y[:, 0]
                    target, because = target_scaler(spec, y, weight, np.concatenate([y, ends]), inputs, **beside)
        if target.warp is None:
            target = replace(statistics.target(), lower=target.lower, upper=target.upper)
        few = np.arange(min(len(rows), REFERENCE + CALIBRATION, max(1, _SOME_CELLS // preprocessor.width)))
        if training is not None:
            few = few[~training.hides(statistics.hashes[rows[few]].view(np.int64))]
        some = torch.from_numpy(inputs(few)).float()
        survey = replace(survey, statistics=replace(statistics, sample=[]))  # it has been used, and may be large
        return cls(survey, preprocessor, target, because, some, validation, limit, promising, training)

    def encoder(self, dtype: torch.dtype) -> Encoder:
        roles, precision = self.survey.roles, torch.empty(0, dtype=dtype).numpy().dtype
        return Encoder(roles, self.preprocessor, self.target, precision, roles.is_censored, self.in_training)

    def validation(self, dtype: torch.dtype) -> Rows:
        if self.validation_source is None:
            rows = self.survey.validation(self.encoder(dtype))
            return rows.where(torch.arange(len(rows)) % 2 == 0) if self.promising else rows
        return all_rows(self.validation_source, self.encoder(dtype), self.limit)

    def apart(self) -> Apart | None:
        if not self.promising:
            return None
        rows = self.survey.validation(self.encoder(torch.float64))
        odd = rows.where(torch.arange(len(rows)) % 2 == 1)
        return Apart(odd.x, self.target.inverse(odd.y).numpy()).some(MOST_APART)

    def novelty(self, validation: Rows) -> Novelty:
        """Calibrated on rows that were held out, of other groups if there are any; or else on some of the sample."""
        if self.validation_source is not None:
            return Novelty.fit(self.some)
        x = torch.cat([self.some, validation.x.float()])
        return Novelty.fit(x, torch.arange(len(x)) >= len(self.some))

    def facts(self, spec: Spec) -> Facts:
        rows, line_leaves = self.survey.statistics.rows, None
        # Rows of another table may lie elsewhere and have other slopes.
        is_number = not self.target.classes and not self.target.outputs
        if needs_line(spec, rows) and self.validation_source is None and is_number:
            line_leaves = straight_line(self.validation(torch.float64)).share_left
        return Facts(
            table_rows=rows,
            rows=rows,
            columns=self.preprocessor.width,
            number_columns=self.preprocessor.coordinates,
            flags=self.preprocessor.flags,
            grouped=self.survey.roles.groups is not None,
            streamed=True,
            target=self.target.name,
            target_because=self.target_because,
            classes=self.target.classes,
            edges=self.target.edges,
            outputs=len(self.target.outputs),
            censored=self.survey.roles.is_censored,
            line_leaves=line_leaves,
        )

    def room(self, plan: Plan, validation: Rows, team: Team = ALONE) -> Room:
        """Room at this worker; the number of members is what every worker has room for."""
        source, width = self.survey.source, self.encoder(torch.float64).width
        everyone = _from_all(lambda: Room.of(plan, source, width, len(validation), self.limit), team)
        return Room(min(one.members for one in everyone), everyone[team.rank].sizes)


def _refuse_early(spec: Spec, source: Source, roles: Roles, fraction: float | None, limit: int | None) -> None:
    """If not even the narrowest encoding would leave room to train: before all rows are read, not after."""
    columns, rows = len(roles.features), max(source.rows, 2)  # fewer are refused later
    classes = 0 if roles.labels is None else len(roles.labels.values)
    facts = Facts(table_rows=rows, rows=rows, columns=columns, streamed=True, classes=classes)
    plan = make_plan(spec, replace(facts, outputs=len(roles.outputs), censored=roles.is_censored))
    held = _held_rows(source, roles, fraction)
    Room.of(plan, source, columns + 1, held, limit, _statistics_bytes(source, roles, held))


wire.allow(TableStatistics, Moments, Column, HeldRows, Room, Sizes)


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
    """Inputs [n, d], target [n] or [n, k], and the weight [n] where there is one."""
    inputs, numbers = encoder.preprocessor.width, encoder.target_numbers
    y = rows[:, inputs] if numbers == 1 else rows[:, inputs : inputs + numbers]
    return (rows[:, :inputs], y, *rows[:, inputs + numbers :].unbind(1))
