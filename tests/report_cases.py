"""Filled tables made by hand, whose every number is known, and scores of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch

from mdtim.distribution import BinDistribution
from mdtim.evaluation import (
    CALIBRATION_LEVELS,
    CalibrationPoint,
    ColumnScore,
    Evaluation,
    GapLengthScore,
    MethodScore,
)
from mdtim.imputation import Imputation
from mdtim.inference import Cells
from mdtim.tables.table import Table, TableOptions

HOSTILE = "<img src=x onerror=alert(1)>\"'&</title></style></svg></script><script>alert(2)</script>"


def filled(
    data: Any, width: float = 1.0, left: tuple[int, ...] = (), options: TableOptions | None = None
) -> Imputation:
    """Fill with row / 10 and mass spread evenly by `width` around it; leave columns `left`."""
    table = Table.read(data) if options is None else Table.read(data, options)
    rows, variates = np.nonzero(~table.panel.observed)
    kept = ~np.isin(variates, left)
    rows, variates = rows[kept], variates[kept]
    mean = rows / 10
    half = width * (1 + 0.01 * rows)
    distribution = BinDistribution(
        torch.full((len(rows), 20), 1 / 20),
        torch.from_numpy(mean - half * 19 / 20),
        torch.from_numpy(half / 10),
    )
    cells = Cells(rows, variates, mean, distribution)
    return Imputation(table, cells, lambda number: table.panel.values, 0)


def holes(steps: int, gaps: dict[str, list[tuple[int, int]]]) -> pd.DataFrame:
    """Hourly table with gaps (first step, length) in each column."""
    index = pd.date_range("2024-03-01", periods=steps, freq="h", name="time")
    frame = pd.DataFrame(index=index)
    for number, (name, runs) in enumerate(gaps.items()):
        column = np.sin(np.arange(steps) / 4 + number)
        for first, length in runs:
            column[first : first + length] = np.nan
        frame[name] = column
    return frame


def values_of_any_size() -> pd.DataFrame:
    """Columns from the smallest to the largest numbers, around zero and around 10¹²."""
    wave = np.sin(np.arange(60.0))
    sizes = (0.0, 1e-308, 1e-9, 1.0, 1e9, 1e305)
    columns = {f"{low:g}+{size:g}": low + size * wave for low in (0.0, 1e12) for size in sizes}
    frame = pd.DataFrame(columns, index=pd.date_range("2024-03-01", periods=60, freq="h"))
    frame.iloc[20:25] = np.nan
    return frame


def panel_of_three() -> Imputation:
    """Series x, y and z of 80 steps; x lacks its last 10 steps, y its first 6."""
    parts = [holes(80, {"a": [(70, 10)]}), holes(80, {"a": [(0, 6)]}), holes(80, {"a": []})]
    frame = pd.concat([part.assign(id=name) for part, name in zip(parts, "xyz", strict=True)])
    return filled(frame.reset_index(), options=TableOptions(time="time", id="id"))


def methods(mae: float) -> tuple[MethodScore, ...]:
    return tuple(
        MethodScore(name, mae * times, 2 * mae * times, mae * times, covered)
        for name, times, covered in (
            ("mdtim", 1.0, 0.897),
            ("mean", 4.0, None),
            ("locf", 3.0, None),
            ("linear", 2.0, None),
        )
    )


CALIBRATION = tuple(CalibrationPoint(level, level**1.1) for level in CALIBRATION_LEVELS)
EVALUATION = Evaluation(
    share_hidden=0.1,
    num_hidden=1234,
    rows=methods(0.2134),
    columns=(ColumnScore(HOSTILE, 1234, methods(0.1), CALIBRATION, 0.01),),
    gap_lengths=(GapLengthScore(1, 1, 34, methods(0.1)), GapLengthScore(5, 8, 1200, methods(0.3))),
    calibration=CALIBRATION,
)
