"""What people use without a model: mean, last observation carried forward, linear interpolation.

Each takes the (N, V) values of stacked series with NaN where missing and the (S + 1,) series
offsets, and returns a filled copy. A variate that a whole series lacks gets its mean over the
other series, and zero if nothing of it was ever observed: a baseline always answers.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pandas as pd

from mdtim.panel import FloatArray, IntArray

Baseline = Callable[[FloatArray, IntArray], FloatArray]


def mean(values: FloatArray, offsets: IntArray) -> FloatArray:
    """Fill with the mean of the column over all series."""
    return _finish(values.copy(), values)


def locf(values: FloatArray, offsets: IntArray) -> FloatArray:
    """Carry the last observation forward (and the first one backward to the start)."""
    return _finish(carry(values, offsets), values)


def carry(values: FloatArray, offsets: IntArray) -> FloatArray:
    """As :func:`locf`, but a column of which a series knows nothing stays missing there."""
    grouped = pd.DataFrame(values).groupby(_series(offsets))
    forward = grouped.ffill()
    return forward.groupby(_series(offsets)).bfill().to_numpy()


def linear(values: FloatArray, offsets: IntArray) -> FloatArray:
    """Interpolate linearly inside each series; flat beyond its first and last observation.

    Examples
    --------
    >>> gaps = np.array([[0.0], [np.nan], [2.0], [np.nan]])
    >>> linear(gaps, np.array([0, 4])).ravel().tolist()
    [0.0, 1.0, 2.0, 2.0]
    """
    return _finish(interpolate(values, offsets), values)


def interpolate(values: FloatArray, offsets: IntArray) -> FloatArray:
    """As :func:`linear`, but a column of which a series knows nothing stays missing there."""
    filled = values.copy()
    for start, end in pairwise(offsets):
        steps = np.arange(end - start)
        for column in range(values.shape[1]):
            part = filled[start:end, column]
            known = ~np.isnan(part)
            if known.any() and not known.all():
                part[~known] = np.interp(steps[~known], steps[known], part[known])
    return filled


Anchors = tuple[IntArray, FloatArray]
"""(S, V) steps, counted from the first row of each series, and values; NaN where there is none."""


def linear_between(
    values: FloatArray, offsets: IntArray, before: Anchors, after: Anchors
) -> FloatArray:
    """As :func:`interpolate`, of series cut out of longer ones, towards what lies beyond the cuts.

    Examples
    --------
    >>> cut, offsets = np.array([[np.nan], [2.0], [np.nan]]), np.array([0, 3])
    >>> before = np.array([[-1]]), np.array([[0.0]])
    >>> after = np.array([[5]]), np.array([[np.nan]])
    >>> linear_between(cut, offsets, before, after).ravel().tolist()
    [1.0, 2.0, 2.0]
    """
    filled = interpolate(values, offsets)
    for series, variate in np.argwhere(~np.isnan(before[1]) | ~np.isnan(after[1])):
        start, end = offsets[series], offsets[series + 1]
        part = values[start:end, variate]
        at, known = np.arange(end - start), ~np.isnan(part)
        ends = [(step[series, variate], cell[series, variate]) for step, cell in (before, after)]
        left, right = (
            np.array([end] if not np.isnan(end[1]) else [], dtype=np.float64).reshape(-1, 2)
            for end in ends
        )
        steps = np.concatenate([left[:, 0], at[known], right[:, 0]])
        cells = np.concatenate([left[:, 1], part[known], right[:, 1]])
        filled[start:end, variate] = np.where(known, part, np.interp(at, steps, cells))
    return filled


def _series(offsets: IntArray) -> IntArray:
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def _finish(filled: FloatArray, values: FloatArray) -> FloatArray:
    known = ~np.isnan(values)
    total = np.where(known, values, 0.0).sum(axis=0)
    column_mean = total / np.maximum(known.sum(axis=0), 1)
    return np.where(np.isnan(filled), column_mean, filled)


BASELINES: dict[str, Baseline] = {"mean": mean, "locf": locf, "linear": linear}
