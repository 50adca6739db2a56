"""Held-out readings of variates that are seldom known, in windows that show all the rest.

Of a weekly reading beside hourly sensors ordinary held-out cells hardly tell: few of them are such
readings, and the sensors beside them are held out as often. Here every reading is hidden once, a
third of them at a time, and nothing else.

N rows, W windows, T steps, V variates, U of them seldom known.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mdtim.baselines.simple import interpolate
from mdtim.closed_form.seldom import LEAST, SELDOM
from mdtim.learning.outages import HiddenWindows
from mdtim.panel import BoolArray, FloatArray, IntArray
from mdtim.stacking import MIN_WINDOWS
from mdtim.windows import WindowIndex

FOLDS = 3
MAX_CELLS = 40_000
"""Of all windows of a fold together, if there are enough of them."""
_TOGETHER = 1 / 2
"""Share of the rows that have all their readings in one fold."""


def hide_readings(
    standardized_NV: NDArray[np.float32],
    offsets: IntArray,
    windows: WindowIndex,
    inner_WT: BoolArray,
    generator: np.random.Generator,
) -> Iterator[tuple[HiddenWindows, FloatArray]]:
    """Fold by fold the windows, and the whole table without the fold's readings.

    There are none where all variates are seldom known: ordinary held-out cells are like theirs.

    Parameters
    ----------
    windows : to choose from
    inner_WT : steps at which a window's cells count
    """
    known_NV = ~np.isnan(standardized_NV)
    is_seldom = known_NV.mean(0) < SELDOM
    seldom = np.flatnonzero(is_seldom & (known_NV.sum(0) >= LEAST))
    if is_seldom.all() or not len(seldom) or not len(windows):
        return
    length, num_variates = windows.length, standardized_NV.shape[1]
    rows_WT = windows.starts[:, None] + np.arange(length)
    inside_WT = rows_WT < windows.ends[:, None]
    rows_WT = np.minimum(rows_WT, len(standardized_NV) - 1)
    has_reading_N = np.asarray(known_NV[:, seldom].any(axis=1))
    useful = np.flatnonzero((has_reading_N[rows_WT] & inside_WT & inner_WT).any(axis=1))
    count = max(MAX_CELLS // (length * num_variates), MIN_WINDOWS)
    useful = np.sort(generator.permutation(useful)[:count])
    if not len(useful):
        return
    rows_WT, inside_WT, inner_WT = rows_WT[useful], inside_WT[useful], inner_WT[useful]
    sizes = inside_WT.sum(axis=1)
    starts = length * np.arange(len(useful))
    chosen = WindowIndex(starts, starts + sizes, length)
    shown = np.where(inside_WT[..., None], standardized_NV[rows_WT], np.float32(np.nan))
    fold_NU = generator.integers(FOLDS, size=(len(known_NV), len(seldom)))
    together = generator.random(len(known_NV)) < _TOGETHER
    fold_NU[together] = fold_NU[together, :1]
    for fold in range(FOLDS):
        hidden_NV = np.zeros_like(known_NV)
        hidden_NV[:, seldom] = known_NV[:, seldom] & (fold_NU == fold)
        rest_NV = np.where(hidden_NV, np.nan, standardized_NV.astype(np.float64))
        line_WTV = interpolate(rest_NV, offsets)[rows_WT]
        hidden_WTV = hidden_NV[rows_WT] & (inside_WT & inner_WT)[..., None]
        if hidden_WTV.any():
            flat = (-1, num_variates)
            found = HiddenWindows(shown.reshape(flat), line_WTV.reshape(flat), chosen, hidden_WTV)
            yield found, rest_NV
