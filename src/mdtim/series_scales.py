"""Scales of single series, for columns whose series differ too much in size to share one.

A shop sells ten a day, another ten thousand: in the scale of both, the first is a flat line. In
such a column every series is standardized by its own mean and std. N rows, S series, V variates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mdtim.panel import BoolArray, FloatArray, IntArray, Panel, SeriesMoments
from mdtim.scaling import Standardizer, moments, standardize

T = TypeVar("T")

ENOUGH = 8
"""Known values of which a series' own mean and std tell more than those of its column."""
TELLING = 100
"""Known values from which a series can show that the series of a column differ in size."""
APART = 5.0
"""Times smaller or larger than its column, or stds away from its mean: a series of other size."""
WIDER = 8.0
"""Times as much as in the fit, by which a series varies that has outgrown its scale."""
_PREFIX = "series."
"""Of the scales among the weights."""


def series_moments(
    values: FloatArray, series: IntArray, num_series: int, variates: BoolArray
) -> SeriesMoments:
    """Mean and std of each series in (N, V) values, NaN where missing.

    Parameters
    ----------
    series : (N,) the number of each row's series; rows of one need not follow each other
    variates : (V,) True for those to look at; nothing is said of the others
    """
    shape = (num_series, values.shape[1])
    counts, mean, std = np.zeros(shape, dtype=np.int64), np.zeros(shape), np.zeros(shape)
    for column in np.flatnonzero(variates):
        seen = ~np.isnan(values[:, column])
        if not seen.any():
            continue
        known, of = values[seen, column], series[seen]
        order = np.lexsort((known, of))
        told, starts, counts_told = np.unique(of[order], return_index=True, return_counts=True)
        counts[told, column] = counts_told
        mean[told, column], std[told, column] = moments(known[order], starts)
    return SeriesMoments(counts, mean, std)


def _own(found: SeriesMoments, columns: Standardizer) -> tuple[FloatArray, FloatArray]:
    """(S, V) means and stds, NaN where a series tells too little of its size.

    One that never varies lies at 0, in the scale of its column.
    """
    enough, std = found.counts >= ENOUGH, np.where(found.std > 0, found.std, columns.std)
    return np.where(enough, found.mean, np.nan), np.where(enough, std, np.nan)


@dataclass(frozen=True, eq=False)
class SeriesScales:
    """The scales that S series had in the table of the fit, by their names."""

    apart: BoolArray
    """(V,) True for the columns in which each series has a scale of its own."""
    names: tuple[str, ...]
    mean: FloatArray
    """(S, V) NaN where the column's holds."""
    std: FloatArray
    """(S, V) likewise."""

    @classmethod
    def fit(cls, panel: Panel, columns: Standardizer) -> SeriesScales | None:
        """Scales of the series of a panel, by name; None where one for each column is enough."""
        if panel.are_windows or not panel.names:
            return None  # a calm window is no series of a smaller size
        names, number = np.unique(_names(panel), return_inverse=True)
        rows = number[panel.series_of_rows()]  # a sample may hold several stretches of a series
        found = series_moments(panel.values, rows, len(names), columns.varies)
        mean, std = _own(found, columns)
        with np.errstate(over="ignore"):
            size, away = std / columns.std, np.abs(mean - columns.mean) / columns.std
        other = (size < 1 / APART) | (size > APART) | (away > APART)
        apart = np.asarray((other & (found.counts >= TELLING)).any(axis=0))
        if not apart.any():
            return None
        # What lay still tells nothing of its size, should it ever move.
        kept = apart & (found.std > 0)
        mean, std = (np.where(kept, part, np.nan) for part in (mean, std))
        return cls(apart, tuple(names.tolist()), mean, std)

    def outgrown(self, names: Sequence[str], found: SeriesMoments) -> BoolArray:
        """(S, V) True where series have no scale from the fit, or vary far more than in it."""
        _, std = self.of_names(names)
        wider = (found.counts >= ENOUGH) & (found.std > WIDER * std)
        return np.asarray(self.apart & (np.isnan(std) | wider))

    def of_names(self, names: Sequence[str]) -> tuple[FloatArray, FloatArray]:
        """(S, V) means and stds that series of these names had in the fit, NaN where none."""
        place = {name: number for number, name in enumerate(self.names)}
        row = np.array([place.get(name, -1) for name in names], dtype=np.int64)
        found = (row >= 0)[:, None]
        return np.where(found, self.mean[row], np.nan), np.where(found, self.std[row], np.nan)

    # -- as a document ----------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """All but the numbers, ready for JSON."""
        return {"apart": self.apart.tolist(), "names": list(self.names)}

    def arrays(self) -> dict[str, FloatArray]:
        """The numbers, for the file of weights."""
        return {_PREFIX + "mean": self.mean, _PREFIX + "std": self.std}

    @classmethod
    def of_document(
        cls, document: dict[str, Any], tensors: Mapping[str, Any]
    ) -> SeriesScales | None:
        """Those of a saved model, if it has any."""
        tree = document.get("series")
        if tree is None:
            return None
        mean, std = (np.asarray(tensors[_PREFIX + name]) for name in ("mean", "std"))
        return cls(np.array(tree["apart"], dtype=bool), tuple(tree["names"]), mean, std)


def without_scales(tensors: Mapping[str, T]) -> dict[str, T]:
    """Those of the file of weights that are no scales."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(_PREFIX)}


@dataclass(frozen=True, eq=False)
class PanelScales:
    """Mean and std of every series and variate of one panel, and the variates' bounds."""

    columns: Standardizer
    mean: FloatArray
    """(S, V)"""
    std: FloatArray
    """(S, V)"""
    apart: BoolArray
    """(V,) True for the columns in which each series has a scale of its own."""
    rough: BoolArray
    """(S, V) True where series differ in size and one tells too little of its own."""
    outgrown: BoolArray
    """(S, V) True where a series of the fit varies so much more now that it has a new scale."""

    @classmethod
    def fit(cls, panel: Panel) -> PanelScales:
        """Scales of a panel by itself."""
        columns = Standardizer.fit(panel.values)
        return cls.of(panel, columns, SeriesScales.fit(panel, columns))

    @classmethod
    def of(cls, panel: Panel, columns: Standardizer, series: SeriesScales | None) -> PanelScales:
        """Scales of a panel: its series keep those of the fit; a new one has those it shows."""
        shape = (panel.num_series, len(panel.variates))
        mean, std = (np.broadcast_to(part, shape) for part in (columns.mean, columns.std))
        none = np.zeros(shape, dtype=bool)
        if series is None:
            return cls(columns, mean, std, np.zeros(shape[1], dtype=bool), none, none)
        names = _names(panel)
        if panel.surroundings is not None:
            found = panel.surroundings.moments
        else:
            of_rows = panel.series_of_rows()
            found = series_moments(panel.values, of_rows, panel.num_series, series.apart)
        own_mean, own_std = series.of_names(names)
        renewed, unknown = series.outgrown(names, found), np.isnan(own_mean)
        new_mean, new_std = _own(found, columns)
        own_mean = np.where(renewed, new_mean, own_mean)
        own_std = np.where(renewed, new_std, own_std)
        is_own = series.apart & ~np.isnan(own_mean)
        return cls(
            columns,
            np.where(is_own, own_mean, mean),
            np.where(is_own, own_std, std),
            series.apart,
            rough=series.apart & ~is_own,
            outgrown=renewed & ~unknown,
        )

    def forward(self, values: FloatArray, series: IntArray) -> NDArray[np.float32]:
        """Standardize (R, V) values, each row of one of the series; NaN stays NaN."""
        if not self.apart.any():
            return self.columns.forward(values)  # the same, without means and stds for each cell
        return standardize(values, self.mean[series], self.std[series])

    def back(self, standardized: FloatArray, series: IntArray, variates: IntArray) -> FloatArray:
        """Map (C,) standardized numbers of series and variates to data units, within bounds."""
        values = standardized * self.std[series, variates] + self.mean[series, variates]
        return np.clip(values, self.columns.least[variates], self.columns.most[variates])


def _names(panel: Panel) -> list[str]:
    return [str(name) for name in panel.names] or [""] * panel.num_series
