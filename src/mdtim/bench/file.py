"""One file with gaps, filled as people do it: error, intervals and time on this machine.

No training split, no windows of a protocol: the imputer gets the table with the hidden cells
missing, and nothing else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mdtim.bench.environment import commit, device_name, versions
from mdtim.datasets import load
from mdtim.evaluation import ColumnScore, Evaluation, hide_share, score, without
from mdtim.imputer import MDTIMImputer
from mdtim.panel import BoolArray, Panel
from mdtim.runtime import resolve_device
from mdtim.weather import WEATHER_COLUMNS, nyc_weather

CASES = ("random", "blocks", "outages", "weather")
"""ETTh1 with 30 % of its cells hidden one by one; the same in blocks of 24 to 96 hours of one
variate; twelve outages of 3 to 14 days of all variates, beside 3 % one by one; New York's weather
with its own gaps and a further 10 % hidden in runs like them."""
SHARE = 0.3
LEVELS = (0.5, 0.8, 0.9, 0.95)


@dataclass(frozen=True)
class FileRow:
    """One method on one file; errors are in units of each column's std."""

    case: str
    method: str
    steps: int
    """Of training on this file."""
    window: int
    mae: float
    crps: float
    cover50: float | None
    cover80: float | None
    cover90: float | None
    cover95: float | None
    """Of the columns that are not mostly one value, as rain is: an interval that holds that value
    covers more than it promises, and should."""
    cover50_all: float | None
    """Of all columns."""
    seconds: float
    """From the table to the filled table with its distributions, loading included."""
    load: float
    """Work that waited for this machine's cores meanwhile, from anyone."""
    device: str
    versions: str
    commit: str


def hidden_blocks(shape: tuple[int, int], generator: np.random.Generator) -> BoolArray:
    """Hide blocks of 24 to 96 steps of single variates until the share is reached in each."""
    hidden = np.zeros(shape, dtype=bool)
    for column in hidden.T:
        while column.mean() < SHARE:
            length = int(generator.integers(24, 97))
            start = int(generator.integers(0, shape[0] - length))
            column[start : start + length] = True
    return hidden


def hidden_outages(shape: tuple[int, int], generator: np.random.Generator) -> BoolArray:
    """Hide twelve stretches of 72 to 336 steps of all variates, and 3 % of the cells besides."""
    hidden = generator.random(shape) < 0.03
    for _ in range(12):
        length = int(generator.integers(72, 337))
        start = int(generator.integers(0, shape[0] - length))
        hidden[start : start + length] = True
    return hidden


def read_case(case: str, imputer: MDTIMImputer) -> tuple[Panel, BoolArray]:
    """The whole panel of a case, and what is hidden of it."""
    if case not in CASES:
        raise ValueError(f"unknown case {case!r}; there are {', '.join(CASES)}")
    if case == "weather":
        imputer.set_params(id="origin", time="time_hour", columns=WEATHER_COLUMNS)
        panel = imputer.read_table(nyc_weather(), reset=True).panel
        return panel, hide_share(panel, 0.1, 0)
    panel = imputer.read_table(load("etth").values, reset=True).panel
    generator = np.random.default_rng(0)
    if case == "random":
        return panel, generator.random(panel.values.shape) < SHARE
    if case == "outages":
        return panel, hidden_outages(panel.values.shape, generator)
    return panel, hidden_blocks(panel.values.shape, generator)


def run_file(case: str, preset: str, *, adapt: bool, device: str, minutes: float) -> list[FileRow]:
    """Fill a case and score it beside linear interpolation."""
    rest: dict[str, object] = {
        "device": device_name(resolve_device(device)),
        "versions": versions(),
        "commit": commit(),  # now: a long run may see the tree change under it
    }
    imputer = MDTIMImputer(
        preset=preset, adapt=adapt, device=device, max_minutes=minutes, progress=False
    )
    panel, hidden = read_case(case, imputer)
    shown = without(panel, hidden)
    began = time.perf_counter()
    imputer.fit_panel(shown)
    cells = imputer.model_.fill(shown, keep_distribution=True)
    seconds = time.perf_counter() - began
    scores = score(panel, hidden, cells, float(hidden.mean()))
    steps = imputer.report_.steps
    name = f"mdtim {preset}" + (", adapted" if adapt else "")
    varied = [column for column in scores.columns if column.commonest <= 0.5]
    covered = {level: _covered(varied, level) for level in LEVELS}
    rest |= {"window": imputer.window_, "load": round(os.getloadavg()[0], 1)}
    mine = {f"cover{round(100 * level)}": covered[level] for level in LEVELS}
    mine["cover50_all"] = _covered(scores.columns, 0.5)
    none = dict.fromkeys(mine)
    return [
        _row(case, name, steps, scores, "mdtim", {**mine, **rest, "seconds": round(seconds, 1)}),
        _row(case, "linear", 0, scores, "linear", {**none, **rest, "seconds": 0.0}),
    ]


def _covered(columns: Sequence[ColumnScore], level: float) -> float | None:
    """Share of the columns' hidden cells inside their intervals of one level."""
    found = [
        (column.num_hidden, point.covered)
        for column in columns
        for point in column.calibration
        if point.level == level
    ]
    total = sum(count for count, _ in found)
    return sum(count * covered for count, covered in found) / total if total else None


def _row(
    case: str, name: str, steps: int, scores: Evaluation, method: str, rest: dict[str, object]
) -> FileRow:
    (found,) = (row for row in scores.rows if row.method == method)
    return FileRow(
        case=case,
        method=name,
        steps=steps,
        mae=round(found.mae, 4),
        crps=round(found.crps, 4),
        **rest,  # type: ignore[arg-type]
    )
