"""A table before it is filled: its columns, its gaps, and how it could be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd

from mdtim.service.schemas import Preview, TableChoices, TableFacts
from mdtim.service.settings import Limits
from mdtim.service.uploads import read_table
from mdtim.tables.inspection import describe_table, missing_map
from mdtim.tables.table import Table
from mdtim.tables.timeline import read_timeline

MAX_BINS = 160
MAX_MAP_COLUMNS = 60
NUM_TICKS = 9
"""Of the map of one series: every other, every fourth or the two ends lie evenly too."""
MAX_SUGGESTIONS = 6
"""Columns that are tried as the id where the table cannot be read without one."""


def preview(frame: pd.DataFrame, choices: TableChoices, limits: Limits) -> Preview:
    """Describe a table; where it cannot be read the sentence why is part of the description.

    All columns are described, or, where one of them cannot be read, those that were chosen: then
    the sentence is there too.
    """
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
    options = choices.table_options()
    last: str | None = None
    problems: dict[bool, str] = {}  # by whether some columns were chosen: the first of each
    for attempt in _attempts(frame, options):
        is_suggestion = attempt.get("id") != options.get("id")
        try:
            table = read_table(frame, attempt, limits)
        except ValueError as error:
            problems.setdefault("columns" in attempt, str(error))
            last = str(error)
            continue
        if is_suggestion and table.panel.timestamps is None:
            continue  # a suggestion that loses the time is none
        timeline = read_timeline(frame, attempt.get("time"), attempt.get("id"))
        facts.time = None if timeline.time is None else str(frame.columns[timeline.time.position])
        facts.id = attempt.get("id")
        facts.numeric = list(table.panel.variates)
        facts.table = _describe(table)
        facts.problem = last if "columns" in attempt else None  # of all columns, read this way
        return facts
    # The sentence to show is that of what the user chose.
    facts.problem = problems["columns" in options]
    return facts


def _attempts(frame: pd.DataFrame, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Ways to read a table: all columns, the chosen ones, and both with a suggested id."""
    ways = [{k: v for k, v in options.items() if k != "columns"}]
    ways += [options] * ("columns" in options)
    yield from ways
    if "id" in options:
        return
    names = (
        str(name)
        for name in frame.columns
        if name != options.get("time")
        and not pd.api.types.is_float_dtype(frame[name].dtype)
        and 1 < _num_kinds(frame[name]) <= len(frame) // 2
    )
    for name in islice(names, MAX_SUGGESTIONS):
        yield from ({**way, "id": name} for way in ways)


def _num_kinds(column: pd.Series[Any]) -> int:
    """How many different cells a column has; 0 if they cannot be compared, as lists cannot."""
    try:
        return int(column.nunique())
    except TypeError:
        return 0


def _describe(table: Table) -> TableFacts:
    facts, panel = describe_table(table), table.panel
    order = np.argsort(-(~panel.observed).sum(axis=0), kind="stable")[:MAX_MAP_COLUMNS]
    return TableFacts(**{**facts, "map": asdict(missing_map(panel, order, MAX_BINS, NUM_TICKS))})
