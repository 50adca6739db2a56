"""Filling whole tables on a CPU: time and memory as the table grows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np


@dataclass(frozen=True)
class TableRow:
    """One measurement, in a process of its own."""

    preset: str
    rows: int
    variates: int
    missing: int
    seconds: float
    """Of `transform`, the table already in memory, the model fitted."""
    peak_memory_gb: float
    """Resident, of the whole process, PyTorch and the table included."""
    device: str
    versions: str
    commit: str


def run_table(
    lengths: Sequence[int], *, preset: str, variates: int, missing: float
) -> Iterator[TableRow]:
    """Measure each length in a process of its own, so that no memory counts for another."""
    for length in lengths:
        answer = subprocess.run(
            [sys.executable, "-m", __spec__.name, *map(str, (length, preset, variates, missing))],
            check=True,
            capture_output=True,
            text=True,
        )
        yield TableRow(**json.loads(answer.stdout.splitlines()[-1]))


def seasonal_table(num_rows: int, num_variates: int, missing: float) -> np.ndarray:
    """Related daily waves with noise and drift, (rows, variates), a share of the cells missing."""
    generator = np.random.default_rng(0)
    hours = np.arange(num_rows)[:, None]
    phase, size = generator.uniform(0, 6, num_variates), generator.uniform(0.5, 2, num_variates)
    drift = np.cumsum(generator.normal(scale=0.02, size=(num_rows, num_variates)), axis=0)
    noise = generator.normal(scale=0.1, size=drift.shape)
    table = size * np.sin(hours * 2 * np.pi / 24 + phase) + drift + noise
    table[generator.random(table.shape) < missing] = np.nan
    return np.asarray(table)


def measure(num_rows: int, preset: str, num_variates: int, missing: float) -> TableRow:
    """Fit for a moment on the first rows (the time to fill is the same), then fill the table.

    A pretrained network is fitted to the whole table as a user would, which trains nothing.
    """
    import time
    import warnings

    import torch

    from mdtim.bench.environment import commit, device_name, versions
    from mdtim.imputer import MDTIMImputer
    from mdtim.pretrained import fills_at_once
    from mdtim.runtime import process_memory_gb

    table = seasonal_table(num_rows, num_variates, missing)
    at_once = fills_at_once(preset)
    imputer = MDTIMImputer(preset=preset, device="cpu", progress=False)
    if not at_once:
        imputer.set_params(window=48, max_steps=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        imputer.fit(table if at_once else table[:2_000])
    imputer.transform(table[:500])
    began = time.perf_counter()
    filled = imputer.transform(table)
    seconds = time.perf_counter() - began
    assert not np.isnan(filled).any()
    return TableRow(
        preset,
        num_rows,
        num_variates,
        int(np.isnan(table).sum()),
        round(seconds, 2),
        round(process_memory_gb(), 3),
        device_name(torch.device("cpu")),
        versions(),
        commit(),
    )


if __name__ == "__main__":
    length, name, width, share = sys.argv[1:]
    print(json.dumps(asdict(measure(int(length), name, int(width), float(share)))))
