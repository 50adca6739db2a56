"""What is missing in a table, and what a model folder holds, as plain data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mdtim.autowindow import choose_window
from mdtim.panel import FloatArray, Panel, gap_lengths


def describe_table(panel: Panel) -> dict[str, Any]:
    """Share missing and gap lengths, overall and per column."""
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
        "series": panel.num_series,
        "step_seconds": panel.step_seconds,
        "missing": int((~observed).sum()),
        "share": round(float((~observed).mean()), 4),
        "window": choose_window(panel),
        "columns": columns,
    }


def missing_shares(panel: Panel, max_stretches: int) -> FloatArray:
    """Share of the cells that are missing in each of at most `max_stretches` stretches of rows.

    Returns
    -------
    (stretches, V) from 0 to 1

    Examples
    --------
    >>> nan = float("nan")
    >>> values = np.array([[1, nan], [nan, nan], [3, 3], [4, 4]])
    >>> missing_shares(Panel(values, np.array([0, 4]), ("a", "b")), 2)
    array([[0.5, 1. ],
           [0. , 0. ]])
    """
    num_rows = len(panel.values)
    edges = np.linspace(0, num_rows, min(max_stretches, num_rows) + 1).astype(np.int64)
    counts = np.add.reduceat(~panel.observed, edges[:-1], axis=0, dtype=np.int64)
    return np.asarray(counts / np.diff(edges)[:, None])


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
