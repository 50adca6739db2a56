"""Filled tables as files: CSV and Parquet as the library writes them, and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mdtim.atomic import atomic_path
from mdtim.tables.files import ParquetSource, write_frame
from mdtim.tables.text_tables import TextStyle


def write_result(
    frame: pd.DataFrame,
    path: Path,
    style: TextStyle | None = None,
    source: ParquetSource | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Write a table in the format of the suffix, whole or not at all; as it was written before.

    JSON is `{"columns": {name: cells}, "notes": [...]}`, null where a cell is missing or not
    finite. Numbers have all their digits; times are ISO 8601.

    Parameters
    ----------
    notes : what its owner should know, for those who get nothing but JSON
    """
    if path.suffix != ".json":
        write_frame(frame, path, style, source)
        return
    if not isinstance(frame.index, pd.RangeIndex):
        frame = frame.reset_index()
    columns = {str(name): _cells(frame.iloc[:, at]) for at, name in enumerate(frame.columns)}
    with atomic_path(path) as temporary:
        told = {"columns": columns, "notes": list(notes)}
        document = json.dumps(told, allow_nan=False, default=_as_text)
        temporary.write_text(document, encoding="utf-8")


def _cells(column: pd.Series[Any]) -> list[Any]:
    known = column.notna().to_numpy()
    if pd.api.types.is_float_dtype(column.dtype):
        known = np.isfinite(column.to_numpy(dtype=np.float64, na_value=np.nan))
    cells = column.astype(object).tolist()
    return [cell if there else None for cell, there in zip(cells, known, strict=True)]


def _as_text(cell: Any) -> str:
    return str(cell.isoformat()) if hasattr(cell, "isoformat") else str(cell)
