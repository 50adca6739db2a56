"""What is known about each series in each piece: where it begins and ends, and what it observes.

A run is what one piece holds of one series. R runs, V variates. Steps count from the run's first
row.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdtim.panel import BoolArray, FloatArray, IntArray
from mdtim.series_scales import series_moments
from mdtim.tables.table import Table


@dataclass(frozen=True, eq=False)
class Runs:
    """R runs; all that planning needs to know about a data set."""

    names: NDArray[np.str_]
    """(R,) the series, as text; empty where the table has no id."""
    pieces: IntArray
    """(R,) number of the piece."""
    first: NDArray[Any]
    """(R,) time of the first row, in the reading of the spacing; 0 without a time."""
    last: NDArray[Any]
    """(R,) time of the last row."""
    steps: IntArray
    """(R,) steps from the first to the last row, both counted, skipped ones too."""
    first_seen: IntArray
    """(R, V) step of the first observed cell, -1 where there is none."""
    first_value: FloatArray
    """(R, V) its value."""
    last_seen: IntArray
    """(R, V) step of the last observed cell, -1 where there is none."""
    last_value: FloatArray
    """(R, V) its value."""
    counts: IntArray
    """(R, V) known values; these and the next two are 0 in a data set of one series."""
    means: FloatArray
    """(R, V) their mean, robust to a lone absurd value."""
    stds: FloatArray
    """(R, V) their std."""

    @classmethod
    def of(cls, table: Table, piece: int) -> Runs:
        """The runs of one piece."""
        panel, timeline = table.panel, table.timeline
        assert timeline is not None
        count = panel.num_series
        first, last = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        if timeline.marks is not None:
            # Sorted by series, each of which ends where the next begins.
            begins = np.searchsorted(np.cumsum(timeline.steps) - timeline.steps, panel.offsets)
            first, last = timeline.marks[begins[:-1]], timeline.marks[begins[1:] - 1]
        known = panel.observed
        first_seen, first_value = _edge(
            panel.values, known, panel.offsets, panel.lengths, last=False
        )
        last_seen, last_value = _edge(panel.values, known, panel.offsets, panel.lengths, last=True)
        names = np.array([str(name) for name in panel.names] or [""])
        wanted = np.full(known.shape[1], bool(panel.names))
        found = series_moments(panel.values, panel.series_of_rows(), count, wanted)
        return cls(
            names,
            np.full(count, piece),
            first,
            last,
            panel.lengths,
            first_seen,
            first_value,
            last_seen,
            last_value,
            found.counts,
            found.mean,
            found.std,
        )

    def __len__(self) -> int:
        return len(self.names)

    def take(self, chosen: IntArray | BoolArray) -> Runs:
        """Some of the runs, in the given order."""
        return Runs(*(getattr(self, item.name)[chosen] for item in fields(self)))

    @classmethod
    def join(cls, parts: Sequence[Runs]) -> Runs:
        """All runs, one after the other."""
        return cls(
            *(np.concatenate([getattr(part, item.name) for part in parts]) for item in fields(cls))
        )

    def to_bytes(self) -> bytes:
        """As a file of NumPy arrays."""
        file = io.BytesIO()
        arrays = {item.name: getattr(self, item.name) for item in fields(self)}
        np.savez_compressed(file, allow_pickle=False, **arrays)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Runs:
        """Read what :meth:`to_bytes` wrote."""
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return cls(*(arrays[item.name] for item in fields(cls)))


def _edge(
    values: FloatArray, known: BoolArray, offsets: IntArray, lengths: IntArray, *, last: bool
) -> tuple[IntArray, FloatArray]:
    """(S, V) step and value of the first or last observed cell of each series."""
    step = np.arange(len(values)) - np.repeat(offsets[:-1], lengths)
    starts = offsets[:-1]
    if last:
        seen = np.maximum.reduceat(np.where(known, step[:, None], -1), starts, axis=0)
    else:
        past = np.iinfo(np.int64).max
        seen = np.minimum.reduceat(np.where(known, step[:, None], past), starts, axis=0)
        seen = np.where(seen == past, -1, seen)
    rows = np.maximum(seen, 0) + starts[:, None]
    found = np.take_along_axis(values, rows, axis=0)
    return seen, np.where(seen < 0, np.nan, found)
