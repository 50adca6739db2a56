"""Tables as text: read faithfully, and written as the text they came from.

Separator, decimal sign, encoding and line ends of a file make its style.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

# Missing numbers as pandas reads them; in columns of text these are text like any other.
_MISSING = pa.array(
    ["", "#N/A", "#NA", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"]
)
NULLABLE = {
    getattr(pa, name.lower())(): pd.api.types.pandas_dtype(name)
    for name in ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
}
"""Types of integers that may be missing, by Arrow's."""
_MARK = b"\xef\xbb\xbf"
_UNNAMED = re.compile(r"Unnamed: \d+")


class TextStyle(NamedTuple):
    """How a file writes a table."""

    separator: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    line_end: str = "\n"


def parse_text(raw: bytes, separator: str | None, path: Path) -> tuple[pd.DataFrame, TextStyle]:
    """Read a table, and the style of its text.

    Parameters
    ----------
    separator : None to tell it by the header
    path : to be named in errors
    """
    raw, encoding = _as_utf8(raw, path)
    raw = _without_comments(raw.lstrip(b"\r\n"))
    if not raw.strip():
        raise ValueError(f"{path} is empty; expected a table with a header")
    line = raw.partition(b"\n")[0].decode("utf-8")
    line_end = "\r\n" if line.endswith("\r") else "\n"
    line = line.rstrip("\r")
    separator = separator or _separator(line)
    header = next(csv.reader([line], delimiter=separator))
    repeated = sorted({name for name in header if name and header.count(name) > 1})
    if repeated:
        raise ValueError(f"{path} has several columns called {', '.join(repeated)}; rename them")
    # Where there is one column, an empty line is a missing cell; at the end it is only an end.
    is_single = len(header) == 1
    table = pa.csv.read_csv(
        pa.py_buffer(raw.rstrip(b"\r\n") + b"\n" if is_single else raw),
        read_options=pa.csv.ReadOptions(column_names=_column_names(header), skip_rows=1),
        parse_options=pa.csv.ParseOptions(
            delimiter=separator, newlines_in_values=True, ignore_empty_lines=not is_single
        ),
        convert_options=pa.csv.ConvertOptions(
            column_types=dict.fromkeys(_column_names(header), pa.string()),
            null_values=[""],
            strings_can_be_null=True,
        ),
    )
    last = [str(column[-1]) for column in table.columns] if table.num_rows else []
    if raw.count(b'"') % 2 and any("\n" in cell for cell in last):
        raise ValueError(f"{path} opens a quote that never ends; close it or remove it")
    columns = dict(zip(table.column_names, table.columns, strict=True))
    decimal_comma = separator == ";"
    # Where one column has decimal commas, dots between groups of three digits are no decimals.
    grouped = decimal_comma and any(_has_decimal_commas(column) for column in columns.values())
    frame = pd.DataFrame(
        {name: _typed(column, decimal_comma, grouped) for name, column in columns.items()}
    )
    return frame, TextStyle(separator, "," if grouped else ".", encoding, line_end)


def write_text(frame: pd.DataFrame, file: Any, style: TextStyle) -> None:
    """Write a table to an open file of bytes.

    A time index or a named one becomes the first column, numbering does not.
    """
    header = ["" if _UNNAMED.fullmatch(str(name)) else str(name) for name in frame.columns]
    is_time = isinstance(frame.index, (pd.DatetimeIndex, pd.PeriodIndex))
    label = "time" if is_time and frame.index.name is None and "time" not in header else None
    text = io.TextIOWrapper(file, encoding=style.encoding, newline="")
    frame.to_csv(
        text,
        sep=style.separator,
        decimal=style.decimal,
        header=header,
        index=_is_worth_writing(frame.index),
        index_label=label,
        lineterminator=style.line_end,
    )
    text.flush()
    text.detach()  # who opened the file closes it


def _is_worth_writing(index: pd.Index[Any]) -> bool:
    if any(name is not None for name in index.names):
        return True
    return not pd.api.types.is_integer_dtype(index.dtype)


def _without_comments(raw: bytes) -> bytes:
    """Leave out lines with a # above the header; one that is the header itself loses its #."""
    while raw.startswith(b"#"):
        line, _, rest = raw.partition(b"\n")
        told = line[1:].decode("utf-8").strip()
        below = rest.partition(b"\n")[0].decode("utf-8").rstrip("\r")
        sign = _separator(told)
        names, cells = (next(csv.reader([text], delimiter=sign), []) for text in (told, below))
        has_numbers = any(re.fullmatch(r"\s*[+-]?[\d.]+\s*", cell) for cell in cells)
        if has_numbers and len(names) == len(cells) > 1:
            return told.encode() + b"\n" + rest
        raw = rest.lstrip(b"\r\n")
    return raw


def _as_utf8(raw: bytes, path: Path) -> tuple[bytes, str]:
    """The text without a mark in front of it, and the encoding it had."""
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        try:
            return raw.decode("utf-16").encode("utf-8"), "utf-16"
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is broken UTF-16 text; save it as UTF-8") from error
    if b"\0" in raw:
        raise ValueError(f"{path} holds binary data, expected text; check its suffix")
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1").encode("utf-8"), "latin-1"
    if raw.startswith(_MARK):
        return raw.removeprefix(_MARK), "utf-8-sig"
    return raw, "utf-8"


def _separator(line: str) -> str:
    """Tell the separator by which the header falls into the most columns."""
    return max(",;\t|", key=lambda sign: len(next(csv.reader([line], delimiter=sign))))


def _column_names(header: list[str]) -> list[str]:
    return [name or f"Unnamed: {position}" for position, name in enumerate(header)]


def _has_decimal_commas(column: pa.ChunkedArray) -> bool:
    """Whether all of a column's cells are numbers, and some of them have a comma."""
    cells = _without_missing(column)
    is_number = pc.all(
        pc.match_substring_regex(cells, r"^[+-]?[\d.]*(,\d+)?([eE][+-]?\d+)?$")
    ).as_py()
    return bool(is_number and pc.any(pc.match_substring(cells, ",")).as_py())


def _without_missing(column: pa.ChunkedArray) -> Any:
    cells = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.is_in(cells, _MISSING), None, cells)


def _typed(column: pa.ChunkedArray, decimal_comma: bool, grouped: bool) -> Any:
    """(R,) text as integers or floats where all of it is such, otherwise as it is.

    Parameters
    ----------
    decimal_comma : a comma may be the decimal sign
    grouped : a dot may stand between groups of three digits
    """
    numbers = _without_missing(column)
    if grouped:
        dotted = pc.drop_null(pc.if_else(pc.match_substring(numbers, "."), numbers, None))
        groups = pc.match_substring_regex(dotted, r"^[+-]?\d{1,3}(\.\d{3})+(,\d+)?$")
        if pc.all(groups).as_py():
            numbers = pc.replace_substring(numbers, ".", "")
    if decimal_comma:
        numbers = pc.replace_substring_regex(
            numbers, r"^([+-]?\d*),(\d+([eE][+-]?\d+)?)$", r"\1.\2"
        )
    is_integer = pc.all(pc.match_substring_regex(numbers, r"^[+-]?\d+$")).as_py()
    try:
        if not is_integer:  # or None, if all are missing
            return pc.cast(numbers, pa.float64()).to_pandas()
        # Leading zeros mean a code, more digits than int64 holds mean one as well.
        if not pc.any(pc.match_substring_regex(numbers, r"^[+-]?0\d")).as_py():
            whole = pc.cast(pc.replace_substring_regex(numbers, r"^\+", ""), pa.int64())
            return whole.to_pandas(types_mapper=NULLABLE.get if whole.null_count else None)
    except pa.ArrowInvalid:
        pass
    return column.to_pandas()
