"""The charts of a report as Bokeh figures.

No figure has colours of its own: a tag such as `line_color:accent` says which property takes which
of the page's colours, and the page's script sets them, for light and for dark. Text that comes
from a table enters a figure as `PlainText` alone, which is never parsed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from bokeh.embed import json_item
from bokeh.models import (
    AllLabels,
    Axis,
    ColumnDataSource,
    DataRange1d,
    FixedTicker,
    Grid,
    HoverTool,
    Image,
    Line,
    LinearColorMapper,
    NoOverlap,
    PanTool,
    PlainText,
    Range1d,
    Scatter,
    Segment,
    VArea,
    VBar,
    WheelZoomTool,
)
from bokeh.models.annotations import BoxAnnotation
from bokeh.models.renderers import DataRenderer
from bokeh.plotting import figure

from mdtim.evaluation import Evaluation
from mdtim.panel import IntArray
from mdtim.report.lines import Fill, make_line
from mdtim.report.packing import pack_places, pack_values
from mdtim.report.summary import ChartFacts, LengthFacts, Summary
from mdtim.report.words import length_range, shorten
from mdtim.tables.inspection import MissingMap
from mdtim.tables.labels import Labels

MAX_MAP_COLUMNS = 60
_MAP_LEVELS = 10
_STRETCHES = 8_000
"""Of all lines together, to begin with."""
_MAX_STRETCHES = 2_000
"""Of one line: about as many as a wide screen has columns of pixels."""
_LINE_BYTES = 1_200_000
"""Of all lines together: with Bokeh's script and the tables a page of 50 columns is below 3 MB."""
_BOUNDS = ("b5", "b25", "b75", "b95")
_FONT = "system-ui"
_MAX_BORDERS = 50
"""Series that are told apart on the map by a line each."""
_AXIS_TAGS = [
    *("axis_line_color:line", "major_tick_line_color:line"),
    *("major_label_text_color:soft", "axis_label_text_color:soft"),
]
_METHOD_COLOURS = {"mdtim": "accent", "linear": "observed", "locf": "third", "mean": "fourth"}


def chart_document(summary: Summary, fill: Fill) -> dict[str, Any]:
    """Make what the page's script draws.

    Returns
    -------
    document : dict, ready for JSON
        ``figures``: name → what `Bokeh.embed.embed_item` takes. ``lines``: id of the element on
        the page → source → packed data. All columns are drawn by the one figure ``line`` with
        other data, because a figure for each would be most of the page and most of the time to
        make it.
    """
    labels, figures = Labels.of(fill.panel), {}
    if summary.table.missing:
        figures["map"] = _map_figure(summary.map, labels)
    if summary.charts:
        figures["lengths"] = _lengths_figure(summary.lengths)
        figures["line"] = _line_figure(labels)
    if summary.evaluation is not None:
        figures["calibration"] = _calibration_figure(summary.evaluation)
        figures["errors"] = _errors_figure(summary.evaluation)
    items = {name: dict(json_item(plot)) for name, plot in figures.items()}
    return {"figures": _renumbered(items, {}), "lines": _all_lines(summary, fill, labels)}


def _renumbered(part: Any, ids: dict[str, str]) -> Any:
    """Count Bokeh's ids from 1: it goes on from page to page, and a fill is to have one page."""
    if isinstance(part, dict):
        return {
            key: ids.setdefault(inner, f"p{len(ids) + 1}")
            if key in ("id", "root_id") and isinstance(inner, str)
            else _renumbered(inner, ids)
            for key, inner in part.items()
        }
    is_sequence = isinstance(part, list | tuple)
    return [_renumbered(inner, ids) for inner in part] if is_sequence else part


def _span(start: float, end: float) -> Range1d:
    return Range1d(start=start, end=end)


def _new_figure(height: int, **options: Any) -> figure:
    plot = figure(
        height=height,
        sizing_mode="stretch_width",
        toolbar_location=None,
        tools="",
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        min_border_right=18,
        **options,
    )
    for axis in plot.select(Axis):
        axis.update(
            tags=_AXIS_TAGS,
            minor_tick_line_color=None,
            major_tick_in=0,
            major_tick_out=4,
            major_label_text_font=_FONT,
            axis_label_text_font=_FONT,
            axis_label_text_font_style="normal",
        )
    plot.xaxis[0].major_label_policy = NoOverlap(min_distance=6)  # on a telephone there is no room
    for grid in plot.select(Grid):
        grid.tags = ["grid_line_color:grid"]
    plot.xgrid.visible = False
    return plot


# -- a column -------------------------------------------------------------------------------


def _line_figure(labels: Labels) -> figure:
    """Draw the sources `observed`, `alone`, `filled` and `marks`, which are still empty."""
    timed = labels.panel.timestamps is not None
    plot = _new_figure(
        240,
        name="line",
        x_axis_type="datetime" if timed else "linear",
        x_range=_span(*labels.axis_range()),
        y_range=Range1d(),  # the page's script fits it to what is in view
        min_border_left=64,
    )
    names = ("observed", "alone", "filled", "marks")
    observed, alone, filled, marks = (
        ColumnDataSource({column: [] for column in ("x", "value", *_BOUNDS)}, name=name)
        for name in names
    )
    for low, high, alpha in (("b5", "b95", 0.2), ("b25", "b75", 0.3)):
        plot.add_glyph(
            filled, VArea(x="x", y1=low, y2=high, fill_alpha=alpha, tags=["fill_color:accent"])
        )
    whisker = Segment(x0="x", y0="b5", x1="x", y1="b95", line_alpha=0.4, tags=["line_color:accent"])
    plot.add_glyph(marks, whisker)
    known: list[DataRenderer] = [
        plot.add_glyph(observed, Line(x="x", y="value", tags=["line_color:observed"])),
        plot.add_glyph(alone, _dots(3, "observed")),
    ]
    said: list[DataRenderer] = [
        plot.add_glyph(filled, Line(x="x", y="value", line_width=1.8, tags=["line_color:accent"])),
        plot.add_glyph(marks, _dots(3.5, "accent")),
    ]
    place = ("time", "@x{%F %H:%M:%S}") if timed else ("step", "@x{0}")
    bands = [("50 %", "@b25 to @b75"), ("90 %", "@b5 to @b95")]
    wheel = WheelZoomTool(dimensions="width")
    plot.add_tools(
        PanTool(dimensions="width"),
        wheel,
        _hover(known, [place, ("observed", "@value")]),
        _hover(said, [place, ("filled", "@value"), *bands]),
    )
    plot.toolbar.active_scroll = wheel
    return plot


def _hover(renderers: list[DataRenderer], tips: list[tuple[str, str]]) -> HoverTool:
    """Show numbers beside the pointer; a place in time is told apart by its percent signs."""
    timed = any(text.startswith("@x{%") for _, text in tips)
    return HoverTool(
        renderers=renderers, tooltips=tips, formatters={"@x": "datetime"} if timed else {}
    )


def _dots(size: float, colour: str) -> Scatter:
    return Scatter(
        x="x", y="value", size=size, tags=[f"line_color:{colour}", f"fill_color:{colour}"]
    )


def _all_lines(summary: Summary, fill: Fill, labels: Labels) -> dict[str, Any]:
    """Draw every line as finely as the budget allows, for those who look closely."""
    each = _STRETCHES // max(len(summary.charts), 1)
    finest = min(max((facts.steps for facts in summary.charts), default=0), _MAX_STRETCHES)
    lines, size = _lines(summary, fill, labels, each)
    while each < finest and 1.2 * size < _LINE_BYTES:
        each = int(each * _LINE_BYTES / size)  # most of what there is to draw grows more slowly
        finer, size = _lines(summary, fill, labels, each)
        if size > _LINE_BYTES:
            break
        lines = finer
    return lines


def _lines(
    summary: Summary, fill: Fill, labels: Labels, stretches: int
) -> tuple[dict[str, Any], int]:
    """Data of all charts by their ids, and their size in letters."""
    lines = {
        f"chart-{number}": _line_data(fill, facts, labels, stretches)
        for number, facts in enumerate(summary.charts)
    }
    sources = (source for line in lines.values() for source in line.values())
    return lines, sum(len(str(packed)) for source in sources for packed in source.values())


def _line_data(fill: Fill, facts: ChartFacts, labels: Labels, stretches: int) -> dict[str, Any]:
    line = make_line(
        fill,
        facts.variate,
        facts.number,
        stretches=min(max(stretches, 100), _MAX_STRETCHES),
        details=[(gap.position, gap.length) for gap in facts.listed],
        detail_stretches=min(max(stretches // 4, 24), 100),
    )
    first_row = int(labels.panel.offsets[facts.number])
    data = {}
    for name, points in (
        ("observed", line.observed),
        ("alone", line.observed.alone()),
        ("filled", line.filled),
        ("marks", line.marks),
    ):
        columns = {"value": points.values}
        columns |= dict(zip(_BOUNDS, points.bounds, strict=False))
        places = pack_places(labels.on_axis(first_row + points.positions))
        data[name] = places | {key: pack_values(column) for key, column in columns.items()}
    return data


# -- what is missing ------------------------------------------------------------------------


def _map_figure(missing_map: MissingMap, labels: Labels) -> figure:
    """Draw one strip for each column; rows of several series lie side by side."""
    names = missing_map.columns[:MAX_MAP_COLUMNS]
    # The smallest share still gets the first level: a single missing cell must not vanish.
    levels = np.ceil(np.array(missing_map.shares[: len(names)]) * _MAP_LEVELS - 1e-9)
    several = missing_map.several_series
    start, end = (0.0, 1.0) if several else labels.axis_range()
    plot = _new_figure(
        44 + 22 * len(names),
        name="map",
        x_axis_type="datetime" if labels.panel.timestamps is not None and not several else "linear",
        x_range=_span(start, end),
        y_range=_span(0, len(names)),
    )
    plot.ygrid.visible = False
    mapper = LinearColorMapper(
        palette=["#000000"] * (_MAP_LEVELS + 1), low=0, high=_MAP_LEVELS, tags=["palette:accent"]
    )
    # Row 0 of an image lies at the bottom.
    source = ColumnDataSource({"image": [levels[::-1].astype(np.uint8)]})
    image = Image(image="image", x=start, y=0, dw=end - start, dh=len(names), color_mapper=mapper)
    plot.add_glyph(source, image)
    middles = [len(names) - row - 0.5 for row in range(len(names))]
    _name_ticks(plot.yaxis[0], middles, [shorten(name) for name in names])
    plot.yaxis[0].update(axis_line_color=None, major_tick_line_color=None)
    plot.yaxis[0].tags = ["major_label_text_color:ink"]
    edges = ColumnDataSource({"y": np.arange(len(names) + 1, dtype=np.float64)})
    between = Segment(x0=start, x1=end, y0="y", y1="y", line_width=4, tags=["line_color:card"])
    plot.add_glyph(edges, between)
    if several:
        named, series = map(list, zip(*missing_map.ticks, strict=True))
        _name_ticks(plot.xaxis[0], named, series)
        offsets = labels.panel.offsets[:-1] / max(int(labels.panel.offsets[-1]), 1)
        begins = ColumnDataSource({"x": offsets if len(offsets) <= _MAX_BORDERS else named})
        border = Segment(x0="x", x1="x", y0=0, y1=len(names), tags=["line_color:soft"])
        plot.add_glyph(begins, border)
    else:
        plot.add_layout(
            BoxAnnotation(
                name="view",
                visible=False,
                fill_alpha=0.12,
                tags=["fill_color:observed", "line_color:observed"],
            )
        )
    return plot


def _name_ticks(axis: Axis, places: list[float], names: list[str]) -> None:
    axis.ticker = FixedTicker(ticks=places)
    axis.major_label_overrides = {
        place: PlainText(text=shorten(name)) for place, name in zip(places, names, strict=True)
    }


def _lengths_figure(lengths: tuple[LengthFacts, ...]) -> figure:
    gaps = np.array([facts.gaps for facts in lengths])
    cells = np.array([facts.cells for facts in lengths])
    names = [length_range(facts.shortest, facts.longest) for facts in lengths]
    plot = _group_figure(names, "steps of a gap", "%")
    bars: list[DataRenderer] = []
    for shift, share, colour in (
        (-0.18, gaps / gaps.sum(), "observed"),
        (0.18, cells / cells.sum(), "accent"),
    ):
        source = ColumnDataSource(
            {
                "x": np.arange(len(names)) + shift,
                "share": 100 * share,
                "length": names,
                "gaps": gaps,
                "cells": cells,
            }
        )
        bar = VBar(x="x", top="share", width=0.34, line_color=None, tags=[f"fill_color:{colour}"])
        bars.append(plot.add_glyph(source, bar))
    tips = [("steps", "@length"), ("gaps", "@gaps{0,0}"), ("missing cells", "@cells{0,0}")]
    plot.add_tools(_hover(bars, tips))
    return plot


def _group_figure(names: list[str], x_label: str, y_label: str) -> figure:
    """Frame with one place for each named group."""
    plot = _new_figure(250, x_range=_span(-0.6, len(names) - 0.4), y_range=DataRange1d(start=0))
    plot.xaxis[0].ticker = FixedTicker(ticks=list(range(len(names))))
    plot.xaxis[0].major_label_overrides = dict(enumerate(names))
    plot.xaxis[0].major_label_policy = AllLabels()
    if len(names) > 8:
        plot.xaxis[0].major_label_orientation = 0.6
    plot.xaxis[0].axis_label, plot.yaxis[0].axis_label = x_label, y_label
    return plot


# -- how good it is -------------------------------------------------------------------------


def _calibration_figure(evaluation: Evaluation) -> figure:
    levels = 100 * np.array([point.level for point in evaluation.calibration])
    covered = 100 * np.array([point.covered for point in evaluation.calibration])
    plot = _new_figure(300, x_range=_span(0, 100), y_range=_span(0, 102))
    plot.xaxis[0].axis_label = "% that the band promises"
    plot.yaxis[0].axis_label = "% of hidden values inside"
    ideal = ColumnDataSource({"x": [0, 100], "value": [0, 100]})
    plot.add_glyph(ideal, Line(x="x", y="value", line_dash="dashed", tags=["line_color:soft"]))
    source = ColumnDataSource({"x": levels, "value": covered})
    plot.add_glyph(source, Line(x="x", y="value", line_width=2, tags=["line_color:accent"]))
    dots = plot.add_glyph(source, _dots(6, "accent"))
    tips = [("band", "@x{0} %"), ("holds", "@value{0.0} %")]
    plot.add_tools(_hover([dots], tips))
    return plot


def _errors_figure(evaluation: Evaluation) -> figure:
    groups = evaluation.gap_lengths
    names = [length_range(group.shortest, group.longest) for group in groups]
    plot = _group_figure(names, "steps of the gap", "mean absolute error")
    places: IntArray = np.arange(len(groups))
    dots: list[DataRenderer] = []
    for index, row in enumerate(groups[0].rows):
        colour = _METHOD_COLOURS[row.method]
        source = ColumnDataSource(
            {
                "x": places,
                "value": np.array([group.rows[index].mae for group in groups]),
                "method": [row.method] * len(groups),
                "length": names,
            }
        )
        width = 2.4 if index == 0 else 1.4
        plot.add_glyph(
            source, Line(x="x", y="value", line_width=width, tags=[f"line_color:{colour}"])
        )
        dots.append(plot.add_glyph(source, _dots(6, colour)))
    tips = [("method", "@method"), ("steps", "@length"), ("error", "@value{0.000}")]
    plot.add_tools(_hover(dots, tips))
    plot.height = 300
    return plot
