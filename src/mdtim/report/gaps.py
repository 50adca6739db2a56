"""Every gap of a filled table with its length and uncertainty, and which ones to look at first.

N steps, V variates, G gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from mdtim.panel import BoolArray, FloatArray, IntArray, gap_lengths
from mdtim.series_scales import PanelScales

if TYPE_CHECKING:
    from mdtim.imputation import Imputation


def empty_columns(imputation: Imputation) -> BoolArray:
    """(V,) True for the columns of which nothing was observed and nothing filled.

    They have no gaps: a gap has a value on one of its sides at least.
    """
    panel, cells = imputation.table.panel, imputation.cells
    filled = np.bincount(cells.variates[np.isfinite(cells.filled)], minlength=len(panel.variates))
    empty: BoolArray = ~panel.observed.any(axis=0) & (filled == 0)
    return empty


@dataclass(frozen=True, eq=False)
class Gaps:
    """All gaps of the columns that are not empty, by column and then by row; arrays are (G,)."""

    rows: IntArray
    """First row in the panel."""
    variates: IntArray
    lengths: IntArray
    """Steps."""
    series: IntArray
    """Number of the series in the panel."""
    filled: IntArray
    """Cells that were filled."""
    uncertainty: FloatArray
    """Mean std of the filled cells over that of the column's observed ones; NaN if unknown.

    In a column whose series differ much in size, over that of the series'."""

    @classmethod
    def of(cls, imputation: Imputation) -> Gaps:
        """Find the gaps of a filled table."""
        panel, cells = imputation.table.panel, imputation.cells
        known = panel.observed | empty_columns(imputation)
        rows, variates, lengths = gap_lengths(known, panel.offsets)
        is_filled = np.isfinite(cells.filled)
        at = (cells.rows[is_filled], cells.variates[is_filled])
        starts, keys = (v * len(panel.values) + r for r, v in ((rows, variates), at))
        member = np.searchsorted(starts, keys, side="right") - 1
        filled = np.bincount(member, minlength=len(rows))
        total_std = np.zeros(len(rows))
        np.add.at(total_std, member, imputation.panel_std()[at])
        scales, series = PanelScales.fit(panel), panel.series_of_rows()[rows]
        spread = np.where(scales.columns.varies, scales.std, np.nan)[series, variates]
        with np.errstate(all="ignore"):  # not filled, or too large a number: NaN below
            uncertainty = total_std / filled / spread
        uncertainty[~np.isfinite(uncertainty)] = np.nan
        return cls(rows, variates, lengths, series, filled, uncertainty)

    def __len__(self) -> int:
        return len(self.rows)

    def numbers_in(self, variate: int, series: int | None = None) -> IntArray:
        """Numbers of the gaps of a column, or of one series in it."""
        first, stop = np.searchsorted(self.variates, [variate, variate + 1])
        own = np.arange(first, stop)
        return own if series is None else own[self.series[own] == series]

    def first_to_look_at(self, numbers: IntArray, most: int) -> list[int]:
        """Choose filled gaps, the longest and the most uncertain by turns."""
        numbers = numbers[self.filled[numbers] > 0]
        longest = numbers[np.argsort(-self.lengths[numbers], kind="stable")[:most]]
        unsure = numbers[np.argsort(-self._known_uncertainty(numbers), kind="stable")[:most]]
        turns = chain.from_iterable(zip(longest.tolist(), unsure.tolist(), strict=True))
        return list(dict.fromkeys(turns))[:most]

    def reason(self, number: int, among: IntArray) -> str | None:
        """Say what a gap is first in among others, if it is."""
        reasons = []
        for word, size in (
            ("longest", self.lengths.astype(np.float64)),
            ("most uncertain", np.nan_to_num(self.uncertainty, nan=-1.0)),
        ):
            if number == among[size[among].argmax()] and np.ptp(size[among]) > 0:
                reasons.append(word)
        return " and ".join(reasons) or None

    def _known_uncertainty(self, numbers: IntArray) -> FloatArray:
        return np.nan_to_num(self.uncertainty[numbers], nan=-1.0)
