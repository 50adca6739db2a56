"""Held-out readings of variates that are seldom known, in windows that show all the rest.

Of a weekly reading beside hourly sensors ordinary held-out cells hardly tell: few of them are such
readings, and the sensors beside them are held out as often. Here a third of the readings is hidden
at a time, each of them once, and nothing else; windows that hold some of them are looked at, as
many as there is time for.

N rows, W windows, T steps, V variates, U of them seldom known.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mdtim.baselines.simple import interpolate
from mdtim.closed_form.seldom import seldom_known
from mdtim.learning.outages import HiddenWindows
from mdtim.panel import BoolArray, FloatArray, IntArray
from mdtim.stacking import MIN_WINDOWS
from mdtim.windows import WindowIndex

FOLDS = 3
MAX_CELLS = 80_000
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
    seldom = np.flatnonzero(seldom_known(known_NV))
    if not len(seldom) or not len(windows):
        return
    length, num_variates = windows.length, standardized_NV.shape[1]
    rows_WT = windows.starts[:, None] + np.arange(length)
    inside_WT = rows_WT < windows.ends[:, None]
    rows_WT = np.minimum(rows_WT, len(standardized_NV) - 1)
    most = max(MAX_CELLS // (length * num_variates), MIN_WINDOWS)
    fold_NU = generator.integers(FOLDS, size=(len(known_NV), len(seldom)), dtype=np.int8)
    together = generator.random(len(known_NV)) < _TOGETHER
    fold_NU[together] = fold_NU[together, :1]
    for fold in range(FOLDS):
        hidden_NV = np.zeros_like(known_NV)
        hidden_NV[:, seldom] = known_NV[:, seldom] & (fold_NU == fold)
        is_hidden_N = np.asarray(hidden_NV.any(axis=1))
        is_judged_WT = is_hidden_N[rows_WT] & inside_WT & inner_WT
        useful = np.flatnonzero(is_judged_WT.any(axis=1))
        if not len(useful):
            continue
        chosen = np.sort(generator.permutation(useful)[:most])
        rows, inside = rows_WT[chosen], inside_WT[chosen]
        starts = length * np.arange(len(chosen))
        shown = np.where(inside[..., None], standardized_NV[rows], np.float32(np.nan))
        rest_NV = np.where(hidden_NV, np.nan, standardized_NV.astype(np.float64))
        yield (
            HiddenWindows(
                shown.reshape(-1, num_variates),
                interpolate(rest_NV, offsets)[rows].reshape(-1, num_variates),
                WindowIndex(starts, starts + inside.sum(axis=1), length),
                hidden_NV[rows] & (inside & inner_WT[chosen])[..., None],
                rows,
            ),
            rest_NV,
        )
