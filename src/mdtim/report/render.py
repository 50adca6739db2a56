"""A summary as one HTML page: inline styles and pictures, no scripts, nothing from elsewhere."""

from __future__ import annotations

from html import escape
from typing import Any

from mdtim.report.plots import MAX_MAP_COLUMNS, format_number, gap_svg, locate_gap, map_svg
from mdtim.report.summary import Summary

_MAX_LISTED_STEPS = 60
_STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1b2430; --soft: #5b6675;
  --line: #dfe3e8; --grid: #e9ecf0; --observed: #34506e; --accent: #d4500c; --shade: #d4500c0d; }
@media screen and (prefers-color-scheme: dark) { :root { --page: #12161c; --card: #1b2129;
  --ink: #e8ecf1; --soft: #9aa6b4; --line: #313a45; --grid: #2a323c; --observed: #a9c4e0;
  --accent: #ff9350; --shade: #ff93500c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 32px 20px 48px; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.015em; }
h2 { font-size: 1.25rem; margin: 44px 0 4px; } h3 { font-size: 1rem; margin: 22px 0 8px; }
p { margin: 4px 0 14px; max-width: 92ch; } footer { margin-top: 40px; }
.soft, small, footer, dt, summary, thead th, svg text { color: var(--soft); fill: var(--soft); }
small, dt, details, footer { font-size: 0.86rem; font-weight: 400; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  margin: 0; padding: 12px 16px; overflow-x: auto; break-inside: avoid; }
.facts { display: grid; gap: 12px; margin: 22px 0 0;
  grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); }
dd { margin: 0; font-size: 1.55rem; font-weight: 650; line-height: 1.25; }
dd small, figcaption small { display: block; overflow-wrap: anywhere; }
.legend { display: flex; flex-wrap: wrap; gap: 6px 20px; font-size: 0.9rem; margin: 6px 0 14px; }
.legend span { display: inline-flex; align-items: center; gap: 7px; }
.legend svg { width: 30px; height: 16px; }
.gaps { display: grid; gap: 16px;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 440px), 1fr)); }
figcaption { margin-bottom: 8px; line-height: 1.4; } bdi { overflow-wrap: anywhere; }
.tag { float: right; margin-left: 8px; padding: 1px 9px; border-radius: 99px; font-size: 0.78rem;
  background: var(--shade); color: var(--accent); border: 1px solid currentColor; }
svg { display: block; width: 100%; height: auto; } .map svg { min-width: 720px; }
svg text { font-size: 11.5px; font-variant-numeric: tabular-nums; }
.obs, .fill { fill: none; stroke-width: 1.6; stroke-linejoin: round; stroke: var(--observed); }
.obs-dots, .fill-dots { stroke-width: 4.4; stroke-linecap: round; stroke: var(--observed); }
.fill, .fill-dots { stroke: var(--accent); } .fill { stroke-width: 2; }
.b90, .b50, .cells { fill: var(--accent); } .b90 { fill-opacity: 0.19; }
.b50 { fill-opacity: 0.32; } .shade { fill: var(--shade); } .row { fill: var(--grid); }
.grid { stroke: var(--grid); } .axis, .tick { stroke: var(--soft); stroke-opacity: 0.6; }
table { border-collapse: collapse; width: 100%; font-size: 0.92rem; }
th, td { padding: 5px 10px; text-align: right; font-variant-numeric: tabular-nums; }
th { font-weight: 500; vertical-align: bottom; } th:first-child { text-align: left; }
tbody th, td { border-top: 1px solid var(--line); } td { white-space: nowrap; }
.bar { display: inline-block; width: 84px; height: 8px; margin-right: 8px; border-radius: 4px;
  background: var(--grid); overflow: hidden; } .share { display: inline-block; width: 4.2em; }
.bar i { display: block; height: 100%; background: var(--accent); }
details { margin-top: 6px; max-height: 300px; overflow: auto; } summary { cursor: pointer; }
details table { font-size: 0.8rem; } details :is(th, td) { padding: 2px 6px; white-space: nowrap; }
details bdi { overflow-wrap: normal; }
@media print { body { background: #fff; font-size: 12px; } main { padding: 0; max-width: none; }
  details { display: none; } .gaps { grid-template-columns: 1fr 1fr; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""
_LEGEND = (
    '<div class="legend">'
    + "".join(
        f'<span><svg viewBox="0 0 30 16" aria-hidden="true">{drawing}</svg>{text}</span>'
        for drawing, text in (
            ('<path class="obs" d="M2 8H28"/><path class="obs-dots" d="M15 8h0"/>', "observed"),
            ('<path class="fill" d="M2 8H28"/><path class="fill-dots" d="M15 8h0"/>', "filled"),
            (
                '<path class="b90" d="M0 1H30V15H0Z"/><path class="b50" d="M0 1H30V15H0Z"/>',
                "50 % band",
            ),
            ('<path class="b90" d="M0 1H30V15H0Z"/>', "90 % band"),
        )
    )
    + "</div>"
)
_HEAD = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    # Even if some text got through unescaped, nothing could run or be loaded.
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
    f"<title>Filled gaps</title>\n<style>{_STYLE}</style>\n</head>\n"
)


def render_html(summary: Summary) -> str:
    """Make the page of a summary.

    Parameters
    ----------
    summary : dict
        As :func:`~mdtim.report.summary.summarize` makes it.

    Returns
    -------
    page : str
        The whole HTML document.
    """
    table = summary["table"]
    sections = [_header(table)]
    if table["missing"]:
        sections += [_facts(table), _map_section(summary), _gap_section(summary)]
        sections.append(_column_section(summary["columns"]))
    else:
        sections.append("<p>Nothing is missing: every cell is observed, so nothing was filled.</p>")
    if summary["evaluation"] is not None:
        sections.append(_evaluation_section(summary["evaluation"]))
    sections.append("<footer>Made by mdtim.</footer>")
    return _HEAD + "<body>\n<main>\n" + "\n".join(sections) + "\n</main>\n</body>\n</html>\n"


def _header(table: dict[str, Any]) -> str:
    parts = [_count(table["steps"], "step") + " × " + _count(table["variates"], "variate")]
    if table["series"] > 1:
        parts.append(_count(table["series"], "series", "series"))
    if table["start"] is not None:
        parts.append(f"{table['start']} to {table['end']}")
    if table["step_seconds"]:
        parts.append(f"one step is {_duration(table['step_seconds'])}")
    return f'<h1>Filled gaps</h1>\n<p class="soft">{escape(" · ".join(parts))}</p>'


def _facts(table: dict[str, Any]) -> str:
    missing, filled, left = table["missing"], table["filled"], table["left_missing"]
    facts = [
        ("Missing cells", missing, f"{_share(table['share'])} of the table"),
        ("Filled", filled, f"{_share(filled / missing)} of these"),
        ("Gaps", table["gaps"], f"longest: {_count(table['longest_gap'], 'step')}"),
    ]
    if left:
        names = ", ".join(left[:4]) + (", …" if len(left) > 4 else "")
        facts.append(("Left missing", missing - filled, f"in {names}"))
    items = "".join(
        f'<div class="card"><dt>{term}</dt><dd>{value:,}<small>{escape(note)}</small></dd></div>'
        for term, value, note in facts
    )
    return f'<dl class="facts">{items}</dl>'


def _map_section(summary: Summary) -> str:
    hidden = len(summary["map"]["columns"]) - MAX_MAP_COLUMNS
    note = f" The {hidden:,} columns with the fewest are left out." if hidden > 0 else ""
    return (
        "<section><h2>What was missing</h2>"
        "<p class='soft'>Each strip is a column from first to last step; the stronger the colour, "
        f"the more of that stretch is missing.{note}</p>"
        f'<div class="card map">{map_svg(summary["map"])}</div></section>'
    )


def _gap_section(summary: Summary) -> str:
    gaps, total = summary["gaps"], summary["table"]["gaps"]
    if not gaps:
        return "<section><h2>How it was filled</h2><p>No gap could be filled.</p></section>"
    which = "All gaps"
    if len(gaps) < total:
        which = f"{len(gaps)} of {total:,} gaps, the longest and the most uncertain of each column"
    figures = "\n".join(_figure(gap, number) for number, gap in enumerate(gaps))
    return (
        f"<section><h2>How it was filled</h2><p class='soft'>{which}. The true value lies in the "
        "inner band with a probability of 50 %, in the outer one with 90 %.</p>"
        f'{_LEGEND}<div class="gaps">{figures}</div></section>'
    )


def _figure(gap: dict[str, Any], number: int) -> str:
    series = "" if gap["series"] is None else f" · series <bdi>{escape(gap['series'])}</bdi>"
    tag = "" if gap["reason"] is None else f'<span class="tag">{escape(gap["reason"])}</span>'
    return (
        f'<figure class="card"><figcaption>{tag}<b><bdi>{escape(gap["column"])}</bdi></b>{series}'
        f"<small>{escape(locate_gap(gap))}</small></figcaption>"
        f"{gap_svg(gap, number)}{_numbers(gap)}</figure>"
    )


def _numbers(gap: dict[str, Any]) -> str:
    """List the filled steps, for those who cannot see the picture or want to copy from it."""
    if gap["length"] > _MAX_LISTED_STEPS:
        return ""
    rows = []
    for index, position in enumerate(gap["positions"]):
        if 0 <= position - gap["position"] < gap["length"]:
            bounds = (gap["quantiles"][level][index] for level in ("5", "25", "75", "95"))
            numbers = (format_number(number) for number in (gap["mean"][index], *bounds))
            rows.append([gap["labels"][index], *numbers])
    head = ["Time" if gap["timed"] else "Step", "Filled", "5 %", "25 %", "75 %", "95 %"]
    return f"<details><summary>Numbers</summary>{_table(head, rows)}</details>"


def _column_section(columns: list[dict[str, Any]]) -> str:
    rows = [
        [
            column["column"],
            _share(column["share"]),
            f"{column['missing']:,}",
            f"{column['gaps']:,}",
            format_number(column["median_gap"]),
            format_number(column["longest_gap"]),
            f"{column['filled']:,}",
            *_decimals(column, "relative_std"),
        ]
        for column in columns
    ]
    head = ["Column", "Missing", "Cells", "Gaps", "Median gap", "Longest", "Filled", "Uncertainty"]
    return (
        '<section><h2>Columns</h2><p class="soft">Gap lengths are in steps. Uncertainty is the '
        "mean standard deviation of the filled cells in units of the standard deviation of the "
        "observed ones: near 0 is sure, near 1 is as unsure as without any neighbours.</p>"
        f'<div class="card">{_table(head, rows, [c["share"] for c in columns])}</div></section>'
    )


def _evaluation_section(evaluation: dict[str, Any]) -> str:
    methods = _scores(evaluation.get("rows"), "method", "mae", "rmse", "crps")
    columns = _scores(evaluation.get("columns"), "column", "mae", "linear_mae")
    share, number = evaluation.get("share_hidden"), evaluation.get("num_hidden")
    hidden = "Some" if share is None else _share(share)
    count = "" if number is None else f" ({number:,})"
    tables = ""
    if methods:
        head = ["Method", "MAE", "RMSE", "CRPS", "In 90 % band"]
        tables += f'<div class="card">{_table(head, methods)}</div>'
    if columns:
        head = ["Column", "MAE", "MAE of linear interpolation", "In 90 % band"]
        tables += f'<h3>By column</h3><div class="card">{_table(head, columns)}</div>'
    return (
        f'<section><h2>How well it was filled</h2><p class="soft">{hidden} of the observed '
        f"cells{count} were hidden, filled and compared with what they really were. All errors are "
        "in units of the column's standard deviation; less is better. The last number is the "
        f"share of true values inside the 90 % band; it should be near 90 %.</p>{tables}</section>"
    )


def _scores(rows: list[dict[str, Any]] | None, name: str, *errors: str) -> list[list[str]]:
    return [
        [str(row.get(name, "")), *_decimals(row, *errors), _share(row.get("coverage90"))]
        for row in rows or ()
    ]


def _decimals(row: dict[str, Any], *names: str) -> list[str]:
    return ["–" if row.get(name) is None else f"{row[name]:.3f}" for name in names]


def _table(head: list[str], rows: list[list[str]], bars: list[float] | None = None) -> str:
    """Escaped table; `bars` draws a share next to the second cell of each row."""
    lines = []
    for number, (name, second, *rest) in enumerate(rows):
        shown = escape(second)
        if bars is not None:
            bar = f'<span class="bar"><i style="width:{100 * bars[number]:.1f}%"></i></span>'
            shown = f'{bar}<span class="share">{shown}</span>'
        cells = "".join(f"<td>{cell}</td>" for cell in (shown, *map(escape, rest)))
        lines.append(f'<tr><th scope="row"><bdi>{escape(name)}</bdi></th>{cells}</tr>')
    titles = "".join(f'<th scope="col">{escape(title)}</th>' for title in head)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _share(share: float | None) -> str:
    """Percent with one decimal; what is not nothing or all does not look so."""
    if share is None:
        return "–"
    if 0 < share < 0.001:
        return "< 0.1 %"
    return "> 99.9 %" if 0.999 < share < 1 else f"{100 * share:.1f} %"


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            return f"{format_number(seconds / size)} {unit}{'' if seconds == size else 's'}"
    return f"{format_number(seconds)} second{'' if seconds == 1 else 's'}"
