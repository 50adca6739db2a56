"""The report of a large table: how long it takes to write, and how large the page is.

What is measured is the page, so the gaps are filled with straight lines and one spread for all
cells; a network would fill them with other numbers of the same size.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from mdtim.baselines.simple import linear
from mdtim.bench.environment import commit, device_name, versions
from mdtim.distribution import BinDistribution
from mdtim.imputation import Imputation
from mdtim.inference import Cells
from mdtim.panel import gap_lengths
from mdtim.tables.table import Table

ROWS, COLUMNS = 100_000, 50
SHARE_MISSING, LONG_GAPS, LONGEST = 0.02, 20, 500
"""Single cells that are missing, and for each column longer gaps."""
NUM_BINS = 60


@dataclass(frozen=True)
class ReportRow:
    """One report."""

    rows: int
    columns: int
    missing: int
    gaps: int
    seconds: float
    """From the filled table to the file on disk, Bokeh's loading included."""
    megabytes: float
    load: float
    """Work that waited for this machine's cores meanwhile, from anyone."""
    device: str
    versions: str
    commit: str


def run_report(num_rows: int = ROWS, num_columns: int = COLUMNS) -> ReportRow:
    """Write the report of a made-up table and look at the file."""
    imputation = filled(gappy_table(num_rows, num_columns))
    panel = imputation.table.panel
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        began = time.perf_counter()
        imputation.report(path)
        seconds = time.perf_counter() - began
        size = path.stat().st_size
    return ReportRow(
        rows=num_rows,
        columns=num_columns,
        missing=int((~panel.observed).sum()),
        gaps=len(gap_lengths(panel.observed, panel.offsets)[0]),
        seconds=round(seconds, 2),
        megabytes=round(size / 1e6, 3),
        load=round(os.getloadavg()[0], 1),
        device=device_name(torch.device("cpu")),
        versions=versions("bokeh"),
        commit=commit(),
    )


def gappy_table(num_rows: int, num_columns: int) -> pd.DataFrame:
    """Hourly waves with drift and noise, single cells missing and gaps of up to weeks."""
    generator = np.random.default_rng(0)
    hours = np.arange(num_rows)[:, None]
    shape = (num_rows, num_columns)
    drift = np.cumsum(generator.normal(scale=0.02, size=shape), axis=0)
    wave = np.sin(hours * 2 * np.pi / 24 + generator.uniform(0, 6, num_columns))
    values = wave + drift + generator.normal(scale=0.1, size=shape)
    values[generator.random(shape) < SHARE_MISSING] = np.nan
    longest = min(LONGEST, num_rows // 4)
    for column in values.T:
        for start in generator.integers(0, num_rows - longest, LONG_GAPS):
            column[start : start + generator.integers(1, longest)] = np.nan
    times = pd.date_range("2013-01-01", periods=num_rows, freq="h", name="time")
    names = [f"column {number}" for number in range(num_columns)]
    return pd.DataFrame(values, columns=names, index=times)


def filled(frame: pd.DataFrame) -> Imputation:
    """Straight lines through the gaps, with a band around them."""
    table = Table.read(frame)
    panel = table.panel
    mean = linear(panel.values, panel.offsets)
    rows, variates = np.nonzero(~panel.observed)
    center = mean[rows, variates]
    distribution = BinDistribution(
        torch.full((len(rows), NUM_BINS), 1 / NUM_BINS),
        torch.from_numpy(center - 0.5),
        torch.full((len(rows),), 1 / (NUM_BINS - 1), dtype=torch.float64),
    )
    cells = Cells(rows, variates, center, distribution)
    return Imputation(table, cells, lambda number: mean, 0)
