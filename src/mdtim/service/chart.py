"""What the page draws of a result: whole series thinned out, and the longest gaps step by step."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from mdtim.imputation import Imputation
from mdtim.panel import BoolArray, FloatArray, IntArray, gap_lengths
from mdtim.report.lines import Fill, context_of
from mdtim.tables.labels import Labels

MAX_PICTURES = 240
MAX_GAPS_PER_COLUMN = 6
MAX_STRETCHES = 250


def chart(result: Imputation) -> dict[str, Any]:
    """Lines and bands, ready for JSON.

    Returns
    -------
    dict
        ``columns``: filled columns, most missing cells first. ``unfilled``: columns of which
        nothing could be filled, and their missing cells. ``pictures``: each with ``column``,
        ``series``, ``title`` and lists of P steps: ``labels``, ``positions``, ``observed``,
        ``filled``, ``low`` and ``high``, None where there is none.
    """
    panel, missing = result.table.panel, result.missing
    fill, labels = Fill.of(result), Labels.of(panel)
    lines = np.stack([panel.values, fill.mean, fill.bounds[0], fill.bounds[-1]])
    rows, variates, lengths = gap_lengths(panel.observed, panel.offsets)
    series = panel.series_of_rows()[rows]
    counts = missing.sum(axis=0)
    order = np.argsort(-counts, kind="stable")
    order = order[counts[order] > 0]
    is_filled: BoolArray = np.any(missing & ~np.isnan(fill.mean), axis=0)
    unfilled = {panel.variates[v]: int(counts[v]) for v in order if not is_filled[v]}
    order = order[is_filled[order]]
    pictures: list[list[dict[str, Any]]] = []
    for variate in order:
        own = np.flatnonzero(variates == variate)
        own = own[np.argsort(-lengths[own], kind="stable")]
        # The series with the longest gap first, each once, whole; then gaps by their length.
        numbers = list(dict.fromkeys(series[own].tolist()))[:MAX_GAPS_PER_COLUMN]
        drawn = [_whole(labels, lines, int(variate), number) for number in numbers]
        for gap in own[:MAX_GAPS_PER_COLUMN]:
            place = (int(rows[gap]), int(lengths[gap]), int(series[gap]))
            drawn.append(_gap(labels, lines, int(variate), *place))
        pictures.append(drawn)
    while sum(map(len, pictures)) > MAX_PICTURES:
        max(pictures, key=len).pop()
    return {
        "unfilled": unfilled,
        "columns": [panel.variates[v] for v, drawn in zip(order, pictures, strict=True) if drawn],
        "pictures": [picture for drawn in pictures for picture in drawn],
    }


def _whole(labels: Labels, lines: FloatArray, variate: int, number: int) -> dict[str, Any]:
    begin, end = labels.panel.offsets[number : number + 2].tolist()
    rows = begin + thin(lines[0, begin:end, variate], MAX_STRETCHES)
    return _picture(labels, lines, variate, number, rows, "whole series")


def _gap(
    labels: Labels, lines: FloatArray, variate: int, row: int, length: int, number: int
) -> dict[str, Any]:
    begin, end = labels.panel.offsets[number : number + 2].tolist()
    margin = context_of(length)
    first, stop = max(row - margin, begin), min(row + length + margin, end)
    rows = first + thin(lines[0, first:stop, variate], MAX_STRETCHES)
    place = labels.of_rows(np.array([row]))[0]
    place = place if labels.panel.timestamps is not None else f"step {place}"
    title = f"gap of {length:,} {'step' if length == 1 else 'steps'} at {place}"
    return _picture(labels, lines, variate, number, rows, title)


def thin(observed: FloatArray, max_stretches: int) -> IntArray:
    """Choose the steps to draw: of each stretch the lowest, the highest and one that was missing.

    Parameters
    ----------
    observed : (T,) NaN where missing

    Examples
    --------
    >>> thin(np.array([1.0, 5.0, 3.0, 2.0, np.nan, 4.0]), 2)
    array([0, 1, 3, 4, 5])
    """
    edges = np.linspace(0, len(observed), min(max_stretches, len(observed)) + 1).astype(np.int64)
    chosen = []
    for begin, end in pairwise(edges):
        missing = np.isnan(observed[begin:end])
        if not missing.all():
            chosen += [begin + np.nanargmin(observed[begin:end])]
            chosen += [begin + np.nanargmax(observed[begin:end])]
        if missing.any():
            gaps = np.flatnonzero(missing)
            chosen.append(begin + gaps[len(gaps) // 2])
    return np.unique(np.array(chosen, dtype=np.int64))


def _picture(
    labels: Labels, lines: FloatArray, variate: int, number: int, rows: IntArray, title: str
) -> dict[str, Any]:
    panel = labels.panel
    observed, filled, low, high = (
        [float(f"{value:.6g}") if np.isfinite(value) else None for value in line]
        for line in lines[:, rows, variate]
    )
    return {
        "column": panel.variates[variate],
        "series": labels.of_series(number),
        "title": title,
        "positions": (rows - panel.offsets[number]).tolist(),
        "labels": labels.of_rows(rows),
        "observed": observed,
        "filled": filled,
        "low": low,
        "high": high,
    }
