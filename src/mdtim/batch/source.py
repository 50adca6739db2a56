"""Where the parts of a data set lie, and how one is read.

A part is a file; a piece is a part, or a run of rows of a Parquet part that is too long to be held
at once. Both are read with the columns that the folder names of a partitioned data set stand for.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from mdtim.tables.files import PARQUET, decode_frame, frame_of, readable, table_suffixes
from mdtim.tables.text_tables import TextStyle

HIDDEN = ("_", ".")
"""Files and folders that begin so are no parts, as Spark and Hive have it."""


@dataclass(frozen=True)
class Place:
    """A folder, or a file, by its address; opened anew in each process."""

    address: str

    @cached_property
    def _opened(self) -> tuple[pa.fs.FileSystem, str]:
        if "://" not in self.address:
            path = Path(self.address).expanduser().resolve()
            return pa.fs.LocalFileSystem(), path.as_posix()
        try:
            try:
                system, path = pa.fs.FileSystem.from_uri(self.address)
            except pa.ArrowInvalid:  # an address that pyarrow does not know, but fsspec may
                import fsspec

                inner, path = fsspec.core.url_to_fs(self.address)
                system = pa.fs.PyFileSystem(pa.fs.FSSpecHandler(inner))
        except (ValueError, ImportError, OSError) as error:
            raise ValueError(f"the address {self} cannot be opened: {error}") from error
        return system, path.rstrip("/")

    @property
    def system(self) -> pa.fs.FileSystem:
        """File system of the address."""
        return self._opened[0]

    @property
    def root(self) -> str:
        """Path of the address in its file system."""
        return self._opened[1]

    def path(self, name: str = "") -> str:
        """Path of something inside, in the file system."""
        return f"{self.root}/{name}" if name else self.root

    def info(self, name: str = "") -> pa.fs.FileInfo:
        """What there is under a name; its type says whether there is anything."""
        try:
            return self.system.get_file_info(self.path(name))
        except OSError as error:
            raise ValueError(
                f"{self} cannot be reached ({error}); check address, network and rights"
            ) from error

    def exists(self, name: str = "") -> bool:
        """Whether there is anything under a name."""
        return bool(self.info(name).type != pa.fs.FileType.NotFound)

    def read(self, name: str) -> bytes:
        """Content of a file."""
        with self.system.open_input_stream(self.path(name)) as file:
            return bytes(file.read())

    def __str__(self) -> str:
        """The address as it may be shown: without keys and passwords."""
        return re.sub(r"(?<=://)[^/@]*@", "", self.address.partition("?")[0])

    def __getstate__(self) -> dict[str, str]:
        return {"address": self.address}


@dataclass(frozen=True)
class Part:
    """One file of a data set."""

    name: str
    """Path below the source, with slashes."""
    size: int
    modified: int
    """Nanoseconds since 1970, 0 where the file system does not know."""

    @property
    def is_parquet(self) -> bool:
        """Whether the part is Parquet, otherwise it is text."""
        return table_suffixes(self.name)[0] in PARQUET


@dataclass(frozen=True)
class Piece:
    """Rows of a part that are held at once."""

    part: Part
    begin: int = 0
    rows: int | None = None
    """None: all of the part."""


class Content(NamedTuple):
    """What a piece holds."""

    frame: pd.DataFrame
    arrow: pa.Table | None
    """The same as it came, if the part is Parquet; without the added columns."""
    added: tuple[str, ...]
    """Columns of the frame that the names of folders stand for."""
    style: TextStyle | None
    """Of its text, if the part is text."""


@dataclass(frozen=True)
class Source:
    """The parts of a data set and the columns that their folders name."""

    place: Place
    parts: tuple[Part, ...]
    """Sorted by name."""
    keys: Mapping[str, bool] = field(default_factory=dict)
    """Columns of a hive-partitioned data set, and whether they are whole numbers."""
    is_file: bool = False
    """Whether a single file was named; the place is its folder."""

    @classmethod
    def find(cls, address: str) -> Source:
        """List the parts under an address.

        Raises
        ------
        ValueError
            If there is nothing, nothing but other files, or a mixture of formats.
        """
        place = Place(address)
        info = place.info()
        if info.type == pa.fs.FileType.NotFound:
            raise ValueError(f"there is no folder or file {place}; check the address")
        if info.type == pa.fs.FileType.File:
            folder, _, name = place.root.rpartition("/")
            above = address.rstrip("/")[: -len(name)].rstrip("/") or folder or "/"
            place, found = Place(above), [_part(info, name)]
        else:
            selector = pa.fs.FileSelector(place.root, recursive=True)
            found = []
            for entry in place.system.get_file_info(selector):
                name = PurePosixPath(entry.path).relative_to(place.root).as_posix()
                if entry.type == pa.fs.FileType.File and not _is_hidden(name):
                    found.append(_part(entry, name))
        if not found:
            raise ValueError(f"{place} holds no files; expected Parquet or CSV parts")
        parts = tuple(sorted(found, key=lambda part: part.name))
        for part in parts[1:]:
            if part.is_parquet != parts[0].is_parquet:
                raise ValueError(
                    f"{place} mixes Parquet and text, such as {parts[0].name} and {part.name}; "
                    "keep one format in a folder"
                )
        return cls(place, parts, _folder_keys(parts), info.type == pa.fs.FileType.File)

    def checksum(self, part: Part) -> str:
        """SHA-256 of a part."""
        digest = hashlib.sha256()
        with self.place.system.open_input_stream(self.place.path(part.name)) as file:
            while block := file.read(2**22):
                digest.update(block)
        return digest.hexdigest()

    def pieces(self, part: Part, piece_rows: int) -> tuple[Piece, ...]:
        """Cut a Parquet part into pieces of at most so many rows; text is one piece."""
        if not part.is_parquet:
            return (Piece(part),)
        with readable(part.name), self._open(part) as file:
            total = pq.ParquetFile(file).metadata.num_rows
        if not total:
            raise ValueError(f"{part.name} holds no rows; remove it or write it again")
        count = -(-total // piece_rows)
        edges = np.linspace(0, total, count + 1).round().astype(int).tolist()
        return tuple(Piece(part, a, b - a) for a, b in pairwise(edges))

    def schema(self, part: Part) -> pa.Schema:
        """Names and types of a Parquet part."""
        with readable(part.name), self._open(part) as file:
            return pq.read_schema(file).remove_metadata()

    def _read_arrow(self, piece: Piece, schema: pa.Schema | None = None) -> pa.Table:
        """Read a piece of a Parquet part; a column of no type takes that of the other parts."""
        with readable(piece.part.name), self._open(piece.part) as file:
            parquet = pq.ParquetFile(file)
            table = _rows(parquet, piece)
        for position, kind in enumerate(table.schema.types):
            if schema is not None and pa.types.is_null(kind):
                wanted = schema.field(table.schema.names[position])
                table = table.set_column(position, wanted, table.column(position).cast(wanted.type))
        return table

    def read(
        self,
        piece: Piece,
        wanted: tuple[str | None, ...],
        schema: pa.Schema | None = None,
        *,
        has_decimal_commas: bool = False,
    ) -> Content:
        """Read a piece.

        Parameters
        ----------
        wanted : names of columns that the frame may take from the names of the folders
        schema : types that hold for all parts
        has_decimal_commas : whether other parts have them
        """
        arrow, style = None, None
        if piece.part.is_parquet:
            arrow = self._read_arrow(piece, schema)
            frame = frame_of(arrow)
        else:
            with self._open(piece.part) as file:
                frame, style = decode_frame(
                    file, piece.part.name, has_decimal_commas=has_decimal_commas
                )
            assert style is not None
            if schema is not None:
                frame = _typed(frame, schema, style)
        keys = self._keys(frame, piece.part, wanted)
        return Content(frame.assign(**keys), arrow, tuple(keys), style)

    def _keys(
        self, frame: pd.DataFrame, part: Part, wanted: tuple[str | None, ...]
    ) -> dict[str, int | str]:
        """Values of the wanted columns that the part's folders name and the frame has not."""
        names = [name for name in self.keys if name in wanted and name not in frame.columns]
        found = _folder_values(part.name)
        missing = [name for name in names if name not in found]
        if missing:
            raise ValueError(
                f"{part.name} lies in no folder that names {missing[0]}, as other parts do"
            )
        return {name: int(found[name]) if self.keys[name] else found[name] for name in names}

    def _open(self, part: Part) -> Any:
        return self.place.system.open_input_file(self.place.path(part.name))


def frame_schema(frame: pd.DataFrame) -> pa.Schema:
    """Types of a frame that was read from text: integers, floats, text, or nothing at all."""
    fields = []
    for name, column in frame.items():
        if column.isna().all():
            kind = pa.null()
        elif column.dtype.kind in "iu":
            kind = pa.int64()
        else:
            kind = pa.float64() if column.dtype.kind == "f" else pa.string()
        fields.append((str(name), kind))
    return pa.schema(fields)


def _part(info: pa.fs.FileInfo, name: str) -> Part:
    table_suffixes(name)
    return Part(name, info.size or 0, info.mtime_ns or 0)


def _is_hidden(name: str) -> bool:
    return any(piece.startswith(HIDDEN) for piece in name.split("/"))


def _folder_values(name: str) -> dict[str, str]:
    pairs = (unquote(piece).partition("=") for piece in name.split("/")[:-1])
    return {key: value for key, sign, value in pairs if sign}


def _folder_keys(parts: tuple[Part, ...]) -> dict[str, bool]:
    """Columns that folders name, and whether all of their values are whole numbers."""
    keys: dict[str, bool] = {}
    for part in parts:
        for key, value in _folder_values(part.name).items():
            keys[key] = keys.get(key, True) and value.isdecimal() and str(int(value)) == value
    return keys


def _rows(parquet: pq.ParquetFile, piece: Piece) -> pa.Table:
    if piece.rows is None:
        return parquet.read()
    sizes = [parquet.metadata.row_group(g).num_rows for g in range(parquet.num_row_groups)]
    ends = np.cumsum(sizes)
    first = int(np.searchsorted(ends, piece.begin, side="right"))
    last = int(np.searchsorted(ends, piece.begin + piece.rows))
    groups = parquet.read_row_groups(list(range(first, last + 1)))
    return groups.slice(piece.begin - (int(ends[first]) - sizes[first]), piece.rows)


def _typed(frame: pd.DataFrame, schema: pa.Schema, style: TextStyle) -> pd.DataFrame:
    """Give the columns of one text part the types that hold for all."""
    columns: dict[str, Any] = {}
    for name, column in frame.items():
        kind = schema.field(str(name)).type
        if pa.types.is_floating(kind) and column.dtype.kind != "f":
            columns[str(name)] = column.astype("Float64").to_numpy(dtype=float, na_value=np.nan)
        elif pa.types.is_integer(kind) and column.dtype.kind == "f":
            columns[str(name)] = column.astype("Int64")
        elif pa.types.is_string(kind) and column.dtype.kind in "fiu":
            # Words that mean missing among numbers are text here, as they are in the other parts.
            columns[str(name)] = style.cells[str(name)].to_pandas().to_numpy(object)
    return frame.assign(**columns)
