"""Rules that need no training, each window by itself: what a model must beat.

A variate with nothing visible in its window gets its training mean. W windows, T steps,
V variates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from scipy.interpolate import CubicSpline

from mdtim.baselines.protocol import Filled, HeldOut, Windows, keep_observed
from mdtim.baselines.simple import carry, interpolate
from mdtim.panel import FloatArray, IntArray


class Constant:
    """The mean or the median of each variate over the training windows."""

    num_parameters = 0

    def __init__(self, statistic: Callable[[Windows], Any] = np.nanmean) -> None:
        self.statistic = statistic
        self.level_V: FloatArray

    def fit(self, training_WTV: Windows, validation: HeldOut) -> None:
        """Take the statistic of every variate; 0 for one that was never observed."""
        rows = training_WTV.reshape(-1, training_WTV.shape[2]).astype(np.float64)
        self.level_V = np.array(
            [
                self.statistic(seen) if (seen := column[~np.isnan(column)]).size else 0.0
                for column in rows.T
            ]
        )

    def fill(self, visible_WTV: Windows) -> Filled:
        """The same number at every gap of a variate."""
        return Filled(keep_observed(visible_WTV, np.broadcast_to(self.level_V, visible_WTV.shape)))


Rule = Callable[[FloatArray, IntArray], FloatArray]
"""(N, V) stacked series and their (S + 1,) offsets to a copy that may keep empty columns."""


class Ruled(Constant):
    """A rule along time inside each window; the training mean where it has nothing to go by."""

    def __init__(self, rule: Rule) -> None:
        super().__init__()
        self.rule = rule

    def fill(self, visible_WTV: Windows) -> Filled:
        """Apply the rule to each window as a series of its own."""
        num_windows, num_steps, num_variates = visible_WTV.shape
        rows = visible_WTV.reshape(-1, num_variates).astype(np.float64)
        ruled = self.rule(rows, np.arange(num_windows + 1) * num_steps).reshape(visible_WTV.shape)
        return Filled(keep_observed(visible_WTV, np.where(np.isnan(ruled), self.level_V, ruled)))


def spline(values: FloatArray, offsets: IntArray) -> FloatArray:
    """Natural cubic spline through what is known; flat beyond the first and the last value."""
    filled = values.copy()
    for start, end in pairwise(offsets):
        steps = np.arange(end - start)
        for part in filled[start:end].T:
            known = ~np.isnan(part)
            if known.all() or known.sum() < 2:
                part[~known] = part[known][0] if known.any() else np.nan
                continue
            curve = CubicSpline(steps[known], part[known], bc_type="natural")
            inside = np.clip(steps[~known], *steps[known][[0, -1]])
            part[~known] = curve(inside)
    return filled


def seasonal(season: int) -> Rule:
    """The nearest known value whole seasons before, else after; interpolation where none is."""

    def fill(values: FloatArray, offsets: IntArray) -> FloatArray:
        lengths = np.diff(offsets)
        phase = np.concatenate([np.arange(length) % season for length in lengths])
        series = np.repeat(np.arange(len(lengths)), lengths)
        groups = [series, phase]
        forward = pd.DataFrame(values).groupby(groups).ffill()
        return interpolate(forward.groupby(groups).bfill().to_numpy(copy=True), offsets)

    return fill


def reference(method: str, values: Mapping[str, Any], num_steps: int) -> Constant:
    """A reference by its name in the table of settings, for windows of `num_steps`."""
    if method == "seasonal":
        season: int | None = values["season"]
        if season is None:
            raise ValueError("this data set has no season; seasonal has nothing to go by")
        if season >= num_steps:
            raise ValueError(
                f"a season of {season} steps does not fit into a window of {num_steps}; "
                "seasonal needs longer windows"
            )
        return Ruled(seasonal(season))
    if method in ("mean", "median"):
        return Constant(np.nanmean if method == "mean" else np.nanmedian)
    return Ruled({"locf": carry, "linear": interpolate, "spline": spline}[method])
