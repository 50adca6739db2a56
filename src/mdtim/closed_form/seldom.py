"""The law of variates that are seldom known: regressions on the others, chosen by leaving one out.

Of a hundred weekly readings beside thirty hourly sensors a covariance knows next to nothing; but
how many of the sensors to ask, and how far to believe them, can be read off the readings: each is
predicted by all but itself.

N rows, V variates, D of them often known, U seldom, n readings, F asked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mdtim.baselines.simple import interpolate
from mdtim.panel import BoolArray, FloatArray, IntArray

SELDOM = 1 / 4
"""Share of the rows below which a variate is known seldom."""
LEAST = 8
"""Readings of which a regression can be chosen."""
RIDGES = 10.0 ** np.arange(-3, 4)
"""Rows that speak against every slope."""
ASKED = (1, 2, 3, 5, 8, 13, 21, 34)
"""Variates that are asked, those that move most like the readings first."""


@dataclass(frozen=True, eq=False)
class _Regression:
    slopes_D: FloatArray
    mean: float
    """Of the readings, where the others are at their means in the table."""
    left: float
    """Variance that it leaves of a reading that it was not fitted to."""
    missed: FloatArray
    """(n,) by which it misses such readings."""


def seldom_known(known_NV: BoolArray) -> BoolArray:
    """(V,) whether a variate is seldom known beside others that are often: none, if all are."""
    is_seldom = known_NV.mean(0) < SELDOM
    return np.asarray(is_seldom & (known_NV.sum(0) >= LEAST) & (not is_seldom.all()))


def learn_seldom(
    values_NV: FloatArray, offsets: IntArray, mean_V: FloatArray, covariance_VV: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Mean and covariance in which variates that are seldom known follow those often known.

    Parameters
    ----------
    values_NV : series one below the other, NaN where missing
    mean_V, covariance_VV : what is known of the law already; kept for what is often known
    """
    known_NV = ~np.isnan(values_NV)
    often = np.flatnonzero(known_NV.mean(0) >= SELDOM)
    seldom = np.flatnonzero(seldom_known(known_NV))
    if not len(seldom):
        return mean_V, covariance_VV
    line_ND = interpolate(values_NV[:, often], offsets) - mean_V[often]
    line_ND = np.where(np.isnan(line_ND), 0.0, line_ND)
    found = [_choose(line_ND[known_NV[:, v]], values_NV[known_NV[:, v], v]) for v in seldom]
    slopes_UD = np.stack([one.slopes_D for one in found])
    among_DD = covariance_VV[np.ix_(often, often)]
    with_often_UD = slopes_UD @ among_DD
    mean_V, covariance_VV = mean_V.copy(), np.diag(covariance_VV.diagonal())  # of others, nothing
    mean_V[seldom] = [one.mean for one in found]
    covariance_VV[np.ix_(often, often)] = among_DD
    covariance_VV[np.ix_(seldom, often)] = with_often_UD
    covariance_VV[np.ix_(often, seldom)] = with_often_UD.T
    left_UU = _left_together(found, known_NV[:, seldom])
    covariance_VV[np.ix_(seldom, seldom)] = with_often_UD @ slopes_UD.T + left_UU
    return mean_V, covariance_VV


def _choose(others_nD: FloatArray, readings: FloatArray) -> _Regression:
    """The number of variates and the ridge that miss least, each reading left out in turn."""
    away_n = readings - readings.mean()
    middle_D = others_nD.mean(0)
    centered_nD = others_nD - middle_D
    size_D = np.sqrt(np.square(centered_nD).sum(0)) + 1e-12
    order = np.argsort(-np.abs(away_n @ centered_nD) / size_D, kind="stable")
    best, chosen, slopes = np.inf, order[:0], np.zeros(0)
    missed = away_n * len(away_n) / (len(away_n) - 1)
    best = float(np.abs(missed).mean())
    for number in sorted({min(number, len(order)) for number in ASKED}):
        asked = order[:number]
        left, size, right = np.linalg.svd(centered_nD[:, asked], full_matrices=False)
        along = left.T @ away_n
        for ridge in RIDGES:
            kept = size**2 / (size**2 + ridge)
            own_n = np.square(left) @ kept + 1 / len(away_n)
            missed_n = (away_n - left @ (kept * along)) / np.maximum(1 - own_n, 1e-6)
            error = float(np.abs(missed_n).mean())
            if error < best:
                best, chosen, missed = error, asked, missed_n
                slopes = right.T @ (size / (size**2 + ridge) * along)
    slopes_D = np.zeros(others_nD.shape[1])
    slopes_D[chosen] = slopes
    mean = float(readings.mean() - middle_D @ slopes_D)
    return _Regression(slopes_D, mean, float(np.square(missed).mean()), missed)


def _left_together(found: list[_Regression], known_NU: BoolArray) -> FloatArray:
    """(U, U) covariance of what the regressions leave, where readings come together."""
    missed_NU = np.zeros(known_NU.shape)
    for number, one in enumerate(found):
        missed_NU[known_NU[:, number], number] = one.missed
    left_U = np.array([one.left for one in found])
    known = known_NU.astype(np.float64)
    count_UU = known.T @ known
    own_UU = np.square(missed_NU).T @ known  # squares of each at the rows that know both
    size_UU = np.sqrt(own_UU * own_UU.T)
    likeness_UU = missed_NU.T @ missed_NU / np.where(size_UU > 0, size_UU, 1.0)
    likeness_UU *= count_UU / (count_UU + len(found))
    np.fill_diagonal(likeness_UU, 1.0)
    values, vectors = np.linalg.eigh(likeness_UU)
    likeness_UU = (vectors * np.maximum(values, 1e-3)) @ vectors.T
    size_U = np.sqrt(left_U)
    return np.asarray(size_U[:, None] * likeness_UU * size_U)
