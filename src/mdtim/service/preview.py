"""A table before it is filled: its columns, its gaps, and how it could be read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd

from mdtim.inspection import describe_table, missing_shares
from mdtim.panel import Panel
from mdtim.service.schemas import MissingMap, Preview, TableChoices, TableFacts
from mdtim.service.settings import Limits
from mdtim.service.uploads import read_table
from mdtim.timeline import read_timeline

MAX_STRETCHES = 160
MAX_MAP_COLUMNS = 60
MAX_SUGGESTIONS = 6
"""Columns that are tried as the id where the table cannot be read without one."""


def preview(frame: pd.DataFrame, choices: TableChoices, limits: Limits) -> Preview:
    """Describe a table; where it cannot be read the sentence why is part of the description."""
    options = {k: v for k, v in choices.table_options().items() if k != "columns"}
    facts = Preview(
        rows=len(frame),
        names=[str(name) for name in frame.columns],
        numeric=[str(n) for n in frame.columns if pd.api.types.is_numeric_dtype(frame[n].dtype)],
        time=choices.time,
        id=choices.id,
        table=None,
        problem=None,
        notes=[],
    )
    for attempt in _attempts(frame, options):
        try:
            table = read_table(frame, attempt, limits)
        except ValueError as error:
            # The first attempt is the user's own: its sentence is the one to show.
            facts.problem = facts.problem or str(error)
            continue
        if attempt is not options and table.panel.timestamps is None:
            continue  # a suggestion that loses the time is none
        timeline = read_timeline(frame, attempt.get("time"), attempt.get("id"))
        facts.time = None if timeline.time is None else str(frame.columns[timeline.time.position])
        facts.id = attempt.get("id")
        facts.numeric = list(table.panel.variates)
        facts.table = _describe(table.panel)
        facts.problem = None
        break
    return facts


def _attempts(frame: pd.DataFrame, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield options
    if "id" in options:
        return
    names = (
        str(name)
        for name in frame.columns
        if name != options.get("time")
        and not pd.api.types.is_float_dtype(frame[name].dtype)
        and 1 < frame[name].nunique() <= len(frame) // 2
    )
    yield from ({**options, "id": name} for name in islice(names, MAX_SUGGESTIONS))


def _describe(panel: Panel) -> TableFacts:
    facts = describe_table(panel)
    order = np.argsort(-(~panel.observed).sum(axis=0), kind="stable")[:MAX_MAP_COLUMNS]
    shares = missing_shares(panel, MAX_STRETCHES)
    missing = MissingMap(
        columns=[panel.variates[variate] for variate in order],
        shares=shares[:, order].T.round(3).tolist(),
        ticks=_ticks(panel),
    )
    return TableFacts(**{**facts, "map": missing})


def _ticks(panel: Panel) -> list[tuple[float, str]]:
    num_rows = len(panel.values)
    if panel.num_series > 1:
        chosen = np.unique(np.linspace(0, panel.num_series - 1, 6).astype(int))
        names = panel.names or range(panel.num_series)
        return [(int(panel.offsets[s]) / num_rows, str(names[s])) for s in chosen]
    rows = np.unique(np.linspace(0, num_rows - 1, 5).astype(int))
    return [(int(row) / num_rows, row_label(panel, int(row))) for row in rows]


def row_label(panel: Panel, row: int) -> str:
    """Time of a row in words, or its step from 0 where there is no time."""
    if panel.timestamps is None:
        return f"step {row:,}"
    time = panel.timestamps[row]
    unit = "D" if (panel.step_seconds or 0) >= 86_400 else "m"
    return str(time.astype(f"M8[{unit}]")).replace("T", " ")
