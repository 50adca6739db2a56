"""From a look at every part to one reading of the whole data set: types, spacing, runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from mdtim.batch.runs import Runs
from mdtim.batch.source import Part, Piece
from mdtim.batch.work import PartScan, Reading, shared_orders
from mdtim.tables.grid import DAY, Spacing, Workdays

Look = Callable[[Reading, Sequence[Part]], Iterator[PartScan]]
"""Looks through parts, and leaves out those that cannot be read."""


class NothingReadable(Exception):
    """Not one part could be read; the look has noted why."""


@dataclass(frozen=True, eq=False)
class Survey:
    """A data set as planning sees it."""

    reading: Reading
    """With the types and the spacing that hold for all parts."""
    scans: tuple[PartScan, ...]
    """Of the parts that can be read, sorted by name."""
    pieces: tuple[Piece, ...]
    """All pieces; runs refer to them by number."""
    first: dict[str, int]
    """Number of each part's first piece."""
    runs: Runs
    timed: bool
    variates: tuple[str, ...]

    @property
    def spacing(self) -> Spacing:
        """Spacing of all parts; rows, where there are no times."""
        return self.reading.options.spacing or Spacing("rows", 1)


def survey(reading: Reading, look: Look) -> Survey:
    """Look through all parts, and again through those that were read otherwise than the rest.

    Raises
    ------
    ValueError
        If parts have other columns or types than the rest.
    NothingReadable
    """
    scans = {scan.part.name: scan for scan in look(reading, reading.source.parts)}
    if not scans:
        raise NothingReadable
    if any(scan.decimal == "," for scan in scans.values()):
        # A dot is between decimals in a part without commas, and between thousands here.
        reading = replace(reading, has_decimal_commas=True)
        alone = [scan.part for scan in scans.values() if scan.decimal == "."]
        scans = {name: scan for name, scan in scans.items() if scan.part not in alone}
        scans |= {scan.part.name: scan for scan in look(reading, alone)}
    reading, scans = _with_one_date_order(reading, scans, look)
    schema = _one_schema([scans[name] for name in sorted(scans)])
    spacing = _one_spacing(list(scans.values()))
    final = replace(reading, schema=schema, options=replace(reading.options, spacing=spacing))
    again = [
        scan.part
        for scan in scans.values()
        if scan.schema != schema or any(found != spacing for found in scan.spacings)
    ]
    for part in again:
        del scans[part.name]
    scans |= {scan.part.name: scan for scan in look(final, again)}
    if not scans:
        raise NothingReadable
    return _joined(final, tuple(scans[name] for name in sorted(scans)))


def _with_one_date_order(
    reading: Reading, scans: dict[str, PartScan], look: Look
) -> tuple[Reading, dict[str, PartScan]]:
    """Let parts with a 13th day tell those without whether the day or the month comes first."""
    unclear = [scan for scan in scans.values() if len(scan.date_orders) > 1]
    if not unclear or len(scans) == 1:
        return reading, scans
    possible = {order for scan in unclear for order in scan.date_orders}
    shared = shared_orders(
        [scan.date_orders for scan in scans.values() if possible & set(scan.date_orders)]
    )
    if len(shared) != 1:
        others = "no other part tells which" if shared else "other parts do not agree"
        raise ValueError(
            f"the dates of {unclear[0].part.name} can be read in two ways, and {others}; write "
            "dates as 2020-01-31"
        )
    reading = replace(reading, options=replace(reading.options, date_orders=shared))
    again = look(reading, [scan.part for scan in unclear])
    kept = {name: scan for name, scan in scans.items() if scan not in unclear}
    return reading, kept | {scan.part.name: scan for scan in again}


def _joined(reading: Reading, scans: tuple[PartScan, ...]) -> Survey:
    for scan in scans[1:]:
        if scan.timed != scans[0].timed:
            timed, other = (scan, scans[0]) if scan.timed else (scans[0], scan)
            raise ValueError(
                f"{timed.part.name} has a column that tells the time of its rows, but "
                f"{other.part.name} has none; name it with time=..., or mend the parts"
            )
        if scan.variates != scans[0].variates:
            raise ValueError(
                f"{scan.part.name} would be filled in {', '.join(scan.variates)}, but "
                f"{scans[0].part.name} in {', '.join(scans[0].variates)}; name the columns to fill"
            )
    counts = [len(scan.pieces) for scan in scans]
    starts = np.append(0, np.cumsum(counts)).tolist()
    runs = [
        replace(scan.runs, pieces=scan.runs.pieces + start)
        for scan, start in zip(scans, starts[:-1], strict=True)
    ]
    return Survey(
        reading,
        scans,
        tuple(piece for scan in scans for piece in scan.pieces),
        {scan.part.name: start for scan, start in zip(scans, starts[:-1], strict=True)},
        Runs.join(runs),
        scans[0].timed,
        scans[0].variates,
    )


def _one_schema(scans: Sequence[PartScan]) -> pa.Schema:
    """Types that hold for all parts; text says less about its types than Parquet does."""
    first = scans[0]
    options = "default" if first.part.is_parquet else "permissive"
    schema = first.schema
    for scan in scans[1:]:
        if set(scan.schema.names) != set(schema.names):
            odd = sorted(set(scan.schema.names) ^ set(schema.names))
            raise ValueError(
                f"{scan.part.name} and {first.part.name} differ in their columns "
                f"({', '.join(odd)}); all parts must have the same"
            )
        try:
            schema = pa.unify_schemas([schema, scan.schema], promote_options=options)
        except (pa.ArrowTypeError, pa.ArrowInvalid):
            name = next(
                field.name
                for field in scan.schema
                if not _agree(field.type, schema.field(field.name).type, options)
            )
            raise ValueError(
                f"column {name!r} is {scan.schema.field(name).type} in {scan.part.name} but "
                f"{schema.field(name).type} in the parts before; all parts must have the same types"
            ) from None
    return schema


def _agree(one: pa.DataType, two: pa.DataType, options: str) -> bool:
    try:
        schemas = [pa.schema([("x", kind)]) for kind in (one, two)]
        pa.unify_schemas(schemas, promote_options=options)
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return False
    return True


def _one_spacing(scans: Sequence[PartScan]) -> Spacing | None:
    """The spacing of most pieces; the smaller of two that are equally common.

    Of days a few alone do not tell whether they are of 24 hours, of local time, or without
    weekends, but all together do.
    """
    found = Counter(spacing for scan in scans for spacing in scan.spacings if spacing is not None)
    if not found:
        return Spacing("rows", 1) if any(scan.timed for scan in scans) else None
    weekdays, utc_days = Spacing("weekdays", 1), Spacing("utc", DAY)
    found[utc_days] += found.pop(weekdays, 0)
    for spacing in list(found):
        if spacing.reading == "local":  # nobody says so who could have said UTC
            found[spacing] += found.pop(Spacing("utc", spacing.size), 0)
    best = max(found, key=lambda spacing: (found[spacing], -spacing.size))
    workdays = Workdays.join([scan.workdays for scan in scans])
    daily = best in (utc_days, Spacing("local", DAY))
    return weekdays if daily and workdays is not None and workdays.tell else best
