"""Rows and series of a panel in words, and where they lie on the axis of a chart."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from mdtim.panel import FloatArray, IntArray, Panel


@dataclass(frozen=True, eq=False)
class Labels:
    """Names and places of the rows of a panel."""

    panel: Panel
    unit: str
    """The coarsest unit of time that tells all the timestamps exactly."""

    @classmethod
    def of(cls, panel: Panel) -> Labels:
        """Choose the unit that all timestamps are told in."""
        times = panel.timestamps
        for unit in ("D", "m", "s", "ms", "us"):
            if times is None or bool((times.astype(f"M8[{unit}]") == times).all()):
                return cls(panel, unit)
        return cls(panel, "ns")

    def of_rows(self, rows: IntArray) -> list[str]:
        """Timestamps, or steps of the series from 0 where there are none; rows of one series."""
        if self.panel.timestamps is None:
            return [f"{step:,}" for step in (rows - self._first_row(rows)).tolist()]
        times = self.panel.timestamps[rows].astype(f"M8[{self.unit}]")
        return [str(time).replace("T", " ") for time in times]

    def of_series(self, number: int) -> str | None:
        """Name of a series; None where there is only one without a name."""
        if self.panel.names:
            return str(self.panel.names[number])
        return str(number) if self.panel.num_series > 1 else None

    def on_axis(self, rows: IntArray) -> FloatArray:
        """Milliseconds since 1970, or steps of the series from 0; rows of one series.

        They never run back: while clocks that were set back show an hour again, time stands still.
        """
        if self._rising is None:
            return (rows - self._first_row(rows)).astype(np.float64)
        return self._rising[rows] / 1e6

    @cached_property
    def _rising(self) -> IntArray | None:
        """(N,) nanoseconds since 1970."""
        if self.panel.timestamps is None:
            return None
        rising = self.panel.timestamps.astype("M8[ns]").astype(np.int64)
        for first, stop in pairwise(self.panel.offsets.tolist()):
            rising[first:stop] = np.maximum.accumulate(rising[first:stop])
        return rising

    def axis_range(self) -> tuple[float, float]:
        """First and last place of any series on the axis."""
        times = self.panel.timestamps
        if times is None or not len(times):
            return 0.0, max(float(self.panel.lengths.max(initial=0)) - 1, 1.0)
        start, end = (self.on_axis(np.array([at]))[0] for at in (times.argmin(), times.argmax()))
        return (float(start), float(end)) if start < end else (float(start) - 1, float(end) + 1)

    def _first_row(self, rows: IntArray) -> int:
        if not len(rows):
            return 0
        offsets = self.panel.offsets
        return int(offsets[offsets <= rows.min()][-1])
