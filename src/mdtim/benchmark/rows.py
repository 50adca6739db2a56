"""The results file: one line for each cell that was run, appended as soon as it is known."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from mdtim.bench.section import append_rows, check_columns, read_rows
from mdtim.benchmark.experiments import Cell
from mdtim.benchmark.forecaster import ForecasterConfig


@dataclass(frozen=True)
class Row(Cell):
    """One line of the results file: a cell, its scores and what they belong to."""

    mae: float | None
    mse: float | None
    crps: float | None
    crps_window: float | None
    coverage90: float | None
    params: int | None
    train_seconds: float | None
    impute_seconds: float | None
    peak_memory_gb: float | None
    device: str
    versions: str
    commit: str
    config: str
    """Fingerprint of the configuration: a preset that changes makes its cells new again."""
    error: str = ""
    """Why there are no scores, if there are none."""


COLUMNS = [field.name for field in fields(Row)]

_CELL: dict[str, Callable[[str], Any]] = {
    field.name: {"window": int, "rate": float, "mask_seed": int, "train_seed": int}.get(
        field.name, str
    )
    for field in fields(Cell)
}
"""How the columns of a cell are read."""


def finished(path: Path) -> set[tuple[Any, ...]]:
    """Keys of the cells a results file has scores for; a failed one is tried again."""
    check_columns(path, COLUMNS)
    rows = [row for row in read_rows(path) if not row["error"]] if path.exists() else []
    return {(*_cell_of(row).values(), row["config"]) for row in rows}


def _cell_of(row: Mapping[str, str]) -> dict[str, Any]:
    """The columns that are a cell's."""
    return {name: parse(row[name]) for name, parse in _CELL.items()}


def key_of(cell: Cell) -> tuple[Any, ...]:
    """What :func:`finished` calls this cell."""
    return (*(getattr(cell, name) for name in _CELL), fingerprint(cell))


def fingerprint(cell: Cell) -> str:
    """Short hash of the configuration a cell is run with; empty if it has none."""
    config, settings = cell.model_config, cell.settings
    model: object = None if config is None else config.to_dict()
    if settings is not None:
        model = settings.plain()
    if cell.horizon is not None:
        return short_hash({"model": model, "forecaster": asdict(ForecasterConfig())})
    return "" if model is None else short_hash(model)


def is_current(row: Mapping[str, str]) -> bool:
    """Whether a line of the results file is of its preset or settings as they are now."""
    try:
        return fingerprint(Cell(**_cell_of(row))) == row["config"]
    except ValueError:  # of a preset or settings that are gone
        return False


def short_hash(tree: object) -> str:
    """Eight letters for a plain configuration."""
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:8]


def append(path: Path, row: Row) -> None:
    """Add a row."""
    append_rows(path, [{name: _text(value) for name, value in asdict(row).items()}])


def _text(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value
