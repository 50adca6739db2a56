"""Tables as text: read faithfully, and written as the text they came from.

Separator, decimal sign, encoding, line ends and the text of its cells make the style of a file.
"""

from __future__ import annotations

import contextlib
import csv
import io
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from mdtim.tables.digits import (
    DOT_NUMBER,
    find_grouping,
    groups,
    is_of,
    note_doubts,
    without_missing,
)
from mdtim.tables.table import TableWarning

NULLABLE = {
    getattr(pa, name.lower())(): pd.api.types.pandas_dtype(name)
    for name in ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
}
"""Types of integers that may be missing, by Arrow's."""
_MARK = b"\xef\xbb\xbf"
_TOLD_SEPARATOR = re.compile(rb"sep=([,;\t|])\r?\n", re.IGNORECASE)
_DATUM = re.compile(r"[+-]?[\d.,]*\d([eE][+-]?\d+)?|\d{1,4}[-/.]\d\d?[-/.]\d{1,4}([ T]\d.*)?")
SEPARATORS = ";\t|,"


@dataclass(frozen=True)
class TextStyle:
    """How a file writes a table, so that it can be written as it was but for its gaps."""

    separator: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    line_end: str = "\n"
    above: str = ""
    """Lines above the header."""
    suffix: str = ".csv"
    """Of the file, without that of a compression."""
    grouping: str = field(default="", compare=False)
    """Sign that may stand between groups of three digits."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Names of columns that the file writes otherwise: with spaces around them, or not at all."""
    cells: Mapping[str, pa.ChunkedArray] = field(default_factory=dict, compare=False, repr=False)
    """The text of the columns that are numbers."""


def parse_text(
    raw: bytes, separator: str | None, path: Path, *, has_decimal_commas: bool = False
) -> tuple[pd.DataFrame, TextStyle]:
    """Read a table, and the style of its text.

    Parameters
    ----------
    separator : None to tell it by the header and the rows below
    path : to be named in errors
    has_decimal_commas : whether other text of the same making has them
    """
    raw, encoding = _as_utf8(raw, path)
    is_mac = b"\r" in raw and b"\n" not in raw
    if is_mac:
        raw = raw.replace(b"\r", b"\n")
    above, below = _split_above(raw)
    line, body = _header(below)
    # The header's, as quoted cells may hold others.
    line_end = "\r" if is_mac else "\r\n" if line.endswith("\r") else "\n"
    line = line.rstrip("\r")
    if not line.strip():
        raise ValueError(f"{path} is empty; expected a table with a header")
    told = _TOLD_SEPARATOR.search(above)
    separator = separator or (told[1].decode() if told else _separator(line, body))
    header = next(csv.reader(io.StringIO(line, newline=""), delimiter=separator))
    names = _column_names(header, path)
    columns = dict(zip(names, _read_cells(body, names, separator, path), strict=True))
    grouping = ""
    if separator != ",":
        grouping = find_grouping(columns.values(), has_decimal_commas=has_decimal_commas)
    decimal = "," if grouping == "." else "."
    typed = {name: _typed(column, separator, grouping) for name, column in columns.items()}
    for name, said in zip(names, header, strict=True):
        if not said.strip() and typed[name].isna().all():
            typed[name] = columns[name].to_pandas()  # a separator at the end makes no column
    frame = pd.DataFrame(typed)
    numeric = {name: columns[name] for name in names if frame[name].dtype.kind in "iuf"}
    _note_header(header, path)
    if separator != ",":  # one that separates cells is in no number, and a dot a decimal sign
        note_doubts(numeric, grouping)
    style = TextStyle(
        separator,
        decimal,
        encoding,
        line_end,
        above.decode("utf-8"),
        grouping=grouping,
        names={name: said for name, said in zip(names, header, strict=True) if name != said},
        cells=numeric,
    )
    return frame, style


def _note_header(header: list[str], path: Path) -> None:
    """Warn of a first line that may be data."""
    if _looks_like_data([name.strip() for name in header if name.strip()]):
        warnings.warn(
            f"the first line of {path.name} is taken for names of columns, but looks like data "
            f"({', '.join(header[:3])}); give the file a header",
            TableWarning,
            stacklevel=2,
        )


def _looks_like_data(names: list[str]) -> bool:
    """Whether all names are numbers or dates, and no columns that somebody counted: 0, 1, 2."""
    if not names or not all(map(_DATUM.fullmatch, names)):
        return False
    counted = names[0].isdecimal() and [str(int(names[0]) + n) for n in range(len(names))]
    return names != counted


def _read_cells(body: bytes, names: list[str], separator: str, path: Path) -> list[pa.ChunkedArray]:
    """All columns as text."""
    # Where there is one column, an empty line is a missing cell; at the end it is only an end.
    is_single = len(names) == 1
    if is_single:
        stripped = body.rstrip(b"\r\n") + b"\n" if body.strip(b"\r\n") else b""
        num_empty = body.count(b"\n") - stripped.count(b"\n")
        if stripped and num_empty > 0:
            warnings.warn(
                f"{path.name} ends with {num_empty} empty line{'s' * (num_empty > 1)}, left out; "
                "write NA where a value is missing",
                TableWarning,
                stacklevel=3,
            )
        body = stripped
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
    return _header(_split_above(raw)[1])[0]


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

    A time index or a named one becomes the first column, numbering does not. Numbers that say what
    the text said are written as it wrote them.
    """
    header = [style.names.get(name, str(name)) for name in frame.columns]
    is_time = isinstance(frame.index, (pd.DatetimeIndex, pd.PeriodIndex))
    label = "time" if is_time and frame.index.name is None and "time" not in header else None
    written = {
        name: _as_written(frame[name], column, style)
        for name, column in style.cells.items()
        if name in frame.columns and len(column) == len(frame)
    }
    text = io.TextIOWrapper(file, encoding=style.encoding, newline="")
    text.write(style.above)
    frame = frame.copy(deep=False)
    for name, cells in written.items():
        frame[name] = cells
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


def _as_written(column: pd.Series[Any], cells: pa.ChunkedArray, style: TextStyle) -> Any:
    """(R,) the text of each cell that has not changed, the number of each that has."""
    before = _typed(cells, style.separator, style.grouping).reset_index(drop=True)
    is_grouped = style.grouping == "." and groups(pc.drop_null(without_missing(cells)), ".")
    has_dots = is_of(cells, DOT_NUMBER, ".") and not is_grouped
    decimal = "." if has_dots else style.decimal  # a column may have its own
    after = column.reset_index(drop=True)
    if after.dtype.kind not in "iuf":
        return column
    is_same = (before == after).fillna(False) | (before.isna() & after.isna())
    numbers = after.astype(object).where(after.notna(), None).to_numpy()
    written = cells.to_pandas().astype(object).to_numpy(copy=True)
    for row in np.flatnonzero(~is_same.to_numpy(dtype=bool)):
        number = numbers[row]
        written[row] = None if number is None else repr(number).replace(".", decimal)
    return written


def _is_worth_writing(index: pd.Index[Any]) -> bool:
    if any(name is not None for name in index.names):
        return True
    return not pd.api.types.is_integer_dtype(index.dtype)


def _split_above(raw: bytes) -> tuple[bytes, bytes]:
    """Lines above the header, and the rest.

    Empty lines are above, so are those with a # in front, unless it is the header's own, and
    `sep=;`, by which Excel tells the separator.
    """
    begin = 0
    while begin < len(raw):
        end = raw.find(b"\n", begin) + 1 or len(raw)
        line = raw[begin:end]
        next_end = raw.find(b"\n", end) + 1 or len(raw)
        if line.startswith(b"#") and _is_header(line[1:], raw[end:next_end].rstrip(b"\n")):
            sharp = len(line) - len(line[1:].lstrip())
            return raw[: begin + sharp], raw[begin + sharp :]
        if line.strip() and not line.startswith(b"#") and not _TOLD_SEPARATOR.fullmatch(line):
            break
        begin = end
    return raw[:begin], raw[begin:]


def _is_header(line: bytes, below: bytes) -> bool:
    """Whether a line names the columns of the line below, which has numbers."""
    told, values = line.decode("utf-8").strip(), below.decode("utf-8").rstrip("\r")
    sign = _separator(told, below)
    names, cells = (next(csv.reader([text], delimiter=sign), []) for text in (told, values))
    has_numbers = any(re.fullmatch(r"\s*[+-]?[\d.]+\s*", cell) for cell in cells)
    return has_numbers and len(names) == len(cells) > 1


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
        # What Windows calls ANSI has all letters of Latin-1, and others where that has none.
        for encoding in ("cp1252", "latin-1"):
            with contextlib.suppress(UnicodeDecodeError):
                return raw.decode(encoding).encode("utf-8"), encoding
    if raw.startswith(_MARK):
        return raw.removeprefix(_MARK), "utf-8-sig"
    return raw, "utf-8"


def _separator(line: str, body: bytes) -> str:
    """Tell the separator by which the header falls into the most columns, as do the rows below.

    Of two that do so equally well a comma is rather part of a name, and of numbers.
    """
    line = " ".join(line.split("\n"))  # a line break in a name is no end
    rows = [row.decode("utf-8", "replace").rstrip("\r") for row in body[:10_000].split(b"\n")[:5]]

    def columns(text: str, sign: str) -> int:
        return len(next(csv.reader([text], delimiter=sign), []))

    def rank(sign: str) -> tuple[bool, int]:
        count = columns(line, sign)
        fits = all(columns(row, sign) == count for row in rows[:-1] if row and '"' not in row)
        return fits and count > 1, count

    best = max(SEPARATORS, key=rank)
    return best if columns(line, best) > 1 else ","


def _column_names(header: list[str], path: Path) -> list[str]:
    """The names without spaces around them, and made up ones for columns without."""
    said = [name.strip() for name in header]
    repeated = sorted({name for name in said if name and said.count(name) > 1})
    if repeated:
        raise ValueError(f"{path} has several columns called {', '.join(repeated)}; rename them")
    names = []
    for position, name in enumerate(said):
        made_up, number = f"Unnamed: {position}", 0
        while not name and made_up in said:
            number += 1
            made_up = f"Unnamed: {position}.{number}"
        names.append(name or made_up)
    return names


def _typed(column: pa.ChunkedArray, separator: str, grouping: str) -> Any:
    """(R,) text as integers or floats where all of it is such, otherwise as it is.

    Parameters
    ----------
    separator : between cells; if it is no comma, a comma may be the decimal sign
    grouping : sign that may stand between groups of three digits
    """
    numbers = without_missing(column)
    if grouping and groups(pc.drop_null(numbers), grouping):
        numbers = pc.replace_substring(numbers, grouping, "")
    if separator != ",":
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
