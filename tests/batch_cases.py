"""A small data set in parts, a model for it, and the answer of one process."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from conftest import tiny_config, waves
from mdtim.batch import BatchOptions, run_batch
from mdtim.closed_form.rowwise import RowModel
from mdtim.imputer import MDTIMImputer
from mdtim.stacking import NUM_GROUPS, Stack
from mdtim.tables.table import TableOptions

LEVELS = (0.1, 0.9)
OPTIONS = BatchOptions(TableOptions(time="time", id="sensor"), LEVELS, device="cpu")
WINDOW = 16


@dataclass(frozen=True)
class Case:
    """What the tests of partitioned data sets share."""

    frame: pd.DataFrame
    model: Path
    expected: pd.DataFrame
    """The whole table filled at once, with quantiles, sorted by series and time."""


def sensors(num_steps: int = 140) -> pd.DataFrame:
    """Two sensors with single gaps, one longer than any halo, a count, and skipped hours."""
    frames = []
    for seed, name in enumerate(("a", "b")):
        values = waves(num_steps, 3, seed)
        values[np.random.default_rng(seed).random(values.shape) < 0.15] = np.nan
        values[40:100, 1] = np.nan
        frame = pd.DataFrame(values, columns=["x", "y", "z"])
        frame["count"] = (10 * frame["x"].fillna(0)).round().astype("Int64")
        frame.loc[20:22, "count"] = None
        frame.insert(0, "sensor", name)
        frame.insert(0, "time", pd.date_range("2020", periods=num_steps, freq="h"))
        frames.append(frame.drop(index=[5, 60, 61, 62]))
    return pd.concat(frames, ignore_index=True)


def make_case(folder: Path, **changes: object) -> Case:
    """Fit for a moment; what is compared is the filling, not its quality."""
    frame = sensors()
    imputer = MDTIMImputer(
        window=WINDOW,
        preset=tiny_config(max_steps=4, **changes),
        time="time",
        id="sensor",
        device="cpu",
        progress=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        imputer.fit(frame)
    model = imputer.model_
    # Line, season and rows must matter, else their seams do not show.
    stack = Stack((((0.4, 0.3, 0.2),) * NUM_GROUPS,) * 4)
    panel = imputer.read_table(frame, reset=False).panel
    rows = RowModel.fit(model.standardizer.forward(panel.values).astype(float), panel.offsets)
    corrections = replace(model.corrections, stack=stack, season=WINDOW // 3, rows=rows)
    imputer.model_ = replace(model, corrections=corrections)
    imputer.save(folder)
    result = imputer.impute(frame)
    extra = {f"q{level:g}": result.panel_quantile(level) for level in LEVELS}
    return Case(frame, folder, result.table.with_columns(result.values, extra))


def write_parts(frame: pd.DataFrame, folder: Path, edges: tuple[int, ...] = (30, 34, 90)) -> None:
    """Cut all series at the same hours, so that none lies whole in a part."""
    folder.mkdir(parents=True)
    hour = (frame["time"] - frame["time"].min()) // pd.Timedelta("1h")
    part = np.searchsorted(edges, hour, side="right")
    for number in range(len(edges) + 1):
        frame[part == number].to_parquet(folder / f"part-{number}.parquet", index=False)


def read_parts(folder: Path, pattern: str = "*.parquet") -> pd.DataFrame:
    """All parts, sorted by series and time."""
    paths = sorted(path for path in folder.rglob(pattern) if "_mdtim" not in path.parts)
    read = pd.read_parquet if pattern.endswith("parquet") else pd.read_csv
    whole = pd.concat([read(path) for path in paths])
    return whole.sort_values(["sensor", "time"]).reset_index(drop=True)


def same(one: pd.DataFrame, two: pd.DataFrame) -> None:
    """Equal to the last bit, whatever the types are called."""
    pd.testing.assert_frame_equal(one, two, check_exact=True)


def fill(source: Path | str, target: Path | str, case: Case, **changes: Any) -> Any:
    """Fill a data set with the model of a case."""
    return run_batch(str(source), str(target), replace(OPTIONS, **changes), model=case.model)
