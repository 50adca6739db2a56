"""What a report shows, as plain data: counts per column, a map of the missing, chosen gaps.

Nothing here draws; the dict is ready for JSON and for any renderer. N steps, V variates, G gaps,
P drawn steps of a gap and its surroundings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mdtim.panel import BoolArray, FloatArray, IntArray, Panel, gap_lengths

if TYPE_CHECKING:
    from mdtim.imputation import Imputation

MAX_GAPS, MAX_GAPS_PER_COLUMN = 24, 3
MAX_BINS, MAX_POINTS = 200, 400
MIN_CONTEXT, MAX_CONTEXT = 12, 200
QUANTILES = {"5": 0.05, "25": 0.25, "75": 0.75, "95": 0.95}

Summary = dict[str, Any]


def summarize(imputation: Imputation, evaluation: Mapping[str, Any] | None = None) -> Summary:
    """Collect what a report shows.

    Parameters
    ----------
    imputation : Imputation
    evaluation : mapping, optional
        ``share_hidden``, ``num_hidden``, ``rows`` (``method``, ``mae``, ``rmse``, ``crps``,
        ``coverage90``) and ``columns`` (``column``, ``mae``, ``linear_mae``, ``coverage90``),
        errors in units of each column's standard deviation.

    Returns
    -------
    summary : dict
        Ready for JSON, None for what is not a finite number. ``table``: shape, time range and
        totals. ``columns``: counts, gap lengths in steps and ``relative_std``, the mean std of
        filled cells over the std of observed ones; most missing cells first. ``gaps``: those to
        draw, by column and then longest first, with lists of P steps for ``positions`` (in the
        series, from 0), ``labels``, ``observed``, ``mean`` and ``quantiles``. ``map``: for each
        column the share missing in each bin of stacked rows. ``evaluation``: as given.
    """
    panel, missing = imputation.table.panel, imputation.missing
    labels = _Labels.of(panel)
    gaps = _Gaps.of(imputation, missing)
    order = np.argsort(-missing.sum(axis=0), kind="stable")
    columns = [_column(panel, missing, gaps, int(variate)) for variate in order]
    times, num_missing = panel.timestamps, int(missing.sum())
    table = {
        "steps": len(missing),
        "variates": len(panel.variates),
        "series": panel.num_series,
        "start": None if times is None else labels.of_rows(np.array([times.argmin()]))[0],
        "end": None if times is None else labels.of_rows(np.array([times.argmax()]))[0],
        "step_seconds": panel.step_seconds,
        "missing": num_missing,
        "share": num_missing / max(missing.size, 1),
        "filled": int(gaps.filled.sum()),
        "gaps": len(gaps.rows),
        "longest_gap": int(gaps.lengths.max(initial=0)),
        "left_missing": [c["column"] for c in columns if c["filled"] < c["missing"]],
    }
    return {
        "table": table,
        "columns": columns,
        "gaps": _gaps_to_draw(imputation, gaps, gaps.choose(order), labels),
        "map": _map(panel, missing, order, labels),
        "evaluation": None if evaluation is None else _plain(evaluation),
    }


@dataclass(frozen=True, eq=False)
class _Labels:
    """Names of rows and series in words."""

    panel: Panel
    unit: str
    """The coarsest unit of time that tells all the timestamps exactly."""

    @classmethod
    def of(cls, panel: Panel) -> _Labels:
        times = panel.timestamps
        for unit in ("D", "m", "s", "ms", "us"):
            if times is None or bool((times.astype(f"M8[{unit}]") == times).all()):
                return cls(panel, unit)
        return cls(panel, "ns")

    def of_rows(self, rows: IntArray) -> list[str]:
        """Timestamps, or steps of the series from 0 where there are none; rows of one series."""
        if self.panel.timestamps is None:
            offsets = self.panel.offsets
            return [f"{row:,}" for row in rows - offsets[offsets <= rows[0]][-1]]
        times = self.panel.timestamps[rows].astype(f"M8[{self.unit}]")
        return [str(time).replace("T", " ") for time in times]

    def of_series(self, number: int) -> str | None:
        if self.panel.names:
            return str(self.panel.names[number])
        return str(number) if self.panel.num_series > 1 else None


@dataclass(frozen=True, eq=False)
class _Gaps:
    """All gaps, by column and then by row, each of these (G,)."""

    rows: IntArray
    variates: IntArray
    lengths: IntArray
    series: IntArray
    filled: IntArray
    """Number of its cells that were filled."""
    total_std: FloatArray
    """Sum of the std of its filled cells."""

    @classmethod
    def of(cls, imputation: Imputation, missing: BoolArray) -> _Gaps:
        rows, variates, lengths = gap_lengths(~missing, imputation.table.panel.offsets)
        cells = imputation.cells
        is_filled = np.isfinite(cells.mean)
        at = (cells.rows[is_filled], cells.variates[is_filled])
        starts, keys = (v * len(missing) + r for r, v in ((rows, variates), at))
        member = np.searchsorted(starts, keys, side="right") - 1
        filled = np.bincount(member, minlength=len(rows))
        total_std = np.zeros(len(rows))
        np.add.at(total_std, member, imputation.panel_std()[at])
        series = imputation.table.panel.series_of_rows()[rows]
        return cls(rows, variates, lengths, series, filled, total_std)

    def of_column(self, variate: int) -> IntArray:
        """Numbers of the gaps of a column."""
        first, stop = np.searchsorted(self.variates, [variate, variate + 1])
        return np.arange(first, stop)

    def choose(self, order: IntArray) -> list[tuple[int, str | None]]:
        """Gaps worth a picture, and why: the longest and the most uncertain of each column."""
        picks = [
            (rank, place, gap, reason)
            for place, variate in enumerate(order)
            for rank, (gap, reason) in enumerate(self._choose_in_column(int(variate)))
        ]
        # Every column gets its first picture before any gets its second.
        chosen = sorted(picks, key=lambda pick: pick[:2])[:MAX_GAPS]
        chosen.sort(key=lambda pick: (pick[1], -self.lengths[pick[2]], pick[2]))
        return [(gap, reason) for _, _, gap, reason in chosen]

    def _choose_in_column(self, variate: int) -> list[tuple[int, str | None]]:
        gaps = self.of_column(variate)
        gaps = gaps[self.filled[gaps] > 0]
        if len(gaps) == 0:
            return []
        lengths, std = self.lengths[gaps], self.total_std[gaps] / self.filled[gaps]
        longest = gaps[np.argsort(-lengths, kind="stable")[:50]].tolist()
        unsure = gaps[np.argsort(-std, kind="stable")[:50]].tolist()
        reasons = {unsure[0]: "most uncertain"} if std.max() > std.min() else {}
        if lengths.max() > lengths.min():
            both = longest[0] in reasons
            reasons[longest[0]] = "longest and most uncertain" if both else "longest"
        picked: list[int] = []
        for gap in (gap for pair in zip(longest, unsure, strict=True) for gap in pair):
            # A gap in the margin of another one's picture can be seen there already.
            if not any(self._is_near(gap, other) for other in picked):
                picked.append(gap)
        return [(gap, reasons.get(gap)) for gap in picked[:MAX_GAPS_PER_COLUMN]]

    def _is_near(self, gap: int, other: int) -> bool:
        after = self.rows[gap] - self.rows[other]
        near = -MIN_CONTEXT <= after < self.lengths[other] + MIN_CONTEXT
        return bool(near and self.series[gap] == self.series[other])


def _column(panel: Panel, missing: BoolArray, gaps: _Gaps, variate: int) -> dict[str, Any]:
    own = gaps.of_column(variate)
    lengths, filled = gaps.lengths[own], int(gaps.filled[own].sum())
    known = panel.values[~missing[:, variate], variate]
    with np.errstate(all="ignore"):  # nothing observed, all the same or huge: None below
        spread = np.float64(known.std()) if len(known) else np.float64(0)
        relative = gaps.total_std[own].sum() / np.float64(filled) / spread
    return {
        "column": panel.variates[variate],
        "missing": int(lengths.sum()),
        "share": int(lengths.sum()) / max(len(missing), 1),
        "filled": filled,
        "gaps": len(own),
        "median_gap": float(np.median(lengths)) if len(own) else None,
        "longest_gap": int(lengths.max()) if len(own) else None,
        "relative_std": _plain(relative),
    }


def _gaps_to_draw(
    imputation: Imputation, gaps: _Gaps, chosen: list[tuple[int, str | None]], labels: _Labels
) -> list[dict[str, Any]]:
    panel, cells = imputation.table.panel, imputation.cells
    mean = np.full(panel.values.shape, np.nan)
    mean[cells.rows, cells.variates] = cells.mean
    drawn, places = [], []
    for gap, reason in chosen:
        row, length = int(gaps.rows[gap]), int(gaps.lengths[gap])
        variate, number = int(gaps.variates[gap]), int(gaps.series[gap])
        begin, end = int(panel.offsets[number]), int(panel.offsets[number + 1])
        margin = min(max(length * 3 // 2, MIN_CONTEXT), MAX_CONTEXT)
        first, stop = max(row - margin, begin), min(row + length + margin, end)
        line = np.fmax(panel.values[first:stop, variate], mean[first:stop, variate])
        borders = np.array([first, row - 1, row, row + length - 1, row + length, stop - 1])
        rows = _rows_to_draw(line, first, borders.clip(first, stop - 1))
        start, last = labels.of_rows(np.array([row, row + length - 1]))
        drawn.append(
            {
                "column": panel.variates[variate],
                "series": labels.of_series(number),
                "reason": reason,
                "position": row - begin,
                "length": length,
                "start": start,
                "end": last,
                "timed": panel.timestamps is not None,
                "positions": (rows - begin).tolist(),
                "labels": labels.of_rows(rows),
                "observed": _plain(panel.values[rows, variate]),
                "mean": _plain(mean[rows, variate]),
                "quantiles": {},
            }
        )
        places.append((rows, variate))
    for name, level in QUANTILES.items() if drawn else ():
        bound = np.where(np.isnan(mean), np.nan, imputation.panel_quantile(level))
        for picture, place in zip(drawn, places, strict=True):
            picture["quantiles"][name] = _plain(bound[place])
    return drawn


def _rows_to_draw(line: FloatArray, first: int, borders: IntArray) -> IntArray:
    """Choose all steps of a short line; of a long one the lowest and highest of each stretch."""
    if len(line) <= MAX_POINTS:
        return np.arange(first, first + len(line))
    size = -(-len(line) // (MAX_POINTS // 2 - len(borders)))
    stretches = np.full((-(-len(line) // size), size), np.nan)
    stretches.flat[: len(line)] = line
    begins = first + size * np.arange(len(stretches))
    lowest = begins + np.where(np.isnan(stretches), np.inf, stretches).argmin(axis=1)
    highest = begins + np.where(np.isnan(stretches), -np.inf, stretches).argmax(axis=1)
    return np.unique(np.concatenate([lowest, highest, borders]))


def _map(panel: Panel, missing: BoolArray, order: IntArray, labels: _Labels) -> dict[str, Any]:
    num_rows, several = len(missing), panel.num_series > 1
    edges = np.linspace(0, num_rows, min(MAX_BINS, num_rows) + 1).astype(np.int64)
    counts = np.add.reduceat(missing, edges[:-1], axis=0, dtype=np.int64)
    # Rounding must not make a single missing cell vanish.
    shares = (counts / np.diff(edges)[:, None]).clip(0.001 * (counts > 0)).round(3)
    if several:
        marks = np.unique(np.linspace(0, panel.num_series, 9).astype(np.int64)[:-1])
        ticks = [[int(panel.offsets[s]) / num_rows, labels.of_series(int(s))] for s in marks]
    else:
        rows = np.unique(np.linspace(0, num_rows, 6).astype(np.int64).clip(max=num_rows - 1))
        ticks = [list(tick) for tick in zip(rows / num_rows, labels.of_rows(rows), strict=True)]
    return {
        "columns": [panel.variates[variate] for variate in order],
        "shares": shares[:, order].T.tolist(),
        "ticks": _plain(ticks),
        "several_series": several,
    }


def _plain(value: Any) -> Any:
    """Make nested data of any numeric types ready for JSON: None for what is not finite."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
