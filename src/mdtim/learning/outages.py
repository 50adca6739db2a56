"""Long gaps for held-out windows: what the network says of them, and what needs no network.

Ordinary held-out cells lie in gaps as frequent as the table's own, so an outage or two tell next to
nothing of cells far from all that is visible. Here every window has one.

N rows, W windows, T steps, V variates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mdtim.baselines.simple import interpolate
from mdtim.closed_form.rowwise import FAR
from mdtim.panel import BoolArray, FloatArray, IntArray
from mdtim.windows import WindowIndex

LONG = FAR
"""Steps of a gap from which on it is one of these."""
MIN_WINDOWS, MAX_WINDOWS, MAX_CELLS = 8, 64, 40_000
DEAD = 0.25
"""Share of the windows that show nothing of some columns, whatever gaps the table has."""
_MARGIN = 1 / 8
"""Of a window that stays visible on both sides of a gap that fits into it."""
_TOGETHER = 1 / 3
"""Share of the columns that a gap takes which does not take all."""
_TRIES = 8
"""Windows that are looked at for each: half of the run must be known."""
_AROUND = 4
"""Windows on either side of a gap in which a line finds its ends."""


@dataclass(frozen=True, eq=False)
class HiddenWindows:
    """Windows one behind the other, with cells hidden in each."""

    values_NV: NDArray[np.float32]
    """Standardized, N = W * T; NaN where missing or past the end of a series."""
    line_NV: FloatArray
    """Linear interpolation along the series, what is hidden in the window not known."""
    windows: WindowIndex
    hidden_WTV: BoolArray
    rows_WT: IntArray
    """The row of the table that each step is; past the end of a series some other."""


def hide_outages(
    standardized_NV: NDArray[np.float32],
    offsets: IntArray,
    windows: WindowIndex,
    lengths: IntArray,
    joint: float,
    generator: np.random.Generator,
) -> HiddenWindows | None:
    """Some of the windows, with a run hidden in each; None if the table has no long gaps.

    Parameters
    ----------
    windows : to choose from
    lengths : (G,) of the table's gaps; those of a window are taken from the long ones, and some
        windows show nothing at all of some columns
    joint : share of the missing cells that lie in rows where every variate is missing
    """
    if not len(windows):
        return None
    kinds = _Kinds(lengths[lengths > LONG], joint)
    length, num_variates = windows.length, standardized_NV.shape[1]
    count = int(np.clip(MAX_CELLS // (length * num_variates), MIN_WINDOWS, MAX_WINDOWS))
    values, lines, hidden, sizes, firsts = [], [], [], [], []
    # Each window once: what is hidden in it twice would err together.
    for one in generator.permutation(len(windows))[: _TRIES * count]:
        start, end = int(windows.starts[one]), int(windows.ends[one])
        stop = min(start + length, end)
        gap = kinds.draw(start, stop, num_variates, generator)
        begin = max(int(offsets[offsets <= start].max()), min(start, gap.first) - _AROUND * length)
        until = min(max(stop, gap.last) + _AROUND * length, end)
        wanted = gap.cells(begin, until)
        own = slice(start - begin, stop - begin)
        part = standardized_NV[start:stop]
        known = wanted[own] & ~np.isnan(part)
        if not known.any() or 2 * known.sum() < wanted[own].sum():
            continue
        around = standardized_NV[begin:until].astype(np.float64)
        around[wanted] = np.nan
        line = interpolate(around, np.array([0, len(around)]))[own]
        past = ((0, length - len(part)), (0, 0))
        values.append(np.pad(part, past, constant_values=np.nan))
        lines.append(np.pad(line, past, constant_values=np.nan))
        hidden.append(np.pad(known, past))
        sizes.append(len(part))
        firsts.append(start)
        if len(values) == count:
            break
    if not values:
        return None
    starts = length * np.arange(len(values))
    return HiddenWindows(
        np.concatenate(values),
        np.concatenate(lines),
        WindowIndex(starts, starts + np.array(sizes), length),
        np.stack(hidden),
        np.minimum(np.array(firsts)[:, None] + np.arange(length), len(standardized_NV) - 1),
    )


@dataclass(frozen=True, eq=False)
class _Gap:
    """What is hidden: some columns, from a row to another, but for a few cells."""

    first: int
    last: int
    """The row behind it."""
    columns: BoolArray
    """(V,)"""

    def cells(self, begin: int, until: int) -> BoolArray:
        """(rows, V) which cells of some rows are hidden."""
        rows = np.arange(begin, until)
        inside = (rows >= self.first) & (rows < self.last)
        chosen: BoolArray = inside[:, None] & self.columns
        return chosen


@dataclass(frozen=True, eq=False)
class _Kinds:
    """What gaps are hidden, and how often."""

    lengths: IntArray
    """(G,) of the table's long gaps."""
    joint: float

    def draw(
        self, start: int, stop: int, num_variates: int, generator: np.random.Generator
    ) -> _Gap:
        """One for a window of these rows."""
        inside = stop - start
        columns = generator.random(num_variates) < _TOGETHER
        columns[generator.integers(num_variates)] = True  # one of them at least
        kind = generator.random()
        if kind < DEAD or not len(self.lengths):
            return _Gap(start - inside // 2, stop + inside // 2, columns)
        if generator.random() < self.joint:
            columns[:] = True
        # As a missing cell would meet them: longer ones more often.
        run = int(generator.choice(self.lengths, p=self.lengths / self.lengths.sum()))
        margin = min(max(int(_MARGIN * inside), 1), inside // 2)
        if run <= inside - 2 * margin:
            first = start + int(generator.integers(margin, inside - margin - run + 1))
        else:
            # It reaches beyond the window, on one side at least.
            first = start + int(generator.integers(inside // 2 - run, inside // 2 + 1))
        return _Gap(first, first + run, columns)
