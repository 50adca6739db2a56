"""What is missing in a table, and what a model folder holds, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mdtim.autowindow import choose_window
from mdtim.panel import IntArray, Panel, gap_lengths
from mdtim.tables.labels import Labels
from mdtim.tables.table import Table


def describe_table(table: Table) -> dict[str, Any]:
    """Share missing and gap lengths, overall and per column, in steps.

    Steps that the table skips count as missing: `skipped_steps` says how many they are.
    """
    panel = table.panel
    observed = panel.observed
    _, variates, lengths = gap_lengths(observed, panel.offsets)
    columns = []
    for index, name in enumerate(panel.variates):
        gaps = lengths[variates == index]
        columns.append(
            {
                "column": name,
                "missing": int((~observed[:, index]).sum()),
                "share": round(float((~observed[:, index]).mean()), 4),
                "gaps": len(gaps),
                "median_gap": float(np.median(gaps)) if len(gaps) else 0.0,
                "longest_gap": int(gaps.max()) if len(gaps) else 0,
            }
        )
    return {
        "kind": "table",
        "steps": len(panel.values),
        "skipped_steps": table.num_skipped,
        "series": panel.num_series,
        "step_seconds": panel.step_seconds,
        "missing": int((~observed).sum()),
        "share": round(float((~observed).mean()), 4),
        "window": choose_window(panel, long=True),  # as the pretrained network takes it
        "columns": columns,
    }


MAX_NAMED_SERIES = 8
"""Of many series every second or third is named, and so on: names stay evenly apart."""


@dataclass(frozen=True)
class MissingMap:
    """For each column the share missing in each bin of the stacked rows."""

    columns: tuple[str, ...]
    shares: tuple[tuple[float, ...], ...]
    ticks: tuple[tuple[float, str], ...]
    """Place between 0 and 1, and a timestamp, a step or the name of the series that begins."""
    several_series: bool


def missing_map(panel: Panel, order: IntArray, max_bins: int, num_ticks: int = 6) -> MissingMap:
    """Divide the rows into at most `max_bins` bins and count what is missing in each.

    Parameters
    ----------
    order : variates to count, in this order
    num_ticks : along one series, both ends among them
    """
    missing, labels = ~panel.observed, Labels.of(panel)
    num_rows, several = len(missing), panel.num_series > 1
    edges = np.linspace(0, num_rows, min(max_bins, num_rows) + 1).astype(np.int64)
    counts = np.add.reduceat(missing, edges[:-1], axis=0, dtype=np.int64)
    # Rounding must not make a single missing cell vanish.
    shares = (counts / np.diff(edges)[:, None]).clip(0.001 * (counts > 0)).round(3)
    if several:
        marks = np.arange(0, panel.num_series, -(-panel.num_series // MAX_NAMED_SERIES))
        names = [str(labels.of_series(mark)) for mark in marks.tolist()]
        ticks = zip((panel.offsets[marks] / num_rows).tolist(), names, strict=True)
    else:
        rows = np.unique(
            np.linspace(0, num_rows, num_ticks).astype(np.int64).clip(max=num_rows - 1)
        )
        ticks = zip((rows / num_rows).tolist(), labels.of_rows(rows), strict=True)
    return MissingMap(
        columns=tuple(panel.variates[variate] for variate in order),
        shares=tuple(map(tuple, shares[:, order].T.tolist())),
        ticks=tuple(ticks),
        several_series=several,
    )


def describe_model(folder: Path) -> dict[str, Any]:
    """Columns, window, size and validation score of a model, without loading its weights."""
    from mdtim.checkpoint import read_document

    document = read_document(folder)
    if document.get("kind") != "imputer":
        return {"kind": document.get("kind"), "format_version": document["format_version"]}
    return {
        "kind": "model",
        "format_version": document["format_version"],
        "preset": document["params"]["preset"],
        "window": document["window"],
        "variates": document["variates"],
        "calibrated": document["corrections"]["calibration"] is not None,
        **document["report"],
    }
