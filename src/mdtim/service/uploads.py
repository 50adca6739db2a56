"""Tables that strangers send: measured before they are read, refused where they are too large."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet

from mdtim.service.schemas import MAX_NAME
from mdtim.service.settings import Limits
from mdtim.tables.files import PARQUET, read_styled, table_suffixes, unpack
from mdtim.tables.table import Table, TableOptions
from mdtim.tables.text_tables import SEPARATORS, TextStyle, header_line

JSON_SUFFIX = ".json"
MAX_FILE_NAME = 200
"""Characters of a file's name that are kept; its suffix is among the last."""
_BLOCK = 2**20


def source_suffix(name: str) -> str:
    """Suffix under which an uploaded file is kept, such as ".csv.gz"; no other part of its name.

    Raises
    ------
    ValueError
        If the service cannot read such files.
    """
    if Path(name).suffix.lower() == JSON_SUFFIX:
        return JSON_SUFFIX
    try:
        return "".join(table_suffixes(name))
    except ValueError as error:
        raise ValueError(
            "the name of the file must end in .csv, .tsv, .txt (also with .gz, .bz2, .xz, .zst), "
            ".parquet, .pq or .json"
        ) from error


def shown_name(said: str) -> str | None:
    """The name of a sender's file as it may be shown: no folders, nothing that does not print.

    Examples
    --------
    >>> shown_name("data/Zähler.csv")
    'Zähler.csv'
    """
    last = re.split(r"[/\\]", said)[-1]
    return "".join(filter(str.isprintable, last))[-MAX_FILE_NAME:] or None


def result_name(name: str | None, suffix: str, what: str) -> str:
    """Name of a file that is made of a sender's file.

    Parameters
    ----------
    name, suffix : of the sender's file; no name where it came without one

    Examples
    --------
    >>> result_name("sensors.csv.gz", ".csv.gz", "filled.csv")
    'sensors_filled.csv'
    >>> result_name(None, ".csv", "filled.csv")
    'filled.csv'
    """
    stem = (name or suffix)[: -len(suffix)]
    return f"{stem}_{what}" if stem else what


def read_upload(
    path: Path, limits: Limits, name: str | None = None
) -> tuple[pd.DataFrame, TextStyle | None]:
    """Read an uploaded table if it is within the limits, and the style of its text.

    Sizes are taken from headers and metadata first, so that a small file which stands for a large
    table is refused before it is unpacked. The limit on a worker's memory is the last word.

    Parameters
    ----------
    name : what messages call the file: its sender knows no other name of it

    Raises
    ------
    ValueError
        If it is damaged or too large.
    """
    form = ".parquet" if path.suffix in (JSON_SUFFIX, *PARQUET) else table_suffixes(path)[0]
    plain = path if path.suffix in PARQUET else path.with_name(f"plain{form}")
    try:
        with _called(name or "the file", path, plain):
            if path.suffix == JSON_SUFFIX:
                pa.parquet.write_table(_json_table(path, limits), plain)
            elif path.suffix in PARQUET:
                _check_parquet(path, limits)
            else:
                unpack(path, plain, limits.unpacked_bytes)
                _check_text(plain, limits)
            frame, style = read_styled(plain)
    finally:
        if plain != path:
            plain.unlink(missing_ok=True)
    _check_size(len(frame), frame.shape[1], limits)
    _check_names(frame)
    return frame, style


def read_table(frame: pd.DataFrame, options: dict[str, Any], limits: Limits) -> Table:
    """Read the table as the imputer will, and refuse one that skips too many steps."""
    table = Table.read(frame, TableOptions(**options))
    steps, variates = table.panel.values.shape
    if steps * variates > limits.cells:
        raise ValueError(
            f"between its first and last time the table has {steps:,} steps of {variates} columns, "
            f"above the limit of {limits.cells:,} cells; check its times, or split it"
        )
    return table


@contextmanager
def _called(name: str, *paths: Path) -> Iterator[None]:
    """Have errors and warnings call a file by its name in place of where it is kept."""
    # One pass over the sentence: a name may hold what stands for another.
    kept = re.compile("|".join(re.escape(said) for p in paths for said in (str(p), p.name)))

    def renamed(said: object) -> str:
        return kept.sub(lambda _: name, str(said))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        except ValueError as error:
            raise ValueError(renamed(error)) from error
    for warning in caught:
        warnings.warn(renamed(warning.message), warning.category, stacklevel=3)


def _check_size(rows: int, columns: int, limits: Limits) -> None:
    for found, limit, what in (
        (rows, limits.rows, "rows"),
        (columns, limits.columns, "columns"),
        (rows * columns, limits.cells, "cells"),
    ):
        if found > limit:
            raise ValueError(f"the file holds {found:,} {what}, the limit is {limit:,}; split it")


def _check_names(frame: pd.DataFrame) -> None:
    for number, name in enumerate(frame.columns, start=1):
        length = len(str(name))
        if length > MAX_NAME:
            raise ValueError(
                f"the name of column {number} has {length:,} characters, the limit is {MAX_NAME}; "
                "shorten it"
            )


def _check_text(path: Path, limits: Limits) -> None:
    with path.open("rb") as file:
        block = file.read(_BLOCK)
        header = header_line(block, path)
        if len(block) == _BLOCK and b"\n" not in block:
            raise ValueError(f"the first line of {path} is longer than {_BLOCK:,} bytes")
        # Quoted line breaks count too: a bound from above, and one that costs nothing to take.
        lines = block.count(b"\n")
        while block := file.read(_BLOCK):
            lines += block.count(b"\n")
    columns = max(header.count(sign) for sign in SEPARATORS) + 1
    _check_size(lines, columns, limits)


def _check_parquet(path: Path, limits: Limits) -> None:
    try:
        facts = pa.parquet.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a Parquet file, or damaged ({error})") from error
    _check_size(facts.num_rows, facts.num_columns, limits)
    groups = [facts.row_group(number) for number in range(facts.num_row_groups)]
    if sum(group.total_byte_size for group in groups) > limits.unpacked_bytes:
        raise ValueError(f"{path} unpacks to more than {limits.unpacked_bytes:,} bytes; split it")
    # Lists in cells: more values than rows times columns.
    values = sum(group.column(c).num_values for group in groups for c in range(group.num_columns))
    if values > limits.cells:
        raise ValueError(f"{path} holds {values:,} values, the limit is {limits.cells:,}; split it")


def _json_table(path: Path, limits: Limits) -> pa.Table:
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the body is not JSON ({error})") from error
    columns = document.get("columns") if isinstance(document, dict) else None
    if not isinstance(columns, dict) or not all(isinstance(c, list) for c in columns.values()):
        raise ValueError('expected a JSON object {"columns": {"name": [1.5, null], ...}}')
    lengths = {len(cells) for cells in columns.values()}
    if len(lengths) != 1:
        raise ValueError(
            f"the columns have {sorted(lengths)} cells; expected one number of cells for all"
            if lengths
            else "the table has no columns; give at least one"
        )
    _check_size(lengths.pop(), len(columns), limits)
    try:
        arrays = {name: _json_column(name, cells) for name, cells in columns.items()}
        return pa.table(arrays)
    except UnicodeEncodeError as error:
        raise ValueError(f"the JSON holds half a character ({error}); mend the text") from error


def _json_column(name: str, cells: list[Any]) -> pa.Array:
    if any(isinstance(cell, dict | list) for cell in cells):
        raise ValueError(f"column {name!r} holds lists or objects; expected numbers, text or null")
    try:
        return pa.array(cells)
    except (pa.ArrowException, OverflowError) as error:
        raise ValueError(
            f"column {name!r} mixes kinds of cells or holds a number too large; expected only "
            f"numbers or only text ({error})"
        ) from error
