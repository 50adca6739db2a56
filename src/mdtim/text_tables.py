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
SEPARATORS = ",;\t|"


class TextStyle(NamedTuple):
    """How a file writes a table."""

    separator: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    line_end: str = "\n"
    unnamed: tuple[str, ...] = ()
    """Columns without a name in the file, by the names they have in the table."""
    suffix: str = ".csv"
    """Of the file, without that of a compression."""


def parse_text(
    raw: bytes, separator: str | None, path: Path, *, has_decimal_commas: bool = False
) -> tuple[pd.DataFrame, TextStyle]:
    """Read a table, and the style of its text.

    Parameters
    ----------
    separator : None to tell it by the header
    path : to be named in errors
    has_decimal_commas : whether other text of the same making has them
    """
    raw, encoding = _as_utf8(raw, path)
    line, body = _header(_without_comments(raw.lstrip(b"\r\n")))
    line_end = "\r\n" if line.endswith("\r") else "\n"
    line = line.rstrip("\r")
    if not line.strip():
        raise ValueError(f"{path} is empty; expected a table with a header")
    separator = separator or _separator(line)
    header = next(csv.reader(io.StringIO(line, newline=""), delimiter=separator))
    repeated = sorted({name for name in header if name and header.count(name) > 1})
    if repeated:
        raise ValueError(f"{path} has several columns called {', '.join(repeated)}; rename them")
    names = _column_names(header)
    cells = _read_cells(body, names, separator, path)
    decimal_comma = separator == ";"
    # Where one column has decimal commas, dots between groups of three digits are no decimals.
    grouped = decimal_comma and (has_decimal_commas or any(map(_has_decimal_commas, cells)))
    columns = {
        name: _typed(column, decimal_comma, grouped)
        for name, column in zip(names, cells, strict=True)
    }
    unnamed = tuple(name for name, said in zip(names, header, strict=True) if not said)
    style = TextStyle(separator, "," if grouped else ".", encoding, line_end, unnamed)
    return pd.DataFrame(columns), style


def _read_cells(body: bytes, names: list[str], separator: str, path: Path) -> list[pa.ChunkedArray]:
    """All columns as text."""
    # Where there is one column, an empty line is a missing cell; at the end it is only an end.
    is_single = len(names) == 1
    if is_single:
        body = body.rstrip(b"\r\n") + b"\n" if body.strip(b"\r\n") else b""
    if not body.strip(b"\r\n"):
        return [pa.chunked_array([], pa.string()) for _ in names]
    table = pa.csv.read_csv(
        pa.py_buffer(body),
        read_options=pa.csv.ReadOptions(column_names=names),
        parse_options=pa.csv.ParseOptions(
            delimiter=separator, newlines_in_values=True, ignore_empty_lines=not is_single
        ),
        convert_options=pa.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
        ),
    )
    last = [str(column[-1]) for column in table.columns] if table.num_rows else []
    if body.count(b'"') % 2 and any("\n" in cell for cell in last):
        raise ValueError(f"{path} opens a quote that never ends; close it or remove it")
    columns: list[pa.ChunkedArray] = table.columns
    return columns


def header_line(raw: bytes, path: Path) -> str:
    """The header at the beginning of a file, of which `raw` may be the first part alone."""
    raw, _ = _as_utf8(raw[: len(raw) // 2 * 2], path)  # two bytes a letter in UTF-16
    return _header(_without_comments(raw.lstrip(b"\r\n")))[0]


def _header(raw: bytes) -> tuple[str, bytes]:
    """The first line, or more where a name in quotes goes on, and what is below."""
    end = raw.find(b"\n")
    quotes = raw.count(b'"', 0, end) if end >= 0 else 0
    while quotes % 2 and (after := raw.find(b"\n", end + 1)) >= 0:
        quotes += raw.count(b'"', end, after)
        end = after
    if quotes % 2:  # a quote that never ends
        end = raw.find(b"\n")
    return (raw if end < 0 else raw[:end]).decode("utf-8"), b"" if end < 0 else raw[end + 1 :]


def write_text(frame: pd.DataFrame, file: Any, style: TextStyle) -> None:
    """Write a table to an open file of bytes.

    A time index or a named one becomes the first column, numbering does not.
    """
    header = ["" if name in style.unnamed else str(name) for name in frame.columns]
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
            return told.encode() + (b"\r\n" if line.endswith(b"\r") else b"\n") + rest
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
    line = " ".join(line.split("\n"))  # a line break in a name is no end
    return max(SEPARATORS, key=lambda sign: len(next(csv.reader([line], delimiter=sign))))


def _column_names(header: list[str]) -> list[str]:
    """The names, and made up ones that no other column has where there is none."""
    names = []
    for position, name in enumerate(header):
        made_up, number = f"Unnamed: {position}", 0
        while not name and made_up in header:
            number += 1
            made_up = f"Unnamed: {position}.{number}"
        names.append(name or made_up)
    return names


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
