"""Filling whole tables on a CPU: time and memory as the table grows."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass

import numpy as np

SHORT, LONG, VARIATES, SHARE_MISSING = 17_420, 174_200, 7, 0.3


@dataclass(frozen=True)
class TableRow:
    """One measurement, in a process of its own."""

    rows: int
    variates: int
    missing: int
    seconds: float
    """Of `transform`, the table already in memory, the model fitted."""
    peak_memory_gb: float
    """Resident, of the whole process, PyTorch included."""


def run_table() -> list[TableRow]:
    """Measure both lengths, one process each, so that neither's memory counts for the other."""
    rows = []
    for length in (SHORT, LONG):
        answer = subprocess.run(
            [sys.executable, "-m", "mdtim.bench.table", str(length)],
            check=True,
            capture_output=True,
            text=True,
        )
        rows.append(TableRow(**json.loads(answer.stdout.splitlines()[-1])))
    return rows


def seasonal_table(num_rows: int) -> np.ndarray:
    """Related daily waves with noise and drift, (rows, 7), 30 % of the cells missing."""
    generator = np.random.default_rng(0)
    hours = np.arange(num_rows)[:, None]
    phase, size = generator.uniform(0, 6, VARIATES), generator.uniform(0.5, 2, VARIATES)
    drift = np.cumsum(generator.normal(scale=0.02, size=(num_rows, VARIATES)), axis=0)
    noise = generator.normal(scale=0.1, size=drift.shape)
    table = size * np.sin(hours * 2 * np.pi / 24 + phase) + drift + noise
    table[generator.random(table.shape) < SHARE_MISSING] = np.nan
    return np.asarray(table)


def measure(num_rows: int) -> TableRow:
    """Fit for a moment on the first rows (the time to fill is the same), then fill the table."""
    import resource
    import time
    import warnings

    from mdtim.imputer import MDTIMImputer

    table = seasonal_table(num_rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        imputer = MDTIMImputer(
            window=48, preset="small", max_steps=2, device="cpu", progress=False
        ).fit(table[:2_000])
    imputer.transform(table[:500])
    began = time.perf_counter()
    filled = imputer.transform(table)
    seconds = time.perf_counter() - began
    assert not np.isnan(filled).any()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    missing = int(np.isnan(table).sum())
    return TableRow(num_rows, VARIATES, missing, round(seconds, 2), round(peak, 3))


if __name__ == "__main__":
    print(json.dumps(asdict(measure(int(sys.argv[1])))))
