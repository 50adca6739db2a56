"""Reading results: our rows, and the figures that the paper prints."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields
from importlib.resources import files
from statistics import fmean

from mdtim.benchmark.experiments import Cell

Key = tuple[str, int, str, float]
"""Data set, window, pattern, rate."""
TextRow = dict[str, str]


def paper_figures(metric: str) -> dict[str, dict[Key, float]]:
    """The paper's figures of a metric, by method.

    Parameters
    ----------
    metric : `mae`; `crps`; or `mae_ablation`, whose methods are our names of the variants
    """
    found: dict[str, dict[Key, float]] = defaultdict(dict)
    for row in _packaged("paper.csv"):
        if row["metric"] == metric:
            found[row["method"]][cell_key(row)] = float(row["value"])
    return dict(found)


def paper_forecasts() -> dict[str, dict[int, float]]:
    """The paper's forecasting errors from filled windows, by method and horizon."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for row in _packaged("paper_forecast.csv"):
        found[row["method"]][int(row["horizon"])] = float(row["mae"])
    return dict(found)


def paper_costs() -> dict[tuple[str, str], TextRow]:
    """The paper's table of cost, by scale and our name of the method."""
    return {(row["scale"], row["method"].lower()): row for row in _packaged("paper_cost.csv")}


def _packaged(name: str) -> list[TextRow]:
    text = (files("mdtim.benchmark") / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def cell_key(row: TextRow) -> Key:
    """What a row and a figure of the paper are compared by."""
    return row["dataset"], int(row["window"]), row["pattern"], float(row["rate"])


def last_runs(rows: Sequence[TextRow]) -> list[TextRow]:
    """Of every cell the row that was written last."""
    last = {tuple(row[field.name] for field in fields(Cell)): row for row in rows}
    return list(last.values())


def choose(rows: Sequence[TextRow], **wanted: str) -> list[TextRow]:
    """Rows whose columns have the given values."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def over_seeds(rows: Sequence[TextRow], column: str) -> dict[Key, list[float]]:
    """Values of a column over mask and training seeds, for each cell with one.

    Where a cell was run with several configurations of one preset, the last one counts; so does
    the last run with the same seeds.
    """
    rows = [row for row in rows if row[column]]
    latest = {cell_key(row): row["config"] for row in rows}
    values: dict[Key, list[float]] = defaultdict(list)
    for row in last_runs([row for row in rows if row["config"] == latest[cell_key(row)]]):
        values[cell_key(row)].append(float(row[column]))
    return dict(values)


def mean_over_seeds(rows: Sequence[TextRow], column: str) -> dict[Key, float]:
    """Mean of what :func:`over_seeds` finds."""
    return {key: fmean(numbers) for key, numbers in over_seeds(rows, column).items()}
