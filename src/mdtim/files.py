"""Tables in files: CSV, compressed or not, and Parquet, read faithfully and written at once."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from mdtim.atomic import atomic_path

_SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
_COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
PARQUET = (".parquet", ".pq")
_DAMAGE = (pa.ArrowException, OSError, EOFError, zlib.error, lzma.LZMAError, csv.Error)
# Missing numbers as pandas reads them; in columns of text these are text like any other.
_MISSING = pa.array(
    ["", "#N/A", "#NA", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"]
)
_NULLABLE = {
    getattr(pa, name.lower())(): pd.api.types.pandas_dtype(name)
    for name in ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
}
_UNNAMED = re.compile(r"Unnamed: \d+")


def read_frame(path: str | os.PathLike[str]) -> pd.DataFrame:
    r"""Read a table from .csv, .tsv, .txt (also .gz, .bz2, .xz, .zst) or .parquet, .pq.

    Numbers of a text file are read exactly. Integers with missing cells become nullable Int64;
    digits with leading zeros, dates, true and false remain text as in the file.

    Raises
    ------
    ValueError
        If there is no such file, it is damaged or empty, or its suffix is unknown.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "table.csv"
    >>> _ = path.write_text("zip,count,level\n007,1,0.1\n008,,NA\n")
    >>> print(read_frame(path))
       zip  count  level
    0  007      1    0.1
    1  008   <NA>    NaN
    """
    path = Path(path).expanduser()
    table_suffixes(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file in it")
    if not path.exists():
        raise ValueError(f"there is no file {path}; check its name and folder")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty; expected a table with a header")
    with open(path, "rb") as file:
        return decode_frame(file, path)


def decode_frame(file: Any, path: str | os.PathLike[str]) -> pd.DataFrame:
    """Read a table from an open file of bytes; the path tells the format and is named in errors."""
    form, compression = table_suffixes(path)
    with readable(path):
        if form in PARQUET:
            frame = frame_of(pa.parquet.read_table(file, partitioning=None))
        else:
            with _unpacked(file, compression, "rb") as plain:
                raw = plain.read()
            frame = _parse(raw, form, Path(path))
    if frame.empty:
        raise ValueError(f"{path} holds a header but no rows; expected at least one")
    return frame


@contextmanager
def readable(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what readers say about a damaged file into one sentence that names it."""
    try:
        yield
    except MemoryError:
        raise  # Arrow's counts as one of its own errors, but nothing is wrong with the file
    except _DAMAGE as error:
        raise ValueError(
            f"{path} cannot be read, it may be damaged or cut short, or have lines above its "
            f"header; correct it ({error})"
        ) from error


def write_frame(frame: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write a table in the format of the suffix, whole or not at all.

    A time index or a named one becomes the first column of a text file, numbering does not.
    """
    path = Path(path).expanduser()
    table_suffixes(path)
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        encode_frame(frame, file, path)


def encode_frame(frame: pd.DataFrame, file: Any, path: str | os.PathLike[str]) -> None:
    """Write a table to an open file of bytes, in the format of the path's suffix."""
    form, compression = table_suffixes(path)
    if form in PARQUET:
        frame.to_parquet(file)
        return
    header = ["" if _UNNAMED.fullmatch(str(name)) else str(name) for name in frame.columns]
    has_index = _is_worth_writing(frame.index)
    is_time = isinstance(frame.index, (pd.DatetimeIndex, pd.PeriodIndex))
    label = "time" if is_time and frame.index.name is None and "time" not in header else None
    with _unpacked(file, compression, "wb") as packed:
        text = io.TextIOWrapper(packed, encoding="utf-8", newline="")
        frame.to_csv(
            text,
            sep=_SEPARATORS[form],
            header=header,
            index=has_index,
            index_label=label,
            lineterminator="\n",
        )
        text.flush()
        text.detach()  # who opened the file closes it


def unpack(path: Path, target: Path, max_bytes: int) -> None:
    """Copy a text file, decompressed where it is compressed, and stop when it grows too large.

    Raises
    ------
    ValueError
        If it holds more than `max_bytes` or is damaged.
    """
    _, compression = table_suffixes(path)
    try:
        with (
            open(path, "rb") as packed,
            _unpacked(packed, compression, "rb") as file,
            target.open("wb") as plain,
        ):
            left = max_bytes
            while part := file.read(min(2**20, left + 1)):
                left -= len(part)
                if left < 0:
                    raise ValueError(f"{path} unpacks to more than {max_bytes:,} bytes; split it")
                plain.write(part)
    except _DAMAGE as error:
        raise ValueError(
            f"{path} cannot be unpacked, it may be damaged or cut short ({error})"
        ) from error


def table_suffixes(path: str | os.PathLike[str]) -> tuple[str, str]:
    """Suffix of the format and suffix of the compression, "" where there is none.

    Raises
    ------
    ValueError
        If tables are not read from files of this kind.

    Examples
    --------
    >>> table_suffixes("a.b/Sensors.CSV.gz")
    ('.csv', '.gz')
    """
    path = Path(path)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in _COMPRESSIONS else ""
    form = suffixes[-1] if suffixes else ""
    if form in _SEPARATORS or (form in PARQUET and not compression):
        return form, compression
    raise ValueError(
        f"{path} ends in {form + compression or 'no suffix'!r}; expected one of "
        f"{', '.join((*_SEPARATORS, *PARQUET))}, text also with {', '.join(_COMPRESSIONS)}"
    )


@contextmanager
def _unpacked(file: Any, compression: str, mode: str) -> Iterator[Any]:
    """See through the compression of an open file of bytes."""
    if compression == ".zst":
        stream = pa.input_stream if mode == "rb" else pa.output_stream
        with stream(pa.PythonFile(file), compression="zstd") as plain:
            yield plain
    elif compression == ".gz":  # neither the temporary name nor the date get into the file
        with gzip.GzipFile("", mode, fileobj=file, mtime=0) as plain:
            yield plain
    elif compression:
        opener = bz2.open if compression == ".bz2" else lzma.open
        with opener(file, mode) as plain:
            yield plain
    else:
        yield file


def _is_worth_writing(index: pd.Index[Any]) -> bool:
    if any(name is not None for name in index.names):
        return True
    return not pd.api.types.is_integer_dtype(index.dtype)


def frame_of(table: pa.Table) -> pd.DataFrame:
    """Turn an Arrow table into a frame; integers with missing cells become nullable."""
    frame: pd.DataFrame = table.to_pandas()
    for name in frame.columns.intersection(table.column_names):
        column = table.column(name)
        if column.null_count and column.type in _NULLABLE and frame[name].dtype.kind == "f":
            frame[name] = column.to_pandas(types_mapper=_NULLABLE.get).array
    return frame


def _parse(raw: bytes, form: str, path: Path) -> pd.DataFrame:
    raw = _without_comments(_as_utf8(raw, path).lstrip(b"\r\n"))
    if not raw.strip():
        raise ValueError(f"{path} is empty; expected a table with a header")
    line = raw.partition(b"\n")[0].decode("utf-8").rstrip("\r")
    separator = "\t" if form == ".tsv" else _separator(line)
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
    return pd.DataFrame(
        {name: _typed(column, decimal_comma, grouped) for name, column in columns.items()}
    )


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


def _as_utf8(raw: bytes, path: Path) -> bytes:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        try:
            return raw.decode("utf-16").encode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is broken UTF-16 text; save it as UTF-8") from error
    if b"\0" in raw:
        raise ValueError(f"{path} holds binary data, expected text; check its suffix")
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1").encode("utf-8")
    return raw.removeprefix(b"\xef\xbb\xbf")


def _separator(line: str) -> str:
    """Tell the separator by which the header falls into the most columns."""
    return max(",;\t|", key=lambda sign: len(next(csv.reader([line], delimiter=sign))))


def _column_names(header: list[str]) -> list[str]:
    return [name or f"Unnamed: {position}" for position, name in enumerate(header)]


def _has_decimal_commas(column: pa.ChunkedArray) -> bool:
    """Whether all of a column's cells are numbers, and some of them have a comma."""
    cells = _without_missing(column)
    is_number = pc.all(pc.match_substring_regex(cells, r"^[+-]?[\d.]*(,\d+)?$")).as_py()
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
        numbers = pc.replace_substring_regex(numbers, r"^([+-]?\d*),(\d+)$", r"\1.\2")
    is_integer = pc.all(pc.match_substring_regex(numbers, r"^[+-]?\d+$")).as_py()
    try:
        if not is_integer:  # or None, if all are missing
            return pc.cast(numbers, pa.float64()).to_pandas()
        # Leading zeros mean a code, more digits than int64 holds mean one as well.
        if not pc.any(pc.match_substring_regex(numbers, r"^[+-]?0\d")).as_py():
            whole = pc.cast(pc.replace_substring_regex(numbers, r"^\+", ""), pa.int64())
            return whole.to_pandas(types_mapper=_NULLABLE.get if whole.null_count else None)
    except pa.ArrowInvalid:
        pass
    return column.to_pandas()
