"""One column of one series as lines to draw: thinned, and with every gap still there.

Thinning keeps the lowest and the highest of each stretch of steps, so spikes stay visible. Around
the gaps that are listed the steps are kept more densely, for those who zoom in. Numbers in a
report never come from here. P points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mdtim.panel import BoolArray, FloatArray, IntArray, Panel, gap_lengths
from mdtim.report.written import written_cells

if TYPE_CHECKING:
    from mdtim.imputation import Imputation

QUANTILES = (0.05, 0.25, 0.75, 0.95)
"""Lower edges of the 90 % and 50 % bands, then their upper edges."""
_MIN_CONTEXT = 12


def context_of(length: int) -> int:
    """Steps to show on either side of a gap."""
    return max(length * 3 // 2, _MIN_CONTEXT)


@dataclass(frozen=True, eq=False)
class Fill:
    """A filled table as (N, V) panels, each computed once for all lines."""

    panel: Panel
    mean: FloatArray
    """As the filled table has them, NaN where observed or left missing."""
    bounds: tuple[FloatArray, ...]
    """One for each of QUANTILES, NaN as in `mean`."""

    @classmethod
    def of(cls, imputation: Imputation) -> Fill:
        """Spread the filled cells out over the panel."""
        panel, cells = imputation.table.panel, imputation.cells
        mean = np.full(panel.values.shape, np.nan)
        mean[cells.rows, cells.variates] = written_cells(imputation)
        unfilled = np.isnan(mean)
        bounds = (imputation.panel_quantile(level) for level in QUANTILES)
        return cls(panel, mean, tuple(np.where(unfilled, np.nan, bound) for bound in bounds))


@dataclass(frozen=True, eq=False)
class Line:
    """What is drawn of one column of one series. Positions count steps of the series from 0."""

    observed: Points
    """Broken by NaN at gaps; `bounds` is empty."""
    filled: Points
    """Gaps that are long enough to be seen, each closed by its observed neighbours.

    After a gap comes a point without a value. At the ends of a gap all bounds meet, so that the
    band of all gaps together can be drawn as one area without filling what lies between.
    """
    marks: Points
    """Filled steps of shorter gaps, of each stretch the lowest and the highest."""


@dataclass(frozen=True, eq=False)
class Points:
    """Points of a line, ordered by position."""

    positions: IntArray
    """(P,) steps of the series, from 0."""
    values: FloatArray
    """(P,) NaN breaks the line."""
    bounds: FloatArray
    """(4, P) quantiles, or (0, P)."""

    def alone(self) -> Points:
        """Points between two breaks, of which a line shows nothing."""
        known = np.pad(~np.isnan(self.values), 1)
        chosen = known[1:-1] & ~known[:-2] & ~known[2:]
        return Points(self.positions[chosen], self.values[chosen], self.bounds[:, chosen])


def make_line(
    fill: Fill,
    variate: int,
    series: int,
    *,
    stretches: int,
    details: list[tuple[int, int]],
    detail_stretches: int,
) -> Line:
    """Thin one column of one series.

    Parameters
    ----------
    stretches : how many parts the series is divided into; at most two points of each are kept
    details : gaps (first step of the series, length) whose surroundings are kept more densely
    detail_stretches : parts of a gap with its surroundings
    """
    first, stop = fill.panel.offsets[series : series + 2].tolist()
    observed = fill.panel.values[first:stop, variate]
    mean = fill.mean[first:stop, variate]
    bounds = np.stack([bound[first:stop, variate] for bound in fill.bounds])
    size = -(-len(observed) // stretches)
    parts = [(0, len(observed), size)]
    for position, length in details:
        margin = context_of(length)
        begin, end = max(position - margin, 0), min(position + length + margin, len(observed))
        parts.append((begin, end, -(-(end - begin) // detail_stretches)))
    finest = np.full(len(observed), size)
    for begin, end, fine in parts:
        finest[begin:end] = np.minimum(finest[begin:end], fine)
    gaps = _visible_gaps(~np.isnan(observed), finest)
    in_gap = np.zeros(len(observed), dtype=bool)
    for begin, end in gaps:
        in_gap[begin:end] = True
    is_filled = ~np.isnan(mean)
    low, high = bounds[0], bounds[-1]
    steps = _extremes(np.where(is_filled & in_gap, low, np.nan), high, parts)
    marks = _extremes(np.where(is_filled & ~in_gap, low, np.nan), high, parts[:1])
    known = _extremes(observed, observed, parts)
    ends = np.array([end for begin, end in gaps for end in (begin - 1, end)], dtype=np.int64)
    ends = ends[(ends >= 0) & (ends < len(observed))]
    return Line(
        _observed_points(observed, np.union1d(known, ends)),
        _filled_points(observed, mean, bounds, gaps, steps),
        Points(marks, mean[marks], bounds[:, marks]),
    )


def _visible_gaps(observed: BoolArray, finest: IntArray) -> list[tuple[int, int]]:
    """Gaps (first step, end) that are as long as the finest stretch they begin in."""
    starts, _, lengths = gap_lengths(observed[:, None], np.array([0, len(observed)]))
    shown = lengths >= finest[starts]
    return list(zip(starts[shown].tolist(), (starts + lengths)[shown].tolist(), strict=True))


def _extremes(low: FloatArray, high: FloatArray, parts: list[tuple[int, int, int]]) -> IntArray:
    """Steps with the least `low` or the greatest `high` of each stretch, where `low` is known."""
    found = [np.zeros(0, dtype=np.int64)]
    for begin, end, size in parts:
        count = -(-(end - begin) // size)
        known = np.zeros(count * size, dtype=bool)
        known[: end - begin] = ~np.isnan(low[begin:end])
        any_known = known.reshape(count, size).any(axis=1)
        for values, beyond, pick in ((low, np.inf, np.argmin), (high, -np.inf, np.argmax)):
            padded = np.full(count * size, beyond)
            padded[: end - begin] = values[begin:end]
            at = pick(np.where(known, padded, beyond).reshape(count, size), axis=1)
            found.append((begin + size * np.arange(count) + at)[any_known])
    return np.unique(np.concatenate(found))


def _observed_points(observed: FloatArray, steps: IntArray) -> Points:
    """Break the line between two steps if all the steps between them are missing."""
    count = np.cumsum(~np.isnan(observed))
    apart = (np.diff(count[steps]) == 1) & (np.diff(steps) > 1)
    breaks = np.flatnonzero(apart) + 1
    positions = np.insert(steps, breaks, steps[breaks - 1])
    values = np.insert(observed[steps], breaks, np.nan)
    return Points(positions, values, np.empty((0, len(values))))


def _filled_points(
    observed: FloatArray,
    mean: FloatArray,
    bounds: FloatArray,
    gaps: list[tuple[int, int]],
    steps: IntArray,
) -> Points:
    positions, values, edges = [], [], []
    known = ~np.isnan(observed)
    for begin, end in gaps:
        inside = steps[slice(*np.searchsorted(steps, [begin, end]))]
        if not len(inside):
            continue  # left missing
        inside = np.unique(np.append(inside, [begin, end - 1]))
        inside = inside[~np.isnan(mean[inside])]
        before = begin - 1 if begin > 0 and known[begin - 1] else int(inside[0])
        after = end if end < len(observed) and known[end] else int(inside[-1])
        ends = [observed[at] if known[at] else mean[at] for at in (before, after)]
        positions.append([before, *inside.tolist(), after, after])
        values.append([ends[0], *mean[inside].tolist(), ends[1], np.nan])
        closed = (np.full((4, 1), ends[0]), bounds[:, inside], np.full((4, 2), ends[1]))
        edges.append(np.concatenate(closed, axis=1))
    if not positions:
        return Points(np.empty(0, dtype=np.int64), np.empty(0), np.empty((4, 0)))
    return Points(
        np.concatenate(positions).astype(np.int64),
        np.concatenate(values),
        np.concatenate(edges, axis=1),
    )
