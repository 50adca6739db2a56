"""What a worker does with one part: look through it, or fill it."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from mdtim.batch.plan import PiecePlan
from mdtim.batch.runs import Runs
from mdtim.batch.source import Content, Part, Piece, Source, frame_schema
from mdtim.batch.target import Target
from mdtim.panel import Panel
from mdtim.tables.files import encode_frame
from mdtim.tables.grid import Spacing, Workdays
from mdtim.tables.table import Table, TableOptions


@dataclass(frozen=True)
class Reading:
    """How the parts of a data set are read; all of them alike."""

    source: Source
    options: TableOptions
    piece_rows: int
    schema: pa.Schema | None = None
    """Types that hold for all parts, once they are known."""
    has_decimal_commas: bool = False
    """Whether some part has them, so that dots group digits in all."""

    def read(self, piece: Piece) -> Content:
        """A piece with its time and id columns."""
        return self.source.read(
            piece,
            (self.options.time, self.options.id),
            self.schema,
            has_decimal_commas=self.has_decimal_commas,
        )

    def panel(self, piece: Piece) -> Panel:
        """The numbers of a piece."""
        return self.table(self.read(piece).frame, piece.part).panel

    def table(self, frame: pd.DataFrame, part: Part, *, is_scan: bool = False) -> Table:
        """Turn a piece into a table; a mistake in it is reported under the part's name.

        Parameters
        ----------
        is_scan : other parts may still tell which of several readings of its dates is right
        """
        try:
            table = Table.read(frame, self.options)
        except ValueError as error:
            raise ValueError(f"{part.name}: {error}") from error
        assert table.timeline is not None
        clock = table.timeline.clock
        if clock is None or clock.note is None or (is_scan and len(clock.date_orders) > 1):
            return table
        raise ValueError(f"{part.name}: {clock.note}")  # parts may be read in different ways

    def digest(self) -> str:
        """Checksum of all that the result of reading depends on, apart from the part."""
        said = (
            *(asdict(self.options), self.piece_rows, str(self.schema), dict(self.source.keys)),
            self.has_decimal_commas,
        )
        return hashlib.sha256(repr(said).encode()).hexdigest()


def shared_orders(found: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Orders of day, month and year in which all of several texts can be read."""
    first = found[0] if found else ()
    return tuple(order for order in first if all(order in other for other in found))


@dataclass(frozen=True, eq=False)
class PartScan:
    """What one look at a part tells."""

    part: Part
    checksum: str
    rows: int
    pieces: tuple[Piece, ...]
    schema: pa.Schema
    variates: tuple[str, ...]
    timed: bool
    spacings: tuple[Spacing | None, ...]
    """One for each piece, None where no two rows of a series tell it."""
    workdays: Workdays | None
    """If all rows lie from Monday to Friday at one time of day."""
    runs: Runs
    """Pieces are numbered from 0 within the part."""
    decimal: str | None
    """Decimal sign of its numbers, if it is text."""
    date_orders: tuple[str, ...]
    """Of day, month and year, in which its dates can be read, if they are text to be guessed at."""


@dataclass(frozen=True)
class Scanner:
    """Looks through a part."""

    reading: Reading

    def __call__(self, part: Part) -> PartScan:
        """Read the part once, piece by piece."""
        reading = self.reading
        if part.size == 0:
            raise ValueError(f"{part.name} is an empty file; remove it or write it again")
        pieces = reading.source.pieces(part, reading.piece_rows)
        runs, spacings, workdays, rows, times = [], [], [], 0, set()
        orders: list[tuple[str, ...]] = []
        schema: pa.Schema | None = None
        for number, piece in enumerate(pieces):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # said again when the part is filled
                content = reading.read(piece)
                table = reading.table(content.frame, part, is_scan=True)
            rows += len(content.frame)
            if schema is None:
                schema = self._schema(piece, content)
            runs.append(Runs.of(table, number))
            assert table.timeline is not None
            spacings.append(table.timeline.spacing)
            times.add(table.timeline.time)
            clock = table.timeline.clock
            workdays.append(None if clock is None else Workdays.of(clock))
            if clock is not None and clock.date_orders:
                orders.append(clock.date_orders)
        if len(times) > 1:
            raise ValueError(
                f"{part.name} has a column that tells the time of some of its rows and is mostly "
                "empty in others; name the time column with time=..., or fill it in"
            )
        return PartScan(
            part,
            reading.source.checksum(part),
            rows,
            pieces,
            schema,
            table.panel.variates,
            times != {None},
            tuple(spacings),
            Workdays.join(workdays),
            Runs.join(runs),
            None if content.style is None else content.style.decimal,
            shared_orders(orders),
        )

    def _schema(self, piece: Piece, content: Content) -> pa.Schema:
        if self.reading.schema is not None:
            return self.reading.schema
        if piece.part.is_parquet:
            return self.reading.source.schema(piece.part)
        return frame_schema(content.frame.drop(columns=list(content.added)))


@dataclass(frozen=True, eq=False)
class FillTask:
    """A part to fill."""

    part: Part
    key: str
    """Checksum of all that the result depends on."""
    checksum: str
    """Of the part itself."""
    pieces: tuple[tuple[int, PiecePlan], ...]
    """Numbers of the part's pieces, with their plans."""
    around: dict[int, Piece]
    """All pieces that are read, the part's own and those around, by their numbers."""


@dataclass(frozen=True)
class Filler:
    """Fills a part; holds the model, which is loaded once in each process."""

    reading: Reading
    target: Target
    model: dict[str, bytes]
    """Files of the model's folder, so that workers elsewhere need no access to it."""
    levels: tuple[float, ...]
    device: str

    @cached_property
    def _imputer(self) -> Any:
        from mdtim.imputer import MDTIMImputer

        with tempfile.TemporaryDirectory() as folder:
            for name, content in self.model.items():
                (Path(folder) / name).write_bytes(content)
            return MDTIMImputer.load(folder, device=self.device)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __call__(self, task: FillTask) -> dict[str, Any]:
        """Fill the part, write it whole, then note it in the manifest."""
        import torch

        # One thread each: many workers with many threads would be in each other's way.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return self._do(task)
        finally:
            torch.set_num_threads(threads)

    def _do(self, task: FillTask) -> dict[str, Any]:
        from mdtim.runtime import process_memory_gb

        model = self._imputer.model_
        began, cpu_began = time.monotonic(), time.process_time()
        counts = {"rows": 0, "missing": 0, "filled": 0}
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with self.target.writing(task.part.name) as file:
                writer: pq.ParquetWriter | None = None
                for number, plan in task.pieces:
                    content = self.reading.read(task.around[number])
                    arrow, frame = self._fill(model, task, content, plan, counts)
                    if arrow is None:
                        encode_frame(frame, file, task.part.name, content.style)
                        continue
                    writer = writer or pq.ParquetWriter(file, arrow.schema)
                    writer.write_table(arrow.cast(writer.schema))
                if writer is not None:
                    writer.close()
        record = {
            "part": task.part.name,
            "key": task.key,
            "checksum": task.checksum,
            **counts,
            "seconds": round(time.monotonic() - began, 3),
            "cpu_seconds": round(time.process_time() - cpu_began, 3),
            "peak_memory_gb": round(process_memory_gb(), 3),
            "process": os.getpid(),
            "notes": sorted({str(note.message) for note in said}),
        }
        self.target.note(task.part.name, record)
        return record

    def _fill(
        self, model: Any, task: FillTask, content: Content, plan: PiecePlan, counts: dict[str, int]
    ) -> tuple[pa.Table | None, pd.DataFrame]:
        """One piece, filled: as an Arrow table if it came as one, and as a frame."""
        from mdtim.batch.cutting import fill_piece

        frame, arrow = content.frame, content.arrow
        table = self.reading.table(frame, task.part)
        cells = fill_piece(
            model,
            table.panel,
            plan,
            lambda other: self.reading.panel(task.around[other]),
            keep_distribution=bool(self.levels),
        )
        values = table.panel.values.copy()
        values[cells.rows, cells.variates] = cells.filled
        filled = table.restore(values)
        if self.levels:
            assert cells.distribution is not None
            extra = {}
            for level in self.levels:
                bound = table.panel.values.copy()
                bound[cells.rows, cells.variates] = cells.distribution.quantile(level).numpy()
                extra[f"q{level:g}"] = bound
            filled = table.with_columns(filled, extra)
        missing = np.isnan(table.panel.values)
        counts["rows"] += len(frame)
        counts["missing"] += table.count(missing)
        counts["filled"] += table.count(missing & ~np.isnan(values))
        if arrow is not None:
            return _replaced(arrow, filled, table.panel.variates, set(frame.columns)), filled
        return None, filled.drop(columns=list(content.added))


def _replaced(
    arrow: pa.Table, filled: pd.DataFrame, variates: tuple[str, ...], known: set[Any]
) -> pa.Table:
    """Put filled columns into an Arrow table and new ones behind; the rest stays as it is."""
    for name in filled.columns:
        if str(name) in variates:
            position = arrow.schema.get_field_index(str(name))
            field = arrow.schema.field(position)
            cells = pa.array(filled[name], from_pandas=True).cast(field.type)
            arrow = arrow.set_column(position, field, cells)
        elif name not in known:
            arrow = arrow.append_column(str(name), pa.array(filled[name], from_pandas=True))
    return arrow
