"""Choose the window: long enough for the seasons and the gaps, short enough to learn from."""

from __future__ import annotations

import numpy as np

from mdtim.panel import FloatArray, Panel, gap_lengths
from mdtim.scaling import ABSURD, Standardizer

USUAL, LARGEST = 48, 192
"""Steps. Beyond the largest, training takes longer than the extra context is worth."""
LONG_USUAL, LONG_LARGEST = 128, 512
"""The same for a network that is already trained: all it knows of a table is what it sees."""


def longest_window(panel: Panel) -> int:
    """Steps beyond which a window would show nothing more, whatever is asked for."""
    return max(LONG_LARGEST, int(panel.lengths.max()))


def season_length(panel: Panel) -> int | None:
    """Steps after which the panel repeats itself best, or None if it does not.

    The first of the highest peaks of the autocorrelation (the mean over variates) of the longest
    series, absurd readings left out.
    """
    longest = int(np.argmax(panel.lengths))
    start, end = panel.offsets[longest], panel.offsets[longest + 1]
    values = panel.values[start : min(end, start + 20_000)]
    values = Standardizer.fit(values).forward(values).astype(np.float64)
    values[np.abs(values) > ABSURD] = np.nan
    limit = min(LARGEST, len(values) // 3)
    if limit < 4:
        return None
    columns = [column for column in values.T if np.isfinite(column).sum() > limit]
    found = (_autocorrelation(column, limit) for column in columns)
    correlations = [one for one in found if one is not None]
    if not correlations:
        return None
    mean = np.mean(correlations, axis=0)
    inner = mean[1:-1]
    peaks = np.flatnonzero((inner > mean[:-2]) & (inner >= mean[2:])) + 1
    peaks = peaks[peaks >= 4]
    if not len(peaks) or mean[peaks].max() <= 0.25:
        return None
    # A season's multiples are peaks too, and noise may lift one of them a little higher.
    return int(peaks[np.argmax(mean[peaks] > 0.9 * mean[peaks].max())])


def _autocorrelation(values: FloatArray, limit: int) -> FloatArray | None:
    """Correlation at lags 0..limit over the pairs that are both observed."""
    known = np.isfinite(values)
    centered = np.where(known, values - values[known].mean(), 0.0)
    if not centered.any():
        return None
    size = 2 ** int(np.ceil(np.log2(2 * len(values))))
    spectrum = np.fft.rfft(centered, size)
    present = np.fft.rfft(known.astype(float), size)
    products = np.fft.irfft(np.abs(spectrum) ** 2, size)[: limit + 1]
    pairs = np.fft.irfft(np.abs(present) ** 2, size)[: limit + 1]
    covariance = products / np.maximum(pairs, 1.0)
    return np.asarray(covariance / covariance[0])


def choose_window(panel: Panel, *, long: bool = False) -> int:
    """Steps per window for this panel.

    Two seasons and three times a long gap (nine tenths of the missing cells lie in gaps that are
    no longer), between 48 and 192 steps, and no longer than the longest series. A long window has
    four seasons and four times a long gap, between 128 and 512 steps.

    Examples
    --------
    >>> day = np.sin(np.arange(2_000) * 2 * np.pi / 24)[:, None]
    >>> choose_window(Panel(day, np.array([0, 2_000]), ("x",)))
    48
    >>> choose_window(Panel(day[:30], np.array([0, 30]), ("x",)))
    30
    """
    wanted, largest, spans = (LONG_USUAL, LONG_LARGEST, 4) if long else (USUAL, LARGEST, 2)
    season = season_length(panel)
    if season is not None:
        wanted = max(wanted, spans * season)
    observed = panel.observed
    # What was never observed has no gaps, it is one.
    _, _, lengths = gap_lengths(observed[:, observed.any(axis=0)], panel.offsets)
    if len(lengths):
        # Counted by cells: one outage among many single gaps is most of what is to be filled.
        ordered = np.sort(lengths)
        long_gap = ordered[np.searchsorted(np.cumsum(ordered), 0.9 * ordered.sum())]
        wanted = max(wanted, (4 if long else 3) * int(long_gap))
    wanted = min(8 * -(-wanted // 8), largest)
    return max(1, min(wanted, int(panel.lengths.max())))
