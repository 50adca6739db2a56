"""Cutting a panel into windows, and the weights that blend overlapping windows back.

A window is only an index here: its first row and the row where its series (or the part of it
that may be seen) ends. The cells are gathered later, on the device that holds the values. A
series shorter than a window gives one window whose tail lies past the end and counts as missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mdtim.panel import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class WindowIndex:
    """W windows of one length over the rows of a panel."""

    starts: IntArray
    """(W,) first row of each window."""
    ends: IntArray
    """(W,) first row past the series of each window; cells from there on do not exist."""
    length: int
    """T, steps per window."""

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def num_rows(self) -> int:
        """Rows that are in some window.

        Examples
        --------
        >>> every_window(np.array([0, 9]), 4).num_rows
        9
        """
        if not len(self):
            return 0
        order = np.argsort(self.starts, kind="stable")
        starts = self.starts[order]
        stops = np.maximum.accumulate(starts + self._sizes()[order])
        new = stops - np.maximum(starts, np.concatenate([starts[:1], stops[:-1]]))
        return int(np.maximum(new, 0).sum())

    @property
    def num_shown(self) -> int:
        """Rows of all windows, each counted as often as it is in one."""
        return int(self._sizes().sum())

    def _sizes(self) -> IntArray:
        """(W,) rows of each window."""
        sizes: IntArray = np.minimum(self.ends - self.starts, self.length)
        return sizes

    def take(self, which: IntArray | Sequence[int]) -> WindowIndex:
        """Return the chosen windows, in that order."""
        chosen = np.asarray(which, dtype=np.int64)
        return WindowIndex(self.starts[chosen], self.ends[chosen], self.length)


def _runs(first: IntArray, counts: IntArray, stride: int) -> IntArray:
    """Concatenate `first[i] + stride * arange(counts[i])` without a loop."""
    total = int(counts.sum())
    position = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(first, counts) + stride * position


def every_window(offsets: IntArray, length: int) -> WindowIndex:
    """All windows at stride 1; a shorter series gives the one window that holds it.

    Examples
    --------
    >>> every_window(np.array([0, 5, 7]), 4).starts.tolist()
    [0, 1, 5]
    """
    lengths = np.diff(offsets)
    counts = np.where(lengths > 0, np.maximum(lengths - length, 0) + 1, 0)
    return WindowIndex(_runs(offsets[:-1], counts, 1), np.repeat(offsets[1:], counts), length)


def covering_windows(offsets: IntArray, length: int) -> WindowIndex:
    """Half-overlapping windows that cover every row, the last one flush with its series' end.

    Examples
    --------
    >>> covering_windows(np.array([0, 9, 11]), 4).starts.tolist()
    [0, 2, 4, 5, 9]
    """
    stride = max(length // 2, 1)
    lengths = np.diff(offsets)
    counts = np.where(lengths > 0, -(-np.maximum(lengths - length, 0) // stride) + 1, 0)
    starts = _runs(offsets[:-1], counts, stride)
    ends = np.repeat(offsets[1:], counts)
    firsts = np.repeat(offsets[:-1], counts)
    return WindowIndex(np.maximum(np.minimum(starts, ends - length), firsts), ends, length)


def halo(
    begins: IntArray, ends: IntArray, lengths: IntArray, length: int
) -> tuple[IntArray, IntArray]:
    """Widen cuts of series to all that the windows over them see.

    The covering windows of a widened cut are those covering windows of the whole series that it
    holds, and all that see a row of the cut are among them.

    Parameters
    ----------
    begins, ends : (S,) first step of each cut, and first step past it
    lengths : (S,) steps of the whole series
    length : steps per window

    Returns
    -------
    begins, ends : (S,)

    Examples
    --------
    >>> halo(np.array([50]), np.array([60]), np.array([100]), 8)
    (array([40]), array([64]))
    """
    stride = max(length // 2, 1)
    wide_begins = np.maximum((begins - length) // stride * stride, 0)
    wide_ends = (ends - 1) // stride * stride + length
    # The last window is flush with the end of its series and may reach back into the cut.
    return wide_begins, np.where(lengths - length < ends, lengths, wide_ends)


def blend_weights(length: int) -> FloatArray:
    """(T,) triangular weights: a cell counts for more the further it is from a window's edges."""
    position = np.arange(length)
    return np.minimum(position + 1, length - position).astype(np.float64)


def hold_out(
    observed_N: BoolArray,
    offsets: IntArray,
    length: int,
    share: float,
    generator: np.random.Generator,
) -> tuple[WindowIndex, WindowIndex]:
    """Split into training and validation windows that share no row.

    The series are laid out in blocks of one window's length; of those with a row that has
    something observed, a `share` is drawn at random. Training windows are all stride-1 windows
    that touch none of them. A panel too small to spare a block trains on all windows, and
    validation repeats covering ones of them.

    Parameters
    ----------
    observed_N : rows in which something is observed

    Returns
    -------
    training, validation : WindowIndex
    """
    blocks = covering_windows(offsets, length)
    lengths = np.diff(offsets)
    counts = np.maximum(lengths // length, (lengths > 0).astype(np.int64))
    starts = _runs(offsets[:-1], counts, length)
    ends = np.minimum(starts + length, np.repeat(offsets[1:], counts))
    num_observed = np.append(0, np.cumsum(observed_N))
    is_seen = num_observed[ends] > num_observed[starts]
    num_held = round(share * int(is_seen.sum()))
    if num_held == 0 or num_held == is_seen.sum():
        return every_window(offsets, length), blocks
    order = generator.permutation(len(starts))
    held = np.sort(order[is_seen[order]][:num_held])
    validation = WindowIndex(starts[held], ends[held], length)

    taken = np.zeros(int(offsets[-1]) + 1, dtype=np.int64)
    for start, end in zip(validation.starts, validation.ends, strict=True):
        taken[start + 1 : end + 1] = 1
    num_taken_before = np.cumsum(taken)
    candidates = every_window(offsets, length)
    stops = np.minimum(candidates.starts + length, candidates.ends)
    free = num_taken_before[stops] == num_taken_before[candidates.starts]
    if not free.any():
        return every_window(offsets, length), blocks
    return candidates.take(np.flatnonzero(free)), validation
