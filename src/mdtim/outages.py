"""Long gaps for held-out windows: what the network says of them, and what needs no model.

Ordinary held-out cells lie in gaps as frequent as the table's own, so an outage or two tell next to
nothing of cells far from all that is visible. Here every window has one.

N rows, W windows, T steps, V variates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mdtim.baselines.simple import interpolate
from mdtim.panel import BoolArray, FloatArray, IntArray
from mdtim.windows import WindowIndex

LONG = 8
"""Steps of a gap from which on it is one of these."""
MIN_WINDOWS, MAX_WINDOWS, MAX_CELLS = 8, 48, 40_000
_MARGIN = 1 / 8
"""Of a window that stays visible on both sides."""
_TOGETHER = 1 / 3
"""Share of the columns that a gap takes which does not take all."""
_TRIES = 8
"""Windows that are looked at for each: half of the run must be known."""
_AROUND = 4
"""Windows on either side in which a line finds its ends."""


@dataclass(frozen=True, eq=False)
class Outages:
    """Windows one behind the other, each with a long gap hidden in it."""

    values_NV: NDArray[np.float32]
    """Standardized, N = W * T; NaN where missing or past the end of a series."""
    line_NV: FloatArray
    """Linear interpolation along the series, the gap of the window not known."""
    windows: WindowIndex
    hidden_WTV: BoolArray


def hide_outages(
    standardized_NV: NDArray[np.float32],
    offsets: IntArray,
    windows: WindowIndex,
    lengths: IntArray,
    joint: float,
    generator: np.random.Generator,
) -> Outages | None:
    """Some of the windows, with a run hidden in each; None if the table has no long gaps.

    Parameters
    ----------
    windows : to choose from
    lengths : (G,) of the table's gaps
    joint : share of the missing cells that lie in rows where every variate is missing
    """
    lengths = lengths[lengths > LONG]
    if not len(lengths) or not len(windows):
        return None
    length, num_variates = windows.length, standardized_NV.shape[1]
    count = int(np.clip(MAX_CELLS // (length * num_variates), MIN_WINDOWS, MAX_WINDOWS))
    values, lines, hidden, sizes = [], [], [], []
    # Each window once: what is hidden in it twice would err together.
    for one in generator.permutation(len(windows))[: _TRIES * count]:
        start, end = int(windows.starts[one]), int(windows.ends[one])
        stop = min(start + length, end)
        # As a missing cell would meet them: longer ones more often.
        run = int(generator.choice(lengths, p=lengths / lengths.sum()))
        wanted = _run((stop - start, num_variates), run, joint, generator)
        part = standardized_NV[start:stop]
        known = wanted & ~np.isnan(part)
        if not known.any() or 2 * known.sum() < wanted.sum():
            continue
        first = max(int(offsets[offsets <= start].max()), start - _AROUND * length)
        around = standardized_NV[first : min(stop + _AROUND * length, end)].astype(np.float64)
        own = slice(start - first, stop - first)
        around[own][wanted] = np.nan
        line = interpolate(around, np.array([0, len(around)]))[own]
        past = ((0, length - len(part)), (0, 0))
        values.append(np.pad(part, past, constant_values=np.nan))
        lines.append(np.pad(line, past, constant_values=np.nan))
        hidden.append(np.pad(known, past))
        sizes.append(len(part))
        if len(values) == count:
            break
    if not values:
        return None
    starts = length * np.arange(len(values))
    return Outages(
        np.concatenate(values),
        np.concatenate(lines),
        WindowIndex(starts, starts + np.array(sizes), length),
        np.stack(hidden),
    )


def _run(
    shape: tuple[int, ...], run: int, joint: float, generator: np.random.Generator
) -> BoolArray:
    """(T, V) a run of some columns or all, with a margin on both sides."""
    inside, num_variates = shape
    margin = min(max(int(_MARGIN * inside), 1), inside // 2)
    run = min(run, inside - 2 * margin)
    first = int(generator.integers(margin, inside - margin - run + 1))
    step_T = np.arange(inside)
    share = 1.0 if generator.random() < joint else _TOGETHER
    # One of them at least.
    columns = np.logical_or(
        generator.random(num_variates) < share,
        np.arange(num_variates) == generator.integers(num_variates),
    )
    chosen: BoolArray = ((step_T >= first) & (step_T < first + run))[:, None] & columns
    return chosen
