"""Standardization of a table's columns, in float64, once, before anything is learned."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mdtim.panel import BoolArray, FloatArray

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
        """Take the statistics from (N, V) values, NaN where missing.

        What lies beyond all reason is left out, and then the most extreme 0.1 % at each end (at
        least one cell) are pulled in: a few faulty readings must not decide the scale of a column.
        """
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
            known = _within_reason(known)
            low = known[int(np.ceil(0.001 * (known.size - 1)))]
            high = known[int(np.floor(0.999 * (known.size - 1)))]
            inner = np.clip(known, low, high) if high > low else known
            mean[column] = _stable_mean(inner)
            std[column] = _size(inner - mean[column])
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
        standardized = np.clip((values - self.mean) / self.std, -_FARTHEST, _FARTHEST)
        return (np.round(standardized / RESOLUTION) * RESOLUTION).astype(np.float32)

    def back(self, standardized: FloatArray, variates: NDArray[np.int64]) -> FloatArray:
        """Map (C,) standardized numbers of the given variates to data units, within bounds."""
        values = standardized * self.std[variates] + self.mean[variates]
        return np.clip(values, self.least[variates], self.most[variates])


def _within_reason(known: FloatArray) -> FloatArray:
    """Sorted values without those far from the middle 90 %, in units of what these span."""
    bottom, top = known[known.size // 20], known[-1 - known.size // 20]
    reach = REASON * (top - bottom)
    if not 0 < reach < np.inf:
        return known
    inside: FloatArray = known[(known >= bottom - reach) & (known <= top + reach)]
    return inside


def _size(deviations: FloatArray) -> float:
    """Root of the mean square; a power of two is taken out, so that no square is 0 or infinite."""
    unit = 2.0 ** (np.frexp(np.abs(deviations).max())[1] - 1)
    return float(unit * np.sqrt(_stable_mean((deviations / unit) ** 2)))


def _stable_mean(values: FloatArray) -> float:
    # Around the first value, so that a large common offset costs no digits.
    return float(values[0] + np.mean(values - values[0]))
