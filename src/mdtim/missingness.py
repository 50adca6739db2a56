"""Patterns of missingness: (shape, rate, generator) → hidden mask, for scoring an imputer.

Shapes are (B, T, V): windows, steps, variates. True means hidden. All randomness comes from the
NumPy generator passed in, whose streams are the same on every machine.
"""

from __future__ import annotations

import numpy as np

from mdtim.panel import BoolArray, IntArray

Shape = tuple[int, int, int]
RATES = (0.3, 0.5, 0.7)
"""Shares of the cells that the paper hides."""


def _check_rate(rate: float) -> None:
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must be a share between 0 and 1, got {rate}")


def uniform(shape: Shape, rate: float, generator: np.random.Generator) -> BoolArray:
    """Hide exactly int(rate * cells) cells of the whole tensor, without replacement.

    Examples
    --------
    >>> int(uniform((10, 48, 7), 0.3, np.random.default_rng(0)).sum())
    1008
    """
    _check_rate(rate)
    hidden = np.zeros(int(np.prod(shape)), dtype=bool)
    hidden[generator.choice(hidden.size, size=int(rate * hidden.size), replace=False)] = True
    return hidden.reshape(shape)


def geometric(
    shape: Shape, rate: float, generator: np.random.Generator, mean_run: float = 3.0
) -> BoolArray:
    """Hide runs: per window and variate a two-state chain, started from its stationary law.

    A hidden run ends with probability 1 / mean_run; an observed one with the probability that
    makes `rate` the stationary share of hidden cells.
    """
    _check_rate(rate)
    if rate in (0.0, 1.0):
        return np.full(shape, rate == 1.0)
    leave_hidden = 1.0 / mean_run
    leave_observed = leave_hidden * rate / (1.0 - rate)
    if leave_observed > 1:
        raise ValueError(
            f"runs of mean length {mean_run} cannot hide {rate:.0%}: "
            f"use mean_run of at least {rate / (1 - rate):.2f}"
        )
    num_windows, num_steps, num_variates = shape
    hidden = np.empty(shape, dtype=bool)
    state = generator.random((num_windows, num_variates)) < rate
    for step in range(num_steps):
        if step:
            leave = np.where(state, leave_hidden, leave_observed)
            state = state ^ (generator.random(state.shape) < leave)
        hidden[:, step] = state
    return hidden


def block(
    shape: Shape, rate: float, generator: np.random.Generator, mean_run: float = 12.0
) -> BoolArray:
    """Hide intervals in which every variate is gone (a blackout), of geometric length."""
    rows = geometric(
        (shape[0], shape[1], 1), rate, generator, max(mean_run, rate / (1.0001 - rate))
    )
    return np.broadcast_to(rows, shape).copy()


def whole_variate(shape: Shape, rate: float, generator: np.random.Generator) -> BoolArray:
    """Hide whole variates of a window, each with probability `rate`."""
    _check_rate(rate)
    gone = generator.random((shape[0], 1, shape[2])) < rate
    return np.broadcast_to(gone, shape).copy()


def value_dependent(
    values: np.ndarray, rate: float, generator: np.random.Generator, sharpness: float = 2.0
) -> BoolArray:
    """Hide large values more often than small ones (missing not at random).

    Parameters
    ----------
    values : (B, T, V) float
        The truth; NaN where nothing is known, which is never hidden.
    """
    _check_rate(rate)
    center = np.nanmean(values, axis=(0, 1), keepdims=True)
    spread = np.nanstd(values, axis=(0, 1), keepdims=True)
    score = sharpness * (values - center) / np.where(spread > 0, spread, 1.0)
    # Gumbel top-k: hide exactly the asked share, cells with odds exp(score).
    score = score + generator.gumbel(size=values.shape)
    known = ~np.isnan(values)
    num_hidden = int(rate * known.sum())
    order = np.argsort(np.where(known, -score, np.inf), axis=None, kind="stable")
    hidden = np.zeros(values.size, dtype=bool)
    hidden[order[:num_hidden]] = True
    return hidden.reshape(values.shape)


SPARSE = 0.01
"""Share of observed cells below which a table counts as sparse."""


def joint_share(observed: BoolArray) -> float:
    """Share of the missing cells that lie in rows where every variate is missing.

    Parameters
    ----------
    observed : (N, V) bool
    """
    missing = ~observed
    return float(missing[missing.all(axis=1)].sum() / max(missing.sum(), 1))


def points_and_runs(
    observed: BoolArray,
    offsets: IntArray,
    rate: float,
    generator: np.random.Generator,
    gap_lengths: IntArray | None = None,
    joint: float = 0.0,
) -> BoolArray:
    """Hide a share of the observed cells of long series: half single cells, half runs.

    Parameters
    ----------
    observed : (N, V) bool
    offsets : (S + 1,) int
        Series boundaries; a run never crosses one.
    rate : float
        Share of the observed cells to hide; reached exactly, up to rounding down.
    gap_lengths : (G,) int, optional
        Run lengths to draw from (a table's own gaps); geometric with mean 6 without.
    joint : float
        Share of the cells in runs that are hidden in all variates at once.

    Returns
    -------
    hidden : (N, V) bool, a subset of `observed`
    """
    _check_rate(rate)
    target = int(rate * observed.sum())
    hidden = np.zeros(observed.shape, dtype=bool)
    if target == 0:
        return hidden
    stops = np.repeat(offsets[1:], np.diff(offsets))
    num_rows, num_variates = observed.shape
    # Where little is observed, runs begin at cells that are: few others would meet one.
    known = np.flatnonzero(observed) if observed.mean() < SPARSE else None
    # A run of all variates hides as many cells as one of each: so fewer of these are drawn.
    wide_share = joint / (joint + num_variates * (1 - joint))
    if gap_lengths is not None and not len(gap_lengths):
        gap_lengths = None
    mean_length = 6.0 if gap_lengths is None else float(gap_lengths.mean())
    cells_of_run = mean_length * (1 + wide_share * (num_variates - 1))
    num_hidden = 0
    # Half of what is left at a time, lest runs overshoot; the surplus is shown again below.
    while num_hidden < target // 2:
        count = max(int((target // 2 - num_hidden) / (2 * cells_of_run)), 1)
        if known is None:
            rows = generator.integers(num_rows, size=count)
            columns = generator.integers(num_variates, size=count)
        else:
            rows, columns = divmod(generator.choice(known, size=count), num_variates)
        if gap_lengths is None:
            lengths = generator.geometric(1 / mean_length, size=count)
        else:
            lengths = generator.choice(gap_lengths, size=count)
        is_wide = np.zeros(count, dtype=bool)
        if joint:
            is_wide = generator.random(count) < wide_share
        # One run may not take more than a quarter of what is to be hidden.
        most = np.where(is_wide, target // (4 * num_variates), target // 4)
        lengths = np.minimum(lengths, np.maximum(most, 1))
        for row, column, length, wide in zip(rows, columns, lengths, is_wide, strict=True):
            end = min(row + length, stops[row])
            run = (slice(row, end), slice(None) if wide else slice(column, column + 1))
            new = observed[run] & ~hidden[run]
            hidden[run] |= new
            num_hidden += int(new.sum())
    left = np.flatnonzero(observed & ~hidden)
    missing_count = target - num_hidden
    if missing_count > 0:
        hidden.flat[generator.choice(left, size=missing_count, replace=False)] = True
    elif missing_count < 0:
        surplus = generator.choice(np.flatnonzero(hidden), size=-missing_count, replace=False)
        hidden.flat[surplus] = False
    return hidden
