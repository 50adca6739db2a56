"""Tables in files: text, compressed or not, and Parquet, read faithfully and written at once."""

from __future__ import annotations

import bz2
import csv
import gzip
import lzma
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet

from mdtim.atomic import atomic_path
from mdtim.tables.text_tables import NULLABLE, TextStyle, parse_text, write_text

_SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
_COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
PARQUET = (".parquet", ".pq")
_DAMAGE = (pa.ArrowException, OSError, EOFError, zlib.error, lzma.LZMAError, csv.Error)


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
    frame, _ = read_styled(path)
    return frame


def read_styled(path: str | os.PathLike[str]) -> tuple[pd.DataFrame, TextStyle | None]:
    """Read a table as :func:`read_frame` does, and the style of its text, if it is text."""
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


def decode_frame(
    file: Any, path: str | os.PathLike[str], *, has_decimal_commas: bool = False
) -> tuple[pd.DataFrame, TextStyle | None]:
    """Read a table from an open file of bytes, and the style of its text, if it is text.

    Parameters
    ----------
    path : tells the format and is named in errors
    has_decimal_commas : whether other text of the same making has them
    """
    style = None
    form, compression = table_suffixes(path)
    with readable(path):
        if form in PARQUET:
            frame = frame_of(pa.parquet.read_table(file, partitioning=None))
        else:
            with _unpacked(file, compression, "rb") as plain:
                raw = plain.read()
            separator = "\t" if form == ".tsv" else None
            frame, style = parse_text(
                raw, separator, Path(path), has_decimal_commas=has_decimal_commas
            )
            style = replace(style, suffix=form)
    if frame.empty:
        raise ValueError(f"{path} holds a header but no rows; expected at least one")
    return frame, style


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


@dataclass(frozen=True)
class ParquetSource:
    """What a Parquet file says beyond a frame of it."""

    schema: pa.Schema
    nested: Mapping[str, pa.ChunkedArray] = field(default_factory=dict)
    """Columns of lists, structs and maps, which pandas holds as something else."""


def parquet_source(
    path: str | os.PathLike[str], *, adds_rows: bool = False
) -> ParquetSource | None:
    """What to know of a Parquet file to write its table again; None of another file.

    Parameters
    ----------
    adds_rows : whether the table will have other rows, so that no column is as it was
    """
    if table_suffixes(path)[0] not in PARQUET:
        return None
    path = Path(path).expanduser()
    schema = pa.parquet.read_schema(path)
    names = [column.name for column in schema if pa.types.is_nested(column.type)]
    if adds_rows or not names:
        return ParquetSource(schema)
    nested = pa.parquet.read_table(path, columns=names, partitioning=None)
    return ParquetSource(schema, dict(zip(nested.column_names, nested.columns, strict=True)))


def write_frame(
    frame: pd.DataFrame,
    path: str | os.PathLike[str],
    style: TextStyle | None = None,
    source: ParquetSource | None = None,
) -> None:
    """Write a table in the format of the suffix, whole or not at all.

    A time index or a named one becomes the first column of a text file, numbering does not.

    Parameters
    ----------
    style : of the text that the table came from; None for UTF-8 with commas, or tabs by suffix.
        A file with another suffix than that one has the separator of its own.
    source : the Parquet file that the table came from; columns of a Parquet file keep its types
        where their cells fit them, and those of lists, structs and maps their cells.
    """
    path = Path(path).expanduser()
    table_suffixes(path)
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        encode_frame(frame, file, path, style, source)


def encode_frame(
    frame: pd.DataFrame,
    file: Any,
    path: str | os.PathLike[str],
    style: TextStyle | None = None,
    source: ParquetSource | None = None,
) -> None:
    """Write a table to an open file of bytes, as :func:`write_frame` does."""
    form, compression = table_suffixes(path)
    if form in PARQUET:
        pa.parquet.write_table(_arrow_table(frame, source or ParquetSource(pa.schema([]))), file)
        return
    if style is None:
        style = TextStyle(_SEPARATORS[form])
    elif style.suffix != form:  # another suffix announces another text
        style = replace(style, separator=_SEPARATORS[form], decimal=".", above="", cells={})
    with _unpacked(file, compression, "wb") as packed:
        write_text(frame, packed, style)


def _arrow_table(frame: pd.DataFrame, source: ParquetSource) -> pa.Table:
    """A table with the types and metadata of the one it comes from, where its cells fit them."""
    schema = source.schema
    kept = [name for name in frame.columns if len(source.nested.get(name, ())) == len(frame)]
    try:
        table = pa.Table.from_pandas(frame.drop(columns=kept))
    except pa.ArrowTypeError as error:
        raise ValueError(
            f"a column cannot be written to Parquet; leave it out ({error})"
        ) from error
    for position, name in enumerate(frame.columns):
        if name in kept:
            table = table.add_column(position, schema.field(name), source.nested[name])
    for position, column in enumerate(table.schema):
        before = schema.get_field_index(column.name)
        if before < 0 or column.name in kept:
            continue
        wanted = schema.field(before).with_nullable(True)
        with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            table = table.set_column(position, wanted, table.column(position).cast(wanted.type))
    # What pandas noted is of the frame as it is now.
    return table.replace_schema_metadata({**(schema.metadata or {}), **table.schema.metadata})


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


def frame_of(table: pa.Table) -> pd.DataFrame:
    """Turn an Arrow table into a frame; integers with missing cells become nullable."""
    frame: pd.DataFrame = table.to_pandas()
    for name in frame.columns.intersection(table.column_names):
        column = table.column(name)
        if column.null_count and column.type in NULLABLE and frame[name].dtype.kind == "f":
            frame[name] = column.to_pandas(types_mapper=NULLABLE.get).array
    return frame
