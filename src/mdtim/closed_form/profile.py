"""What is usual at a time of the day or the week, by the whole table.

A window may see a few days and no week. The table has seen how Mondays at eight are, and an outage
of days is filled by that. Usual is what a cell lies above the mean of the day, or week, around it.

N rows, V variates, P times of a cycle, B of a day, F folds, W windows, T steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mdtim.panel import BoolArray, FloatArray, IntArray
from mdtim.scaling import ABSURD

DAY, DAYS = 86_400, 7
"""Seconds of a day, and days of a week."""
MAX_A_DAY = 96
"""Times of a day that are told apart."""
LEAST_CYCLES = 4
"""Days, or weeks, of which one can be left out to see what the others say of it."""
FOLDS = 8
DAY_DOUBT = 2.0
"""Days that speak for no season at all."""
WEEK_DOUBTS = (1.0, 4.0, 16.0)
"""Weeks that speak for all days being alike."""
HELPS, CERTAIN = 0.02, 2.0
"""Share of a variate's deviations that a profile must explain, and standard errors by which."""
MAX_JUDGED = 4_000_000
"""Cells that the choice looks at."""
COLUMNS_AT_ONCE = 8
"""Less memory is needed so than for all."""
_NONE, _DAY_ONLY = -2, -1
"""Kinds of profiles; the others are places in WEEK_DOUBTS."""
_PREFIX = "profile."
"""Of its arrays among the weights."""


@dataclass(frozen=True, eq=False)
class Profile:
    """What is usual, in standardized units, at every time of a week."""

    usual_PV: FloatArray
    """(P, V) above the mean of the cycle; 0 throughout for a variate that has no profile."""

    def at(self, timestamps_N: NDArray[np.datetime64]) -> FloatArray:
        """(N, V) what is usual at some times; 0 where a time is not known."""
        usual_NV = self.usual_PV[_time_of_week(timestamps_N, len(self.usual_PV))]
        usual_NV[np.isnat(timestamps_N)] = 0.0
        return usual_NV

    def arrays(self) -> dict[str, FloatArray]:
        """For the file of weights."""
        return {_PREFIX + "usual": self.usual_PV}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, FloatArray]) -> Profile | None:
        """Rebuild from :meth:`arrays`; None where there are none."""
        usual_PV = arrays.get(_PREFIX + "usual")
        return None if usual_PV is None else cls(np.asarray(usual_PV))


def is_of_profile(name: str) -> bool:
    """Whether an array of the file of weights belongs to a profile."""
    return name.startswith(_PREFIX)


@dataclass(frozen=True, eq=False)
class ProfileSums:
    """The table as a profile sees it: sums that some cells can be taken out of again."""

    above_NV: FloatArray
    """By which cells lie above the mean of the cycle around them; NaN where nobody can tell."""
    time_N: IntArray
    """Of the week."""
    sums_PV: FloatArray
    counts_PV: FloatArray
    kinds_V: IntArray
    """Which profile each variate has."""

    @classmethod
    def find(
        cls,
        values_NV: FloatArray,
        offsets: IntArray,
        timestamps_N: NDArray[np.datetime64] | None,
        step_seconds: float | None,
        kinds_V: IntArray | None = None,
    ) -> ProfileSums | None:
        """Read them off series one below the other; None where no variate has a profile.

        Parameters
        ----------
        values_NV : standardized, NaN where missing
        timestamps_N : NaT where nothing is known of a row
        kinds_V : those chosen before, where they shall be the same
        """
        if timestamps_N is None or step_seconds is None or not 0 < step_seconds <= DAY:
            return None
        a_day = max(1, min(MAX_A_DAY, round(DAY / step_seconds)))
        time_N = _time_of_week(timestamps_N, DAYS * a_day)
        timed_N = ~np.isnat(timestamps_N)
        values_NV = np.where(np.abs(values_NV) <= ABSURD, values_NV, np.nan)
        for days in (DAYS, 1):  # of a short table the day alone can be told
            steps = max(1, round(days * DAY / step_seconds))
            cycle_N = _number_of_cycle(timestamps_N, days)
            if len(np.unique(cycle_N[timed_N])) < LEAST_CYCLES or (days == 1 and a_day < 3):
                continue
            above_NV = _above_the_mean(values_NV, offsets, steps)
            above_NV[~timed_N] = np.nan
            sums = _sums(above_NV, time_N, DAYS * a_day)
            if kinds_V is None:
                most = len(WEEK_DOUBTS) if days == DAYS else 0
                kinds_V = _chosen(above_NV, time_N, cycle_N, a_day, most)
            if (kinds_V == _NONE).all():
                return None
            return cls(above_NV, time_N, *sums, kinds_V)
        return None

    def profile(self) -> Profile:
        """What is usual by all cells."""
        return Profile(_usual(self.sums_PV, self.counts_PV, self.kinds_V))

    def without(self, rows_T: IntArray, hidden_TV: BoolArray) -> FloatArray:
        """(T, V) what is usual at some rows, by all but some of their cells."""
        above_TV = np.where(hidden_TV, self.above_NV[rows_T], np.nan)
        sums_PV, counts_PV = _sums(above_TV, self.time_N[rows_T], len(self.sums_PV))
        usual_PV = _usual(self.sums_PV - sums_PV, self.counts_PV - counts_PV, self.kinds_V)
        return usual_PV[self.time_N[rows_T]]


def _seconds(timestamps_N: NDArray[np.datetime64]) -> IntArray:
    known = np.where(np.isnat(timestamps_N), np.datetime64(0, "s"), timestamps_N)
    return known.astype("M8[s]").astype(np.int64)


def _time_of_week(timestamps_N: NDArray[np.datetime64], times: int) -> IntArray:
    of_week = _seconds(timestamps_N) % (DAYS * DAY)
    return np.asarray(of_week * times // (DAYS * DAY))


def _number_of_cycle(timestamps_N: NDArray[np.datetime64], days: int) -> IntArray:
    return np.asarray(_seconds(timestamps_N) // (days * DAY))


def _above_the_mean(values_NV: FloatArray, offsets: IntArray, steps: int) -> FloatArray:
    """By which known cells lie above the mean of the cycle around them, half of it known."""
    above_NV: FloatArray = np.full(values_NV.shape, np.nan)
    for start, end in pairwise(offsets):
        if end - start < steps:
            continue
        first = np.clip(np.arange(end - start) - steps // 2, 0, end - start - steps)
        for begin in range(0, values_NV.shape[1], COLUMNS_AT_ONCE):
            at = np.s_[start:end, begin : begin + COLUMNS_AT_ONCE]
            part_NV = values_NV[at]
            known_NV = ~np.isnan(part_NV)
            sums, counts = (
                np.concatenate([np.zeros((1, part.shape[1])), np.cumsum(part, axis=0)])
                for part in (np.where(known_NV, part_NV, 0.0), known_NV.astype(np.float64))
            )
            count_NV = counts[first + steps] - counts[first]
            mean_NV = (sums[first + steps] - sums[first]) / np.maximum(count_NV, 1.0)
            above_NV[at] = np.where(2 * count_NV >= steps, part_NV - mean_NV, np.nan)
    return above_NV


def _sums(above_NV: FloatArray, time_N: IntArray, times: int) -> tuple[FloatArray, FloatArray]:
    """(P, V) sums at each time of the week, and of how many cells."""
    sums, counts = (np.zeros((times, above_NV.shape[1])) for _ in range(2))
    for variate, above_N in enumerate(above_NV.T):
        known_N = ~np.isnan(above_N)
        at = time_N[known_N]
        sums[:, variate] = np.bincount(at, above_N[known_N], times)
        counts[:, variate] = np.bincount(at, minlength=times)
    return sums, counts


def _usual(sums_PV: FloatArray, counts_PV: FloatArray, kinds_V: IntArray) -> FloatArray:
    """(P, V) what is usual: at the time of day, and what the day of the week adds to it."""
    of_days = (DAYS, -1, len(kinds_V))
    sums_BV, counts_BV = (part.reshape(of_days).sum(0) for part in (sums_PV, counts_PV))
    day_PV = np.tile(sums_BV / (counts_BV + DAY_DOUBT), (DAYS, 1))
    doubt_V = np.array([*WEEK_DOUBTS, np.inf, np.inf])[kinds_V]
    week_PV = (sums_PV - counts_PV * day_PV) / (counts_PV + doubt_V)
    return np.where(kinds_V == _NONE, 0.0, day_PV + week_PV)


def _chosen(
    above_NV: FloatArray, time_N: IntArray, cycle_N: IntArray, a_day: int, most: int
) -> IntArray:
    """(V,) the kind that tells most of cycles that it was not made of; none where that is doubtful.

    Parameters
    ----------
    most : how many of WEEK_DOUBTS are tried
    """
    times, num_variates = DAYS * a_day, above_NV.shape[1]
    known_N = ~np.isnan(above_NV).all(axis=1)
    cycles, cycle_N = np.unique(cycle_N, return_inverse=True)
    every = -(-above_NV.size // MAX_JUDGED)
    folds = [known_N & (cycle_N % FOLDS == fold) for fold in range(FOLDS)]
    parts = [_sums(above_NV[fold], time_N[fold], times) for fold in folds]
    whole_sums, whole_count = (np.sum(part, axis=0) for part in zip(*parts, strict=True))
    least, chosen_V = np.full(num_variates, np.inf), np.full(num_variates, _NONE)
    kinds = [_DAY_ONLY] if a_day >= 3 else []
    for kind in (*kinds, *range(most)):
        gains, sizes, counts = (np.zeros((len(cycles), num_variates)) for _ in range(3))
        for fold, (sums, count) in zip(folds, parts, strict=True):
            judged = np.flatnonzero(fold & (cycle_N // FOLDS % every == 0))
            rest = (whole_sums - sums, whole_count - count)
            usual_PV = _usual(*rest, np.full(num_variates, kind))
            above = above_NV[judged]
            size = np.abs(above)
            gain = size - np.abs(above - usual_PV[time_N[judged]])
            known = ~np.isnan(above)
            for into, part in ((gains, gain), (sizes, size), (counts, known)):
                for variate, here in enumerate(known.T):
                    at, told = cycle_N[judged[here]], part[here, variate]
                    into[:, variate] += np.bincount(at, told, len(cycles))
        count_V = np.maximum(counts.sum(0), 1.0)
        gain_V, size_V = gains.sum(0) / count_V, sizes.sum(0) / count_V
        # Cells of one cycle err together.
        number = max(int(np.count_nonzero(counts.any(axis=1))), 2)
        doubt_V = np.sqrt(np.square(gains - counts * gain_V).sum(0) * number / (number - 1))
        helps = (gain_V > HELPS * size_V) & (gain_V * count_V > CERTAIN * doubt_V)
        better = helps & (size_V - gain_V < least)
        least[better], chosen_V[better] = (size_V - gain_V)[better], kind
    return chosen_V
