"""Standardization of a table's columns, in float64, once, before anything is learned."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mdtim.panel import BoolArray, FloatArray, IntArray

# Standardized values are rounded to this fraction of a std (far below any bin). The same table in
# other units then gives the very same numbers to the network, so the result moves with the data.
RESOLUTION = 2.0**-20
_ANY = float(np.finfo(np.float64).max)
_FARTHEST = 2.0**60  # a square of it is a number in float32
ABSURD = 12.0
"""Standard deviations beyond which a reading is no part of what a network can be shown."""
REASON = 50.0
"""Times the span of a column's middle 90 % that a reading may lie outside of it to count."""
AT_BOUND = 0.03
"""Share of a column's values at its very least (or most) from which that is taken for a bound."""
MIN_AT_BOUND = 10
"""Fewer may be there by chance, however short the column."""


@dataclass(frozen=True, eq=False)
class Standardizer:
    """Mean and std of each of V variates, both robust to a lone absurd value, and its bounds."""

    mean: FloatArray
    """(V,)"""
    std: FloatArray
    """(V,) positive; 1 where nothing varies."""
    varies: BoolArray
    """(V,) False for a variate that is constant or never observed."""
    seen: BoolArray
    """(V,) False for a variate that is never observed."""
    least: FloatArray
    """(V,) what a variate cannot be below, such as the 0 of rain; none is the least of floats."""
    most: FloatArray
    """(V,) what it cannot be above; none is the largest of floats."""

    @classmethod
    def fit(cls, values: FloatArray) -> Standardizer:
        """Take the statistics from (N, V) values, NaN where missing."""
        count = values.shape[1]
        mean, std = np.zeros(count), np.ones(count)
        varies, seen = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
        least, most = np.full(count, -_ANY), np.full(count, _ANY)
        for column in range(count):
            known = values[:, column]
            known = np.sort(known[~np.isnan(known)])
            if not known.size:
                continue
            seen[column] = True
            if known[0] == known[-1]:
                mean[column] = known[0]
                continue
            varies[column] = True
            enough = max(MIN_AT_BOUND, AT_BOUND * known.size)
            if np.count_nonzero(known == known[0]) >= enough:
                least[column] = known[0]
            if np.count_nonzero(known == known[-1]) >= enough:
                most[column] = known[-1]
            (mean[column],), (std[column],) = moments(known, np.zeros(1, dtype=np.int64))
        return cls(mean, std, varies, seen, least, most)

    def loosened(self, values: FloatArray) -> Standardizer:
        """Without the bounds that (N, V) values of another table break: they were none."""
        lowest = np.fmin.reduce(values, axis=0, initial=np.inf)
        highest = np.fmax.reduce(values, axis=0, initial=-np.inf)
        return replace(
            self,
            least=np.where(lowest < self.least, -_ANY, self.least),
            most=np.where(highest > self.most, _ANY, self.most),
        )

    def forward(self, values: FloatArray) -> NDArray[np.float32]:
        """Standardize (N, V) values; NaN stays NaN."""
        return standardize(values, self.mean, self.std)


def standardize(values: FloatArray, mean: FloatArray, std: FloatArray) -> NDArray[np.float32]:
    """(N, V) values in units of stds from their means, which are (N, V) or (V,)."""
    standardized = np.clip((values - mean) / std, -_FARTHEST, _FARTHEST)
    return (np.round(standardized / RESOLUTION) * RESOLUTION).astype(np.float32)


def moments(known: FloatArray, starts: IntArray) -> tuple[FloatArray, FloatArray]:
    """Mean and std of G groups of values; 0 is the std of a group in which nothing varies.

    What lies beyond all reason is left out, and then the most extreme 0.1 % at each end (at least
    one cell) are pulled in: a few faulty readings must not decide a scale.

    Parameters
    ----------
    known : (C,) one group after the other, each sorted
    starts : (G,) where each begins; none is empty
    """
    inside = _within_reason(known, starts)
    counts = np.add.reduceat(inside, starts, dtype=np.int64)
    known, starts = known[inside], np.cumsum(counts) - counts
    low = known[starts + np.ceil(0.001 * (counts - 1)).astype(np.int64)]
    high = known[starts + np.floor(0.999 * (counts - 1)).astype(np.int64)]
    pulled = high > low
    low, high = np.where(pulled, low, -np.inf), np.where(pulled, high, np.inf)
    inner = np.clip(known, np.repeat(low, counts), np.repeat(high, counts))
    # Around the first value, so that a large common offset costs no digits.
    first = inner[starts]
    mean = first + np.add.reduceat(inner - np.repeat(first, counts), starts) / counts
    deviations = inner - np.repeat(mean, counts)
    # A power of two is taken out, so that no square is 0 or infinite.
    unit = 2.0 ** (np.frexp(np.maximum.reduceat(np.abs(deviations), starts))[1] - 1)
    squares = np.add.reduceat((deviations / np.repeat(unit, counts)) ** 2, starts)
    return mean, unit * np.sqrt(squares / counts)


def _within_reason(known: FloatArray, starts: IntArray) -> BoolArray:
    """(C,) False for what lies far from its group's middle 90 %, in units of what these span."""
    ends = np.append(starts[1:], len(known))
    counts = ends - starts
    bottom, top = known[starts + counts // 20], known[ends - 1 - counts // 20]
    with np.errstate(over="ignore"):
        reach = REASON * (top - bottom)
    reach = np.where(reach > 0, reach, np.inf)
    with np.errstate(over="ignore"):
        low, high = np.repeat(bottom - reach, counts), np.repeat(top + reach, counts)
    inside: BoolArray = (known >= low) & (known <= high)
    return inside
