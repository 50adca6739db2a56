"""Scores over an explicit `scored` mask. A NaN among the scored cells is an error, not a number.

Every function takes arrays of one shape and a boolean `scored` of the same shape (True: this
cell counts), and returns a float.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mdtim.panel import BoolArray, FloatArray


def _pick(name: str, array: ArrayLike, scored: BoolArray) -> FloatArray:
    full = np.asarray(array, dtype=np.float64)
    if full.shape != scored.shape:
        raise ValueError(f"{name} has shape {full.shape}, scored has {scored.shape}")
    picked = full[scored]
    if picked.size == 0:
        raise ValueError("no cell is scored: the mask is empty")
    if np.isnan(picked).any():
        raise ValueError(f"{name} is NaN in {int(np.isnan(picked).sum())} of the scored cells")
    return picked


def mae(truth: ArrayLike, estimate: ArrayLike, scored: BoolArray) -> float:
    """Mean absolute error.

    Examples
    --------
    >>> mae([1.0, 2.0, 9.0], [1.5, 2.0, 0.0], np.array([True, True, False]))
    0.25
    """
    errors = _pick("estimate", estimate, scored) - _pick("truth", truth, scored)
    return float(np.abs(errors).mean())


def mse(truth: ArrayLike, estimate: ArrayLike, scored: BoolArray) -> float:
    """Mean squared error."""
    errors = _pick("estimate", estimate, scored) - _pick("truth", truth, scored)
    return float(np.square(errors).mean())


def rmse(truth: ArrayLike, estimate: ArrayLike, scored: BoolArray) -> float:
    """Root of the mean squared error."""
    return float(np.sqrt(mse(truth, estimate, scored)))


def mre(truth: ArrayLike, estimate: ArrayLike, scored: BoolArray) -> float:
    """Mean relative error: summed absolute error over summed absolute truth."""
    known = _pick("truth", truth, scored)
    total = float(np.abs(known).sum())
    if total == 0:
        raise ValueError("the scored truth is zero everywhere: a relative error has no meaning")
    return float(np.abs(_pick("estimate", estimate, scored) - known).sum() / total)


def coverage(truth: ArrayLike, lower: ArrayLike, upper: ArrayLike, scored: BoolArray) -> float:
    """Share of the scored cells whose truth lies inside [lower, upper]."""
    known = _pick("truth", truth, scored)
    inside = (known >= _pick("lower", lower, scored)) & (known <= _pick("upper", upper, scored))
    return float(inside.mean())


def width(lower: ArrayLike, upper: ArrayLike, scored: BoolArray) -> float:
    """Mean width of the intervals."""
    return float((_pick("upper", upper, scored) - _pick("lower", lower, scored)).mean())


def sample_crps(truth: ArrayLike, samples: ArrayLike, scored: BoolArray) -> float:
    """CRPS from samples: mean |x - y| less half the mean |x - x'| over all pairs.

    Parameters
    ----------
    samples : (M, ...) array
        M samples of every cell.
    """
    drawn = np.asarray(samples, dtype=np.float64)
    known = _pick("truth", truth, scored)
    picked = np.stack([_pick("samples", one, scored) for one in drawn])
    count = len(picked)
    distance = np.abs(picked - known).mean(axis=0)
    # Sum over pairs of |x_i - x_j| from the sorted samples, without the M × M table.
    ranks = 2 * np.arange(1, count + 1) - count - 1
    pairs = 2 * np.tensordot(ranks, np.sort(picked, axis=0), axes=1) / count**2
    return float((distance - pairs / 2).mean())
