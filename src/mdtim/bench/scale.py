"""A partitioned data set filled by one and by several workers: speed, memory, and their ratio.

All variants run one after the other on the same parts; only ratios within one run are worth
comparing on a machine that others use too.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from mdtim.bench.environment import commit, device_name, versions
from mdtim.config import ModelConfig, preset

WINDOW = 48


@dataclass(frozen=True)
class ScaleRow:
    """One way through all parts."""

    rows: int
    variates: int
    parts: int
    missing_share: float
    window: int
    size: str
    workers: int
    seconds: float
    """Of filling, the start of the workers included; the model was there."""
    rows_per_second: float
    rows_per_cpu_second: float
    """Of the workers' own time on a core, which other processes' work does not change."""
    speedup: float
    """Against the first variant of the same run."""
    first_memory_gb: float
    """Resident, the largest worker after its second part."""
    last_memory_gb: float
    """Resident, the largest worker at the end: as large as the first if memory is flat."""
    cores: int
    """Of the machine."""
    load: float
    """Processes that wanted a core in the last minute, when the variant ended."""
    device: str
    versions: str
    commit: str


def write_source(folder: Path, rows: int, variates: int, parts: int, missing_share: float) -> None:
    """One long series of daily waves with noise, cut into Parquet parts."""
    generator = np.random.default_rng(0)
    phase, size = generator.uniform(0, 6, variates), generator.uniform(0.5, 2, variates)
    names = [f"x{variate}" for variate in range(variates)]
    edges = np.linspace(0, rows, parts + 1).round().astype(int)
    for number, (begin, end) in enumerate(pairwise(edges)):
        step = np.arange(begin, end)
        noise = generator.normal(scale=0.1, size=(len(step), variates))
        values = size * np.sin(step[:, None] * 2 * np.pi / 24 + phase) + noise
        values[generator.random(values.shape) < missing_share] = np.nan
        frame = pd.DataFrame(values, columns=names)
        frame.insert(0, "time", np.datetime64("1900-01-01", "s") + step * np.timedelta64(60, "s"))
        frame.to_parquet(folder / f"part-{number:05d}.parquet", index=False)


def network(size: str) -> ModelConfig:
    """Config of a preset, or of a network so small that a run is mostly reading and writing."""
    if size != "tiny":
        return preset(size)
    return preset("small").change(
        width=16, num_heads=2, num_layers=1, embedding_width=8, condition_width=4
    )


def write_model(source: Path, folder: Path, size: str, device: str) -> None:
    """Fit for a moment on the first part: filling takes as long as with a good model."""
    from mdtim.imputer import MDTIMImputer
    from mdtim.tables.files import read_frame

    frame = read_frame(min(source.glob("*.parquet"))).head(2_000)
    imputer = MDTIMImputer(
        WINDOW, network(size), time="time", max_steps=2, device=device, progress=False
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        imputer.fit(frame).save(folder)


def run_scale(
    *,
    rows: int = 10_000_000,
    variates: int = 8,
    parts: int = 64,
    missing_share: float = 0.02,
    size: str = "tiny",
    workers: Sequence[int] = (1, 2),
    device: str = "cpu",
    folder: Path | None = None,
) -> list[ScaleRow]:
    """Fill the same parts with each number of workers.

    Parameters
    ----------
    folder : where the data sets are written and left; a temporary one without
    """
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            return run_scale(
                rows=rows,
                variates=variates,
                parts=parts,
                missing_share=missing_share,
                size=size,
                workers=workers,
                device=device,
                folder=Path(temporary),
            )
    source = folder / "source"
    source.mkdir(parents=True)
    write_source(source, rows, variates, parts, missing_share)
    write_model(source, folder / "model", size, device)
    measured: list[ScaleRow] = []
    for count in workers:
        seconds, cpu_seconds, first, last = _fill(
            folder, folder / f"filled-by-{count}", count, device
        )
        speed = rows / seconds
        measured.append(
            ScaleRow(
                rows=rows,
                variates=variates,
                parts=parts,
                missing_share=missing_share,
                window=WINDOW,
                size=size,
                workers=count,
                seconds=round(seconds, 1),
                rows_per_second=round(speed, 1),
                rows_per_cpu_second=round(rows / cpu_seconds, 1),
                speedup=round(speed / (measured[0].rows_per_second if measured else speed), 2),
                first_memory_gb=first,
                last_memory_gb=last,
                cores=os.cpu_count() or 1,
                load=round(os.getloadavg()[0], 1),
                device="CPU, 1 thread" if device == "cpu" else device_name(torch.device(device)),
                versions=versions(),
                commit=commit(),
            )
        )
    return measured


def _fill(
    folder: Path, target: Path, workers: int, device: str
) -> tuple[float, float, float, float]:
    """Seconds by the clock, on a core, and the largest worker's memory, early and at the end."""
    from mdtim.batch import BatchOptions, run_batch
    from mdtim.batch.engine import Pooled
    from mdtim.batch.engine_local import LocalPool
    from mdtim.batch.source import Place
    from mdtim.batch.target import Target
    from mdtim.tables.table import TableOptions

    report = run_batch(
        str(folder / "source"),
        str(target),
        BatchOptions(TableOptions(time="time"), device=device),
        model=folder / "model",
        engine=Pooled(LocalPool(workers)),
    )
    assert not report.failures, report.failures
    manifest = Target(Place(str(target)))
    names = sorted(path.name for path in target.glob("*.parquet"))
    by_worker: dict[int, list[float]] = {}
    cpu_seconds = 0.0
    for record in (manifest.record(name) for name in names):
        assert record is not None
        by_worker.setdefault(record["process"], []).append(record["peak_memory_gb"])
        cpu_seconds += record["cpu_seconds"]
    # A process' peak only ever grows, so its sorted peaks are in the order of its parts.
    peaks = [sorted(peaks) for peaks in by_worker.values()]
    first = max(worker[min(1, len(worker) - 1)] for worker in peaks)
    return report.seconds, cpu_seconds, first, max(worker[-1] for worker in peaks)
