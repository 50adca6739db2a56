"""What a notebook shows of an imputation and of a fitted imputer: key numbers, a small picture."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np
import torch

from mdtim.panel import BoolArray, FloatArray, IntArray, gap_lengths
from mdtim.report import words
from mdtim.report.gaps import empty_columns
from mdtim.report.lines import QUANTILES, context_of
from mdtim.report.written import written_cells
from mdtim.tables.labels import Labels

if TYPE_CHECKING:
    from mdtim.imputation import Imputation
    from mdtim.imputer import MDTIMImputer

_WIDTH, _HEIGHT = 460, 120
_MAX_STEPS = 400
_FILLED = "#e0601f"


def imputation_html(imputation: Imputation) -> str:
    """Counts, and the longest filled gap with its bands."""
    panel, filled = imputation.table.panel, int(np.isfinite(imputation.cells.filled).sum())
    gaps = gap_lengths(panel.observed | empty_columns(imputation), panel.offsets)
    missing, lengths = int(imputation.missing.sum()), gaps[2]
    facts = {
        "table": words.count(len(panel.values), "step")
        + " × "
        + words.count(len(panel.variates), "variate"),
        "missing": f"{missing:,} ({words.percent(missing / max(panel.values.size, 1))})",
        "filled": f"{filled:,}",
        "gaps": f"{len(lengths):,}, the longest {words.count(int(lengths.max(initial=0)), 'step')}",
    }
    return _card("Imputation", facts, _longest_gap(imputation, *gaps))


def imputer_html(imputer: MDTIMImputer) -> str:
    """How the fit went: its error on held-out cells beside linear interpolation."""
    report = imputer.report_
    facts = {
        "window": words.count(imputer.window_, "step"),
        "columns": f"{len(imputer.model_.variates):,}",
        "fit": f"{words.count(report.steps, 'step')} in {report.seconds:.0f} s ({report.reason})",
    }
    picture = ""
    if report.validation_mae is not None and report.linear_mae is not None:
        facts["in the 90 % band"] = f"{words.percent(report.coverage90)} of the held-out values"
        errors = {"mdtim": report.validation_mae, "linear interpolation": report.linear_mae}
        picture = _bars("Mean absolute error on held-out cells, in stds", errors)
    return _card("MDTIMImputer, fitted", facts, picture)


def _card(title: str, facts: dict[str, str], picture: str) -> str:
    rows = "".join(
        f'<tr><th scope="row" style="text-align:left;font-weight:500">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    return (
        '<div style="display:flex;flex-wrap:wrap;gap:8px 28px;align-items:center">'
        f"<table><caption style='text-align:left'><b>{title}</b></caption>{rows}</table>"
        f"{picture}</div>"
    )


def _figure(caption: str, drawing: str) -> str:
    """Picture with its caption, which is also what a screen reader says."""
    return (
        f'<figure style="margin:0"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img" aria-label="{escape(caption)}">{drawing}</svg>'
        f'<figcaption style="font-size:0.85em">{escape(caption)}</figcaption></figure>'
    )


def _bars(caption: str, errors: dict[str, float]) -> str:
    parts, scale = [], 0.0 if max(errors.values()) == 0 else 200 / max(errors.values())
    for number, (name, error) in enumerate(errors.items()):
        y = 20 + 44 * number
        colour = _FILLED if number == 0 else "#7d8b9b"
        parts.append(
            f'<text x="0" y="{y + 18}" font-size="13" fill="currentColor">{name}</text>'
            f'<rect x="140" y="{y}" width="{scale * error:.1f}" height="28" rx="4" '
            f'fill="{colour}"/><text x="{148 + scale * error:.1f}" y="{y + 18}" font-size="13" '
            f'fill="currentColor">{words.decimals(error)}</text>'
        )
    return _figure(caption, "".join(parts))


# -- the longest gap ------------------------------------------------------------------------


def _longest_gap(
    imputation: Imputation, rows: IntArray, variates: IntArray, lengths: IntArray
) -> str:
    """Draw the longest filled gap of at most 400 steps and what lies around it."""
    panel, cells = imputation.table.panel, imputation.cells
    filled = np.zeros(panel.values.shape, dtype=bool)
    filled[cells.rows, cells.variates] = np.isfinite(cells.filled)
    usable = np.flatnonzero(filled[rows, variates] & (lengths <= _MAX_STEPS))
    if not len(usable):
        return ""
    chosen = usable[lengths[usable].argmax()]
    row, variate, length = int(rows[chosen]), int(variates[chosen]), int(lengths[chosen])
    series = int(panel.series_of_rows()[row])
    begin, end = panel.offsets[series : series + 2].tolist()
    margin = context_of(length)
    first, stop = max(row - margin, begin), min(row + length + margin, end)
    inside = (cells.variates == variate) & (cells.rows >= first) & (cells.rows < stop)
    steps = cells.rows[inside] - first
    observed = panel.values[first:stop, variate]
    # Bands meet what was observed next to them.
    lines = np.tile(observed, (1 + len(QUANTILES), 1))
    own = torch.from_numpy(np.flatnonzero(inside))
    whole = imputation.distribution
    spread = whole.take(own)
    lines[0, steps] = written_cells(imputation)[inside]
    for number, level in enumerate(QUANTILES, start=1):
        lines[number, steps] = spread.quantile(level).numpy()
    labels = Labels.of(panel)
    start, last = labels.of_rows(np.array([row, row + length - 1]))
    name = labels.of_series(series)
    where = panel.variates[variate] + ("" if name is None else f", series {name}")
    caption = f"{where}: {words.count(length, 'step')}, {start} to {last}"
    return _figure(caption, _gap_drawing(observed, lines))


def _gap_drawing(observed: FloatArray, lines: FloatArray) -> str:
    known = lines[np.isfinite(lines)]
    low, high = known.min() / 2, known.max() / 2  # halves: their difference is always a number
    x = np.linspace(6, _WIDTH - 6, max(lines.shape[1], 2))[: lines.shape[1]]
    height = _HEIGHT - 8 - (lines / 2 - low) / max(high - low, 1e-300) * (_HEIGHT - 16)
    is_observed = ~np.isnan(observed)
    filled = ~is_observed & ~np.isnan(lines[0])
    # A stretch of filled steps takes the step on either side along.
    near = filled.copy()
    near[1:] |= filled[:-1]
    near[:-1] |= filled[1:]
    parts = []
    for lower, upper, opacity in ((1, 4, 0.2), (2, 3, 0.3)):
        for run in _runs(near & ~np.isnan(lines[0])):
            corners = [*_points(x[run], height[upper][run])]
            corners += _points(x[run], height[lower][run])[::-1]
            shape = " ".join(corners)
            parts.append(f'<polygon points="{shape}" fill="{_FILLED}" fill-opacity="{opacity}"/>')
    for mask, colour, width in ((is_observed, "currentColor", 1.2), (near, _FILLED, 2)):
        for run in _runs(mask & ~np.isnan(lines[0])):
            shape = " ".join(_points(x[run], height[0][run]))
            parts.append(
                f'<polyline points="{shape}" fill="none" stroke="{colour}" '
                f'stroke-width="{width}" stroke-linejoin="round" stroke-linecap="round"/>'
            )
    return "".join(parts)


def _points(x: FloatArray, y: FloatArray) -> list[str]:
    return [f"{a:.1f},{b:.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True)]


def _runs(wanted: BoolArray) -> list[slice]:
    edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False)).reshape(-1, 2)
    return [slice(begin, end) for begin, end in edges.tolist()]
