"""What a report says, as plain data: counts, gaps, a map of the missing, the facts of each chart.

Nothing here draws and nothing is thinned: :meth:`Summary.to_dict` is ready for JSON and for any
renderer. What is not a finite number is None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mdtim.evaluation import Evaluation
from mdtim.panel import BoolArray, FloatArray, IntArray, Panel, length_groups
from mdtim.report.about import AboutFacts
from mdtim.report.gaps import Gaps, empty_columns
from mdtim.report.lines import Fill, context_of
from mdtim.report.written import decimals_of
from mdtim.tables.inspection import MissingMap, missing_map
from mdtim.tables.labels import Labels

if TYPE_CHECKING:
    from mdtim.imputation import Imputation
    from mdtim.tables.table import Table

MAX_CHARTS, MAX_GAPS_PER_CHART, MAX_FIRST_GAPS = 50, 6, 12
MAX_BINS = 300


@dataclass(frozen=True)
class TableFacts:
    """The table as a whole."""

    steps: int
    skipped: int
    """Steps among them that no row of the table stands for."""
    variates: int
    series: int
    start: str | None
    end: str | None
    """First and last timestamp; None without timestamps."""
    step_seconds: float | None
    missing: int
    share: float
    filled: int
    gaps: int
    """Of the columns that are not empty, as in all that is said of gaps."""
    longest_gap: int
    left_missing: tuple[str, ...]
    """Columns of which some cells are not filled."""
    empty: tuple[str, ...]
    """Those of which nothing was observed and nothing is filled."""


@dataclass(frozen=True)
class ColumnFacts:
    """One column; gap lengths in steps."""

    column: str
    missing: int
    share: float
    filled: int
    gaps: int
    median_gap: float | None
    longest_gap: int | None
    uncertainty: float | None
    """Mean std of the filled cells in units of the std of the observed ones."""


@dataclass(frozen=True)
class GapFacts:
    """One filled gap that is worth a look."""

    column: str
    series: str | None
    chart: int
    """Number of its chart."""
    start: str
    end: str
    """Timestamps or steps from 0, both inside the gap."""
    position: int
    """Its first step, from 0 in its series."""
    length: int
    decimals: int | None
    """Of the column's observed values; None for more than six."""
    mean: float | None
    """Of the filled values."""
    band90: float | None
    """Mean width of the 90 % band."""
    uncertainty: float | None
    reason: str | None
    """What it is first in, within its chart."""
    view: tuple[float, float]
    """Range of the axis that shows it: milliseconds since 1970, or steps of the series."""


@dataclass(frozen=True)
class ChartFacts:
    """One column of one series, as it is charted."""

    column: str
    series: str | None
    steps: int
    missing: int
    filled: int
    gaps: int
    decimals: int | None
    """Of the column's observed values; None for more than six."""
    lowest: float | None
    highest: float | None
    """Of the filled values."""
    band50: float | None
    band90: float | None
    """Mean widths."""
    listed: tuple[GapFacts, ...]
    """The longest and the most uncertain gaps by turns."""
    variate: int
    number: int
    """Of the series in the panel."""


@dataclass(frozen=True)
class LengthFacts:
    """Gaps of similar length."""

    shortest: int
    longest: int
    gaps: int
    cells: int


@dataclass(frozen=True)
class Summary:
    """All that a report says."""

    about: AboutFacts
    table: TableFacts
    columns: tuple[ColumnFacts, ...]
    """Most missing cells first, empty ones last."""
    lengths: tuple[LengthFacts, ...]
    map: MissingMap
    first_gaps: tuple[GapFacts, ...]
    """Of the charts' listed gaps, the longest and the most uncertain by turns."""
    charts: tuple[ChartFacts, ...]
    """By column, most missing cells first; every column has one before any has a second."""
    charts_left_out: int
    evaluation: Evaluation | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        document: dict[str, Any] = _plain(asdict(self))
        return document


def summarize(
    imputation: Imputation,
    evaluation: Evaluation | None = None,
    *,
    name: str | None = None,
    notes: Sequence[str] | None = None,
) -> Summary:
    """Collect what a report says about a filled table, and about hidden cells if scored."""
    return summarize_fill(imputation, Fill.of(imputation), evaluation, name, notes)


def summarize_fill(
    imputation: Imputation,
    fill: Fill,
    evaluation: Evaluation | None,
    name: str | None,
    notes: Sequence[str] | None,
) -> Summary:
    """As :func:`summarize`, where the panels of the fill are at hand already."""
    panel, missing = imputation.table.panel, imputation.missing
    labels, gaps, empty = Labels.of(panel), Gaps.of(imputation), empty_columns(imputation)
    order = np.lexsort((-missing.sum(axis=0), empty))
    columns = tuple(_column(panel, gaps, int(variate)) for variate in order)
    chosen, left_out = _choose_charts(gaps, order)
    listed = [gaps.first_to_look_at(gaps.numbers_in(*pair), MAX_GAPS_PER_CHART) for pair in chosen]
    decimals = {v: decimals_of(panel.values[:, v]) for v in {variate for variate, _ in chosen}}
    charts = tuple(
        _chart(fill, gaps, labels, decimals[pair[0]], number, pair, own)
        for number, (pair, own) in enumerate(zip(chosen, listed, strict=True))
    )
    by_number = {
        gap: facts
        for own, chart in zip(listed, charts, strict=True)
        for gap, facts in zip(own, chart.listed, strict=True)
    }
    first = gaps.first_to_look_at(np.array(sorted(by_number), dtype=np.int64), MAX_FIRST_GAPS)
    return Summary(
        about=AboutFacts.of(imputation, name, notes),
        table=_table(imputation.table, missing, gaps, columns, labels, empty),
        columns=columns,
        lengths=_lengths(gaps),
        map=missing_map(panel, order, MAX_BINS),
        first_gaps=tuple(by_number[gap] for gap in first),
        charts=charts,
        charts_left_out=left_out,
        evaluation=evaluation,
    )


def _table(
    table: Table,
    missing: BoolArray,
    gaps: Gaps,
    columns: tuple[ColumnFacts, ...],
    labels: Labels,
    empty: BoolArray,
) -> TableFacts:
    panel = table.panel
    times, count = panel.timestamps, int(missing.sum())
    has_times = times is not None and len(times) > 0
    ends = (int(times.argmin()), int(times.argmax())) if times is not None and has_times else ()
    start, end = (labels.of_rows(np.array([row]))[0] for row in ends) if ends else (None, None)
    return TableFacts(
        steps=len(missing),
        skipped=table.num_skipped,
        variates=len(panel.variates),
        series=panel.num_series,
        start=start,
        end=end,
        step_seconds=panel.step_seconds,
        missing=count,
        share=count / max(missing.size, 1),
        filled=int(gaps.filled.sum()),
        gaps=len(gaps),
        longest_gap=int(gaps.lengths.max(initial=0)),
        left_missing=tuple(c.column for c in columns if c.filled < c.missing),
        empty=tuple(panel.variates[variate] for variate in np.flatnonzero(empty)),
    )


def _column(panel: Panel, gaps: Gaps, variate: int) -> ColumnFacts:
    own = gaps.numbers_in(variate)
    lengths, filled = gaps.lengths[own], gaps.filled[own]
    missing = int((~panel.observed[:, variate]).sum())
    known = ~np.isnan(gaps.uncertainty[own])
    uncertainty = None
    if known.any():
        shares = filled[known] / filled[known].sum()  # times huge numbers, they cannot overflow
        uncertainty = float((gaps.uncertainty[own][known] * shares).sum())
    return ColumnFacts(
        column=panel.variates[variate],
        missing=missing,
        share=missing / max(len(panel.values), 1),
        filled=int(filled.sum()),
        gaps=len(own),
        median_gap=float(np.median(lengths)) if len(own) else None,
        longest_gap=int(lengths.max()) if len(own) else None,
        uncertainty=uncertainty,
    )


def _choose_charts(gaps: Gaps, order: IntArray) -> tuple[list[tuple[int, int]], int]:
    """Pairs of variate and series that have gaps, and how many of them are left out."""
    pairs = []
    for place, variate in enumerate(order.tolist()):
        own = gaps.numbers_in(variate)
        missing = np.bincount(gaps.series[own], weights=gaps.lengths[own])
        ranked = np.argsort(-missing, kind="stable")[: np.count_nonzero(missing)]
        pairs += [(rank, place, variate, series) for rank, series in enumerate(ranked.tolist())]
    # Every column gets its first chart before any gets its second.
    chosen = sorted(sorted(pairs)[:MAX_CHARTS], key=lambda pair: (pair[1], pair[0]))
    return [pair[2:] for pair in chosen], len(pairs) - len(chosen)


def _chart(
    fill: Fill,
    gaps: Gaps,
    labels: Labels,
    decimals: int | None,
    number: int,
    pair: tuple[int, int],
    listed: list[int],
) -> ChartFacts:
    variate, series = pair
    own = gaps.numbers_in(variate, series)
    rows = slice(*fill.panel.offsets[series : series + 2].tolist())
    mean = fill.mean[rows, variate]
    is_filled = ~np.isnan(mean)
    outer_low, inner_low, inner_high, outer_high = (b[rows, variate] for b in fill.bounds)
    return ChartFacts(
        column=fill.panel.variates[variate],
        series=labels.of_series(series),
        steps=len(mean),
        missing=int(gaps.lengths[own].sum()),
        filled=int(is_filled.sum()),
        gaps=len(own),
        decimals=decimals,
        lowest=float(mean[is_filled].min()) if is_filled.any() else None,
        highest=float(mean[is_filled].max()) if is_filled.any() else None,
        band50=_mean(inner_high - inner_low),
        band90=_mean(outer_high - outer_low),
        listed=tuple(_gap(fill, gaps, labels, decimals, number, gap, own) for gap in listed),
        variate=variate,
        number=series,
    )


def _gap(
    fill: Fill,
    gaps: Gaps,
    labels: Labels,
    decimals: int | None,
    chart: int,
    number: int,
    among: IntArray,
) -> GapFacts:
    row, length = int(gaps.rows[number]), int(gaps.lengths[number])
    variate, series = int(gaps.variates[number]), int(gaps.series[number])
    first, stop = fill.panel.offsets[series : series + 2].tolist()
    margin = context_of(length)
    ends = np.array([max(row - margin, first), min(row + length + margin, stop) - 1])
    begin, end = labels.on_axis(ends).tolist()
    start, last = labels.of_rows(np.array([row, row + length - 1]))
    inside = slice(row, row + length)
    return GapFacts(
        column=fill.panel.variates[variate],
        series=labels.of_series(series),
        chart=chart,
        start=start,
        end=last,
        position=row - first,
        length=length,
        decimals=decimals,
        mean=_mean(fill.mean[inside, variate]),
        band90=_mean(fill.bounds[-1][inside, variate] - fill.bounds[0][inside, variate]),
        uncertainty=_plain(gaps.uncertainty[number]),
        reason=gaps.reason(number, among),
        view=(begin, end),
    )


def _lengths(gaps: Gaps) -> tuple[LengthFacts, ...]:
    facts = []
    for shortest, longest in length_groups(gaps.lengths):
        own = gaps.lengths[(gaps.lengths >= shortest) & (gaps.lengths <= longest)]
        facts.append(LengthFacts(shortest, longest, len(own), int(own.sum())))
    return tuple(facts)


def _mean(numbers: FloatArray) -> float | None:
    """Mean of the known numbers, if it is a finite one."""
    known = numbers[~np.isnan(numbers)]
    with np.errstate(all="ignore"):  # the sum of huge numbers is no number
        mean: float | None = _plain(known.mean()) if len(known) else None
    return mean


def _plain(value: Any) -> Any:
    """Make nested data of any numeric types ready for JSON: None for what is not finite."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
