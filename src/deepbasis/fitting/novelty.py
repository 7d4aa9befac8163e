"""`Novelty`: how unlike the rows of a fit a row is, as a p-value; and `Watch`, which warns of a table of such rows.

The score of a row is its distance to the nearest of some rows of the fit, in columns that are made normal, by their
ranks, and decorrelated; every value that is missing where none was adds more than any distance. Other rows of the fit,
from which nothing was learned, say how large the score of a familiar row is: the p-value of a row is the share of them,
itself included, whose score is as high (Vovk et al., 2005; Bates et al., 2023).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from deepbasis.engine.checks import LARGEST
from deepbasis.errors import NoveltyWarning, per_cent
from deepbasis.fitting.glance import Glance
from deepbasis.hashing import splitmix64
from deepbasis.tables.encoders import Encoding, decoded, unsquash
from deepbasis.tables.preprocessing import GAP, Preprocessor

REFERENCE, CALIBRATION = 2_000, 4_000
"""Rows that distances are to, and rows that say how large these are; of fewer rows two thirds and one third."""

_MOST_CELLS, _FEWEST_ROWS = 1_000_000, 100  # of the reference rows, in a wide table
_QUANTILES = 33  # of each column
_SHRINK = 0.03  # added to the variances of the decorrelated columns, whose mean is about 1
_LEAST_SPREAD = 0.2  # of an encoded column: about that of a category that few rows have
_FARTHEST = 100.0  # spreads that two rows may differ by in a column
_MISSED = 1_000.0  # what a gap adds to the distance, in a column that had none
_MOST_COLUMNS = 512  # that are decorrelated
_WIDEST = 40.0  # an encoded value is within
_ROWS_AT_A_TIME = 1_024
_UNLIKE = 0.01  # the p-value of a row that counts as unlike those of the fit


@dataclass(frozen=True)
class Novelty:
    center: Float[Tensor, " d"]
    spread: Float[Tensor, " d"]
    knots: Float[Tensor, "d q"]
    marks: Float[Tensor, "d q"]
    """Quantiles of each column and their normal scores, with lines between them and beyond."""
    mapping: Float[Tensor, "k d"]
    """To decorrelated columns; of a wide table none."""
    reference: Float[Tensor, "m d"]
    """Mapped."""
    scores: Float[Tensor, " n"]
    """Of the calibration rows, in ascending order."""
    low: Float[Tensor, " d"]
    high: Float[Tensor, " d"]
    """The range of the encoded columns."""

    @classmethod
    def fit(cls, x: Float[Tensor, "n d"], held_out: Bool[Tensor, " n"] | None = None) -> Novelty:
        """From encoded rows of the fit, at least two: some at random. Calibrated on rows that are `held_out`, if given.

        Every row counts once, whatever its weight. Copies of a row may be on both sides, as they will be among new
        rows.
        """
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        most = max(_FEWEST_ROWS, min(REFERENCE, _MOST_CELLS // x.shape[1]))
        if held_out is None or bool(held_out.all()) or not bool(held_out.any()):
            cut = min(most, max(1, 2 * len(x) // 3))
            inside, outside = order[:cut], order[cut:]
        else:
            inside, outside = order[~held_out[order]], order[held_out[order]]
        return cls._calibrated(x[inside[:most]].float(), x[outside[: 2 * most]].float())

    @classmethod
    def _calibrated(cls, known: Tensor, others: Tensor) -> Novelty:
        spread, center = torch.std_mean(known.double(), 0, correction=0)
        spread = spread.clamp_min(_LEAST_SPREAD)
        knots, marks = _normal_scores(known, spread)
        z, mapping = _interpolated(known, knots, marks), spread.new_empty(0, len(spread))
        if known.shape[1] <= _MOST_COLUMNS:
            values, vectors = torch.linalg.eigh(torch.atleast_2d(torch.cov(z.double().mT, correction=0)))
            mapping = vectors * (values.clamp_min(0.0) + _SHRINK).rsqrt()
        low, high = torch.cat([known, others]).aminmax(dim=0)
        found = cls(
            *(part.float() for part in (center, spread, knots, marks, mapping, known, known.new_empty(0), low, high))
        )
        found = replace(found, reference=found._mapped(known))
        return replace(found, scores=found.score(others).sort().values)

    @cached_property
    def glance(self) -> Glance:
        return Glance.of(self.knots, self.marks, self.mapping, self.reference, _FARTHEST)

    @cached_property
    def _sizes(self) -> Tensor:
        return self.reference.square().sum(1)

    @cached_property
    def _unlike(self) -> float:
        """The score beyond which a p-value is low, if not as low as it can be."""
        n = len(self.scores)
        return float(self.scores[n - max(1, int(_UNLIKE * (1 + n)))])

    def unlike(self, x: Float[Tensor, "b d"]) -> int:
        """How many of these encoded rows have a p-value that counts as low."""
        return int((self.score(x) > self._unlike).sum())

    def _mapped(self, x: Tensor) -> Tensor:
        z = _interpolated(x.float(), self.knots, self.marks).clamp(-_FARTHEST, _FARTHEST)
        return z @ self.mapping if len(self.mapping) else z

    @torch.no_grad()
    def score(self, x: Float[Tensor, "b d"]) -> Float[Tensor, " b"]:
        """Of encoded rows: the distance to the nearest of the reference rows, and something for each gap."""
        r, size = self.reference, self._sizes
        found = []
        for z in self._mapped(x).split(_ROWS_AT_A_TIME):
            nearest = torch.addmm(size, z, r.mT, alpha=-2.0).amin(1)  # |z - r|^2 = |z|^2 + (|r|^2 - 2 z r)
            found.append((nearest + z.square().sum(1)).clamp_min(0.0).sqrt())
        return torch.cat(found) + _MISSED * (x == GAP).sum(1)

    def p_values(self, x: Float[Tensor, "b d"]) -> Float[Tensor, " b"]:
        """Of encoded rows: for those drawn as the rows of the fit, at most p with a probability of at most p.

        Copies of reference rows have a score of 0, as many calibration rows may. Of e equal scores a row is the j-th,
        where j from 0 to e is drawn by a hash of the row: of familiar rows the p-values are then uniform, not too high.
        """
        n, score = len(self.scores), self.score(x)
        first, last = (torch.searchsorted(self.scores, score, right=right) for right in (False, True))
        p = (1 + n - last).double()
        tied = last > first
        if bool(tied.any()):
            p[tied] += (_drawn(x[tied]) * (1 + last - first)[tied]).floor()
        return p / (1 + n)

    def with_rows(self, x: Float[Tensor, "b d"], share: float, seed: int) -> Novelty:
        """When rows have come in, of which x are some, that are a `share` of all: they are familiar from now on.

        The reference rows stay. Of scores, in their order, evenly many are kept.
        """
        if not len(x):
            return self
        draw = float(torch.rand((), generator=torch.Generator().manual_seed(seed)))
        wanted = min(float(len(x)), len(self.scores) * share / (1.0 - share))
        total = min(1.0, CALIBRATION / (len(self.scores) + wanted))
        counts = max(1, int(total * len(self.scores))), int(total * wanted + draw)
        some = (_evenly(one, count) for one, count in zip((self.scores, self.score(x)), counts, strict=True))
        low, high = x.float().aminmax(dim=0)
        return replace(
            self,
            scores=torch.cat(list(some)).sort().values[:CALIBRATION],
            low=torch.minimum(self.low, low),
            high=torch.maximum(self.high, high),
        )

    # ---- the file ----------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @classmethod
    def from_tensors(cls, found: Mapping[str, Tensor], width: int) -> Novelty:
        """What `tensors` gave, of a model of `width` encoded columns; anything else is a `ValueError`."""
        if found.keys() != {one.name for one in fields(cls)}:
            raise ValueError("its novelty has other parts")
        rows, scores = found["reference"].shape[0], found["scores"].shape[0]
        sizes = {"mapping": (width if width <= _MOST_COLUMNS else 0, width), "reference": (rows, width)}
        sizes |= dict.fromkeys(("knots", "marks"), (width, _QUANTILES + 2))
        for name, values in found.items():
            if values.dtype != torch.float32 or values.shape != {**sizes, "scores": (scores,)}.get(name, (width,)):
                raise ValueError(f"the {name} of its novelty has another shape or type")
            largest = _WIDEST if name in ("low", "high") else LARGEST
            if not bool((values.abs() <= largest).all()):
                raise ValueError(f"the {name} of its novelty is not finite, or beyond {largest:g}")
        if not 0 < rows <= REFERENCE or not 0 < scores <= CALIBRATION:
            raise ValueError(f"its novelty has {rows} and {scores} rows")
        if bool((found["spread"] < _LEAST_SPREAD / 2).any()) or bool((found["scores"].diff() < 0).any()):
            raise ValueError("its novelty has a column without spread, or scores that are not in order")
        if not all(bool((found[name].diff() > 0).all()) for name in ("knots", "marks")):
            raise ValueError("the quantiles of its novelty do not increase")
        return cls(**found)


def _drawn(x: Float[Tensor, "b d"]) -> Float[Tensor, " b"]:
    """A number from [0, 1) for each row, by a hash of its cells."""
    found = torch.zeros(len(x), dtype=torch.int64)
    for column in (x.float() + 0.0).mT.contiguous().view(torch.int32):  # 0.0 and -0.0 are the same
        found = splitmix64(found + column)
    return ((found >> 11) & (2**53 - 1)).double() / 2**53


def _evenly(scores: Float[Tensor, " n"], count: int) -> Tensor:
    """`count` of the scores, evenly spaced from the lowest to the highest."""
    places = (torch.arange(min(count, len(scores))) + 0.5) * (len(scores) / max(1, min(count, len(scores))))
    return scores.sort().values[places.long()]


def _normal_scores(x: Float[Tensor, "n d"], spread: Float[Tensor, " d"]) -> tuple[Tensor, Tensor]:
    """The distinct quantiles of each column, and the normal scores of their ranks; both go on beyond, by 1 a spread."""
    levels, n = np.linspace(0.0, 1.0, _QUANTILES), len(x)
    knots = np.empty((x.shape[1], _QUANTILES + 2))
    marks = np.empty_like(knots)
    for column, step, k, m in zip(x.mT.numpy(), spread.tolist(), knots, marks, strict=True):
        ordered = np.sort(column)
        values = np.unique(np.quantile(ordered, levels, method="nearest"))
        ranks = 0.5 * (np.searchsorted(ordered, values) + np.searchsorted(ordered, values, "right"))
        more = np.arange(1, len(k) - len(values))
        k[:] = [values[0] - step, *values, *(values[-1] + step * more)]
        scores = torch.special.ndtri(torch.from_numpy(ranks / n)).numpy()
        m[:] = [scores[0] - 1.0, *scores, *(scores[-1] + more)]
    return torch.from_numpy(knots).float(), torch.from_numpy(marks).float()


def _interpolated(x: Float[Tensor, "b d"], knots: Float[Tensor, "d q"], marks: Float[Tensor, "d q"]) -> Tensor:
    columns = x.mT.contiguous()
    right = torch.searchsorted(knots, columns).clamp(1, knots.shape[1] - 1)
    (k, m), (k_next, m_next) = ((knots.gather(1, i), marks.gather(1, i)) for i in (right - 1, right))
    return (m + (columns - k) / (k_next - k) * (m_next - m)).mT


# ---- a table of strange rows -----------------------------------------------------------------------------------------

_MANY = 0.1  # the share of such rows that is worth a warning
_WATCHED = 128  # rows of a chunk that are looked at
_FEW = 20  # a chunk of fewer rows is not
_LONG = 8_192  # in a chunk of fewer rows there is a glance at 20 to 40 first,
_FAMILIAR = 0.05  # and a look only where a larger share of these seems strange, or `_MANY` of all
_REMEMBERED = 4_096  # rows
_NAMED = 5  # columns, at most
_OTHER_SCALE = 5.0  # spreads of the fit, between the quartiles


@dataclass
class Watch:
    """Looks at some rows of every chunk of a table that is predicted, and warns once if many are unlike the fit's."""

    novelty: Novelty
    preprocessor: Preprocessor
    looked: int = 0
    unlike: int = 0
    some: list[Tensor] = field(default_factory=list)

    def over(self, chunks: Iterable[Tensor]) -> Iterator[Tensor]:
        for x in chunks:
            self.look(x)
            yield x

    def look(self, x: Float[Tensor, "b d"]) -> None:
        if len(x) < _FEW:
            return
        rows = x[:: -(-len(x) // _WATCHED)]
        if len(x) < _LONG:  # a look at all of them may take as long as their prediction
            some = x[:: len(x) // _FEW]
            enough = _MANY if len(some) == len(x) else _FAMILIAR
            if self.novelty.glance.strange(some) <= enough * len(some):
                self.looked += len(some)
                return
        self.looked += len(rows)
        self.unlike += self.novelty.unlike(rows)
        if sum(map(len, self.some)) < _REMEMBERED:
            self.some.append(rows)

    def warn(self, stacklevel: int = 3) -> None:
        # Few calibration rows: the share of familiar rows beyond all of them is 1 / n on average, and may be 3 / n.
        if self.unlike <= self.looked * (_MANY + 3.0 / len(self.novelty.scores)):
            return
        named = changes(self.novelty, self.preprocessor, torch.cat(self.some))
        where = "; ".join(named) if named else "no column alone, but their combinations"
        share = per_cent(self.unlike / self.looked)
        warnings.warn(
            f"about {share} of the rows are unlike those that the model was fitted to, and its intervals may be too "
            f"narrow there; what differs: {where}. predict_novelty (--novelty) says which rows",
            NoveltyWarning,
            stacklevel=stacklevel,
        )


def changes(novelty: Novelty, preprocessor: Preprocessor, x: Float[Tensor, "b d"]) -> list[str]:
    """The input columns that differ most between these encoded rows and those of the fit, and how."""
    found: list[tuple[float, str]] = []
    names = preprocessor.input_columns or [f"x{k}" for k in range(len(preprocessor.encodings))]
    start = 0
    for name, encoding in zip(names, preprocessor.encodings, strict=True):
        columns = slice(start, start + encoding.width)
        start = columns.stop
        if not encoding.varies:
            continue
        compare = _new_levels if encoding.kind == "categorical" else _out_of_range
        share, words = compare(encoding, novelty, x, columns)
        if share > _MANY / 2:
            found.append((share, f"'{name}' ({words})"))
    return [words for _, words in sorted(found, key=lambda one: -one[0])[:_NAMED]]


def _new_levels(encoding: Encoding, novelty: Novelty, x: Tensor, columns: slice) -> tuple[float, str]:
    """A value that has no column of its own has not been seen, or seldom; one without an effect has not been known."""
    if encoding.effects:
        known = columns.stop - encoding.missing - 1
        share = 1.0 - float(x[:, known].mean()) / max(float(novelty.center[known]), 1e-6)
        return share, f"new values in {per_cent(min(share, 1.0))} of the rows"
    own = slice(columns.start, columns.start + len(encoding.categories))
    gaps = slice(columns.stop - encoding.missing, columns.stop)
    missed = float((x[:, columns.start] == GAP).float().mean())
    share = 1.0 - float(x[:, own].sum(1).mean()) - float(x[:, gaps].sum(1).mean()) - missed
    usual = 1.0 - float(novelty.center[own].sum()) - float(novelty.center[gaps].sum())
    return max((share - usual, f"new values in {per_cent(share)} of the rows"), (missed, _missing(missed)))


def _missing(share: float) -> str:
    return f"missing in {per_cent(share)} of the rows, and in none of the fit"


def _out_of_range(encoding: Encoding, novelty: Novelty, x: Tensor, columns: slice) -> tuple[float, str]:
    z, first = x[:, columns.start].float(), columns.start
    low, high = novelty.low[first], novelty.high[first]
    share, missed = (float(one.float().mean()) for one in ((z < low) | (z > high), z == GAP))
    if missed > share:
        return missed, _missing(missed)
    ends = " to ".join(_end(encoding, float(end)) for end in (low, high))
    words = f"{per_cent(share)} of the rows outside {ends}"
    lower, upper = np.quantile(unsquash(z.numpy(), encoding.linear), [0.25, 0.75])
    spread = (upper - lower) / float(novelty.spread[first])
    return share, f"{words}, of another scale" if spread > _OTHER_SCALE else words


def _end(encoding: Encoding, z: float) -> str:
    """Of a range; dates to the minute, or to the day where all have one time: single precision has no more digits."""
    found = decoded(encoding, z)
    if encoding.kind != "datetime":
        return found
    moment = np.datetime64(found, "s") + np.timedelta64(30, "s")
    return str(moment.astype("datetime64[m]" if "hour" in encoding.phases else "datetime64[D]"))
