"""The one form every table takes inside mdtim: regular series, stacked along the rows.

Everything downstream (windows, training, inference) sees a :class:`Panel` and nothing else;
:mod:`mdtim.tables.table` makes one from whatever the user has and leads the way back.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SeriesMoments:
    """How S series lie in V variates, robust to a lone absurd value."""

    counts: IntArray
    """(S, V) known values; 0 where nobody looked."""
    mean: FloatArray
    """(S, V) meaningless where nothing is known."""
    std: FloatArray
    """(S, V) 0 where nothing varies."""


@dataclass(frozen=True, eq=False)
class Surroundings:
    """What lies around S series that were cut out of longer ones; V variates.

    Steps count from the first row of the cut series, so those before it are negative.
    """

    first_steps: IntArray
    """(S,) step of the whole series at which the cut one begins."""
    before_steps: IntArray
    """(S, V) where the last observed cell before the cut lies, meaningless where there is none."""
    before_values: FloatArray
    """(S, V) its value, NaN where there is none."""
    after_steps: IntArray
    """(S, V) where the first observed cell after the cut lies."""
    after_values: FloatArray
    """(S, V) its value, NaN where there is none."""
    moments: SeriesMoments
    """Of the whole series, where they have no scale from the fit."""


@dataclass(frozen=True, eq=False)
class Panel:
    """Equally spaced multivariate series, one below the other.

    Consecutive rows of one series are one step apart; a step that the source skipped is a row
    of missing cells. N rows in all, V variates, S series.
    """

    values: FloatArray
    """(N, V) float64; NaN where missing, never infinite."""
    offsets: IntArray
    """(S + 1,) series `s` is rows `offsets[s]:offsets[s + 1]`; starts at 0, ends at N."""
    variates: tuple[str, ...]
    """V names, in the order of the columns."""
    step_seconds: float | None = None
    """Length of one step in seconds where the table has timestamps."""
    timestamps: NDArray[np.datetime64] | None = None
    """(N,) one per row, in local time, where the table has timestamps."""
    names: tuple[Any, ...] = ()
    """S series names (values of the id column); empty for a table of one unnamed series."""
    are_windows: bool = False
    """True for the windows of an array: their names are numbers, and mean nothing elsewhere."""
    surroundings: Surroundings | None = None
    """What lies around the series; None: they are whole."""

    def __post_init__(self) -> None:
        assert self.values.ndim == 2
        assert self.values.dtype == np.float64
        assert self.values.shape[1] == len(self.variates)
        assert self.offsets[0] == 0
        assert self.offsets[-1] == len(self.values)
        assert np.all(np.diff(self.offsets) >= 0)
        assert self.timestamps is None or len(self.timestamps) == len(self.values)
        assert len(self.names) in (0, len(self.offsets) - 1)

    @property
    def observed(self) -> BoolArray:
        """(N, V) True where a value is known."""
        return ~np.isnan(self.values)

    @property
    def lengths(self) -> IntArray:
        """(S,) steps of each series."""
        return np.diff(self.offsets)

    @property
    def num_series(self) -> int:
        """How many series are stacked."""
        return len(self.offsets) - 1

    def series_of_rows(self) -> IntArray:
        """(N,) which series every row belongs to."""
        return np.repeat(np.arange(self.num_series), self.lengths)

    def row_keys(self) -> IntArray:
        """(N,) a number for each row that hangs on its series' name and its step alone.

        The same row has the same key in any table, and in any part that was cut out of one.
        """
        names = [_hash(name) for name in self.names] or [0]
        first = np.array(names, dtype=np.int64)
        if self.surroundings is not None:
            first = first + self.surroundings.first_steps
        return np.repeat(first - self.offsets[:-1], self.lengths) + np.arange(len(self.values))

    def select(self, columns: IntArray) -> Panel:
        """Return the panel of some of the variates."""
        return replace(
            self,
            values=np.ascontiguousarray(self.values[:, columns]),
            variates=tuple(self.variates[column] for column in columns),
        )


def _hash(name: Any) -> int:
    """40 bits, so that steps can be added and the variates counted below them."""
    return int.from_bytes(hashlib.blake2b(str(name).encode(), digest_size=5).digest(), "big")


def gap_lengths(observed: BoolArray, offsets: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Find every run of missing cells along time, never across two series.

    Parameters
    ----------
    observed : (N, V) bool
    offsets : (S + 1,) int

    Returns
    -------
    rows, variates, lengths : (G,) int
        First row, column and number of steps of each of the G gaps, ordered by column, then row.

    Examples
    --------
    >>> observed = np.array([[1, 1], [0, 1], [0, 0], [1, 1]], dtype=bool)
    >>> rows, variates, lengths = gap_lengths(observed, np.array([0, 4]))
    >>> list(zip(rows.tolist(), variates.tolist(), lengths.tolist()))
    [(1, 0, 2), (2, 1, 1)]
    """
    missing_VN = ~observed.T
    starts = missing_VN.copy()
    starts[:, 1:] &= observed.T[:, :-1]
    ends = missing_VN.copy()
    ends[:, :-1] &= observed.T[:, 1:]
    inner = offsets[1:-1][(offsets[1:-1] > 0) & (offsets[1:-1] < observed.shape[0])]
    starts[:, inner] = missing_VN[:, inner]
    ends[:, inner - 1] = missing_VN[:, inner - 1]
    variates, rows = np.nonzero(starts)
    _, last = np.nonzero(ends)
    return rows, variates, last - rows + 1


def length_groups(lengths: IntArray) -> list[tuple[int, int]]:
    """Group gap lengths by doubling: shortest and longest of each group, both included.

    Examples
    --------
    >>> length_groups(np.array([3, 1, 7]))
    [(1, 1), (2, 2), (3, 4), (5, 8)]
    """
    groups, shortest, longest = [], 1, 1
    while shortest <= lengths.max(initial=0):
        groups.append((shortest, longest))
        shortest, longest = longest + 1, 2 * longest
    return groups
