"""The page of a report: a template, a style sheet and a script, and Bokeh's script inside it."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any

from bokeh.resources import Resources
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from mdtim.evaluation import CalibrationPoint, GapLengthScore, MethodScore
from mdtim.report import words
from mdtim.report.charts import MAX_MAP_COLUMNS, chart_document
from mdtim.report.lines import Fill
from mdtim.report.summary import ColumnFacts, LengthFacts, Summary
from mdtim.tables.labels import Labels

MAX_OPEN_CHARTS = 12
"""Further charts are drawn when somebody opens them: many columns are not to bury the rest."""
MAX_ROWS = 24
"""A longer table scrolls by itself."""


def render_page(summary: Summary, fill: Fill) -> str:
    """Make the whole HTML document.

    It needs no network. Of its scripts only the two that are its own may run: even if some text
    from a table got through unescaped, the page's policy would not let it do anything.
    """
    library, script = bokeh_script(), _read("page.js")
    allowed = " ".join(f"'sha256-{_digest(text)}'" for text in (library, script))
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed}"
    page: str = _template().render(
        s=summary,
        axis=Labels.of(fill.panel).axis_range(),
        max_map_columns=MAX_MAP_COLUMNS,
        max_open_charts=MAX_OPEN_CHARTS,
        max_rows=MAX_ROWS,
        policy=policy,
        style=Markup(_read("page.css")),
        charts=Markup(json_for_script(chart_document(summary, fill))),
        library=Markup(library),
        script=Markup(script),
    )
    return page


def json_for_script(document: Any) -> str:
    r"""JSON that cannot end the script element it lies in, whatever its strings hold.

    Examples
    --------
    >>> print(json_for_script({"name": "</script>"}))
    {"name":"\u003c/script>"}
    """
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def bokeh_script() -> str:
    """Bokeh's own script, without the parts for widgets and tables, as its package brings it."""
    return "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw)


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


# -- rows of tables -------------------------------------------------------------------------


def _column_rows(columns: tuple[ColumnFacts, ...]) -> list[list[str]]:
    return [
        [
            facts.column,
            words.percent(facts.share),
            f"{facts.missing:,}",
            f"{facts.gaps:,}",
            words.number(facts.median_gap),
            words.number(facts.longest_gap),
            f"{facts.filled:,}",
            words.decimals(facts.uncertainty),
        ]
        for facts in columns
    ]


def _places(summary: Summary) -> list[tuple[str, str]]:
    """Where a column is found on the page, by its name: its charts, or else its row."""
    charts = [(words.title(c), f"chart-{number}") for number, c in enumerate(summary.charts)]
    charted = {facts.column for facts in summary.charts}
    rows = [
        (facts.column, f"column-{number}")
        for number, facts in enumerate(summary.columns)
        if facts.column not in charted
    ]
    return charts + rows


def _length_rows(lengths: tuple[LengthFacts, ...]) -> list[list[str]]:
    return [
        [words.length_range(facts.shortest, facts.longest), f"{facts.gaps:,}", f"{facts.cells:,}"]
        for facts in lengths
    ]


def _method_rows(rows: tuple[MethodScore, ...]) -> list[list[str]]:
    return [
        [
            words.METHODS[row.method],
            *map(words.decimals, (row.mae, row.rmse, row.crps)),
            words.percent(row.coverage90),
        ]
        for row in rows
    ]


def _calibration_rows(points: tuple[CalibrationPoint, ...]) -> list[list[str]]:
    return [[f"{100 * point.level:.0f} %", words.percent(point.covered)] for point in points]


def _length_score_rows(groups: tuple[GapLengthScore, ...]) -> list[list[str]]:
    return [
        [
            words.length_range(group.shortest, group.longest),
            f"{group.num_hidden:,}",
            *(words.decimals(row.mae) for row in group.rows),
            words.percent(group.rows[0].coverage90),
        ]
        for group in groups
    ]


@cache
def _template() -> Any:
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters |= {
        **{f.__name__: f for f in (words.number, words.decimals, words.count, words.percent)},
        **{f.__name__: f for f in (words.subtitle, words.page_title, words.origin)},
        **{f.__name__: f for f in (words.best_simple, words.beats_linear)},
        **{f.__name__: f for f in (words.describe_columns, words.describe_empty)},
        "places": _places,
        **{f.__name__: f for f in (words.describe_map, words.describe_lengths)},
        **{f.__name__: f for f in (words.describe_chart, words.describe_calibration)},
        "describe_errors": words.describe_errors,
        "title_of": words.title,
        "method": words.METHODS.__getitem__,
        "method_names": lambda rows: [words.METHODS[row.method] for row in rows],
        "column_rows": _column_rows,
        "length_rows": _length_rows,
        "method_rows": _method_rows,
        "calibration_rows": _calibration_rows,
        "length_score_rows": _length_score_rows,
    }
    return environment.from_string(_read("page.html"))
