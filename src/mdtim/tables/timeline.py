"""Order in time: which series a row belongs to, and how many steps lie between two rows.

Rows are counted from 0 in every message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mdtim.panel import BoolArray, IntArray
from mdtim.tables.clock import (
    Clock,
    counts_time,
    is_mostly_time,
    is_number,
    is_stamped,
    is_time_of_day,
    is_unix_time,
    looks_like_time,
    read_clock,
    reads_as_time,
    write_times,
)
from mdtim.tables.grid import Spacing, given_grid, infer_grid

_PARTS = ("year", "quarter", "month", "week", "day", "hour", "minute")
_USUAL_NAMES = (
    *("time", "timestamp", "datetime", "date_time", "date", "ds", "time_hour"),
    *("zeit", "zeitstempel", "datum", "fecha", "horodatage", "tijd", "tijdstip"),
)


class Field(NamedTuple):
    """A column of a frame, or a level of its index."""

    position: int
    is_level: bool = False

    def of(self, frame: pd.DataFrame) -> pd.Series[Any]:
        """(R,) what the field holds."""
        if self.is_level:
            return pd.Series(frame.index.get_level_values(self.position))
        return frame.iloc[:, self.position]

    def label(self, frame: pd.DataFrame) -> str:
        """How messages call the field."""
        if self.is_level:
            name = frame.index.names[self.position]
            return "the index" if name is None else f"the index {name!r}"
        return f"column {frame.columns[self.position]!r}"


@dataclass(frozen=True, eq=False)
class Timeline:
    """Where R rows of a table lie among N equally spaced rows of S series."""

    order: IntArray
    """(R,) rows of the table by series, then by time."""
    steps: IntArray
    """(R,) rows from each of these to the next: 1, and one more for each skipped step."""
    offsets: IntArray
    """(S + 1,) series `s` is rows `offsets[s]:offsets[s + 1]` of the N."""
    names: tuple[Any, ...] = ()
    """S values of the id column, in order of first appearance; empty without one."""
    time: Field | None = None
    id: Field | None = None
    clock: Clock | None = None
    ticks: IntArray | None = None
    """(N,) nanoseconds since 1970 in UTC where the table has timestamps."""
    step_seconds: float | None = None
    notes: tuple[str, ...] = ()
    """What the user should know about how the times were read."""
    spacing: Spacing | None = None
    """What the steps were counted by, where the times were measured."""
    marks: NDArray[Any] | None = None
    """(R,) times in the reading of the spacing, in the order of `order`."""

    @property
    def num_rows(self) -> int:
        """N, the skipped steps included."""
        return int(self.offsets[-1])

    @property
    def places(self) -> IntArray:
        """(R,) which of the N rows each row of the table is."""
        places = np.empty_like(self.order)
        places[self.order] = np.cumsum(self.steps) - self.steps
        return places

    @property
    def wall_times(self) -> NDArray[np.datetime64] | None:
        """(N,) times as clocks showed them where the table has timestamps."""
        if self.ticks is None:
            return None
        times = pd.DatetimeIndex(self.ticks.view("M8[ns]"))
        zone = None if self.clock is None or self.clock.stamps is None else self.clock.stamps.tz
        if zone is not None:
            times = times.tz_localize("UTC").tz_convert(zone).tz_localize(None)
        return times.to_numpy()

    @property
    def origins(self) -> IntArray:
        """(N,) row of the table at or last before each of the N rows."""
        return np.repeat(self.order, self.steps)

    @property
    def inserted(self) -> BoolArray:
        """(N,) True for the skipped steps, which no row of the table stands for."""
        inserted = np.ones(self.num_rows, dtype=bool)
        inserted[np.cumsum(self.steps) - self.steps] = False
        return inserted


def read_timeline(
    frame: pd.DataFrame,
    time: str | None = None,
    id: str | None = None,
    freq: str | None = None,
    spacing: Spacing | None = None,
    date_orders: tuple[str, ...] = (),
) -> Timeline:
    """Find the series and the times of a frame and lay its rows out on a regular grid.

    Parameters
    ----------
    frame : (R, C)
    time, id : names of columns or index levels; the time is found by itself where not named
    freq : pandas offset alias of the grid; inferred where not given
    spacing, date_orders : of the data set the frame is a part of, where known

    Examples
    --------
    >>> frame = pd.DataFrame({"date": ["2020-01-04", "2020-01-01", "2020-01-02"]})
    >>> timeline = read_timeline(frame)
    >>> timeline.places, timeline.num_rows, timeline.step_seconds
    (array([3, 0, 1]), 4, 86400.0)
    """
    id_field = None if id is None else _named(frame, id, "id")
    time_field = _find_time(frame, id_field) if time is None else _named(frame, time, "time")
    if id_field is not None and id_field == time_field:
        raise ValueError(f"time and id both name {id!r}; name two different columns")
    codes, names = _series_codes(frame, id_field)
    if time_field is None:
        if freq is not None:
            raise ValueError(
                "freq was given, but the table has no time; name the time column with time=..."
            )
        order = np.argsort(codes, kind="stable")
        offsets = np.append(0, np.cumsum(np.bincount(codes)))
        return Timeline(
            order,
            np.ones_like(order),
            offsets,
            names,
            id=id_field,
            notes=_not_taken_for_time(frame, id_field),
        )
    clock = read_clock(time_field.of(frame), time_field.label(frame), date_orders)
    order = _time_order(clock.ticks, codes)
    joined = codes[order][1:] == codes[order][:-1]
    distances = np.diff(clock.ticks[order])
    if (distances[joined] < 0).any():  # sorted times can only go back by an overflow
        raise ValueError(
            f"{time_field.label(frame)} has neighbours more than 292 years apart; correct them"
        )
    repeated = np.flatnonzero(joined & (distances == 0))
    if repeated.size:
        raise ValueError(_repeated_message(frame, time_field, id_field, clock, order[repeated]))
    if freq is None:
        grid = infer_grid(clock, order, joined, time_field.label(frame), spacing)
    else:
        grid = given_grid(clock, order, joined, time_field.label(frame), freq)
    starts = np.cumsum(grid.steps) - grid.steps
    offsets = np.append(starts[np.append(True, ~joined)], grid.steps.sum())
    notes = tuple(note for note in (clock.note, grid.note) if note)
    return Timeline(
        order,
        grid.steps,
        offsets,
        names,
        time_field,
        id_field,
        clock,
        grid.ticks,
        grid.seconds,
        notes,
        grid.spacing,
        grid.marks,
    )


def expand(frame: pd.DataFrame, timeline: Timeline) -> pd.DataFrame:
    """Put a frame on its grid: (N, C), sorted, with a row for each skipped step.

    Inserted rows know their time and id; the rest is missing. Integers and booleans become
    nullable where rows were inserted.
    """
    source = np.where(timeline.inserted, -1, timeline.origins)

    def expanded(field: Field) -> Any:
        series = field.of(frame)
        if field == timeline.id:
            return series.take(timeline.origins).array
        if field != timeline.time:
            return _take(series, source)
        assert timeline.clock is not None
        assert timeline.ticks is not None
        new = timeline.ticks[timeline.inserted]
        cells = write_times(new, series, timeline.clock, field.label(frame))
        is_category = isinstance(series.dtype, pd.CategoricalDtype)
        both = pd.concat([series, pd.Series(cells, dtype=cells.dtype)], ignore_index=True)
        both = both.astype("category" if is_category else series.dtype)
        rows = source.copy()
        rows[timeline.inserted] = len(series) + np.arange(new.size)
        return both.take(rows).array

    levels = range(frame.index.nlevels)
    index: pd.Index[Any]
    if isinstance(frame.index, pd.RangeIndex) and frame.index.name is None:
        index = pd.RangeIndex(timeline.num_rows)
    elif isinstance(frame.index, pd.MultiIndex):
        arrays = [expanded(Field(level, True)) for level in levels]
        index = pd.MultiIndex.from_arrays(arrays, names=frame.index.names)
    else:
        index = pd.Index(expanded(Field(0, True)), name=frame.index.name)
    columns = {}
    for position in range(frame.shape[1]):
        cells = expanded(Field(position))
        # The type is given lest objects be taken for what they hold.
        columns[position] = pd.Series(cells, index=index, dtype=cells.dtype)
    result = pd.DataFrame(columns, index=index)
    result.columns = frame.columns
    result.attrs = dict(frame.attrs)
    return result


def _take(series: pd.Series[Any], source: IntArray) -> Any:
    """Take (N,) cells; missing where the source is -1, without a detour of integers by floats."""
    dtype = series.dtype
    if isinstance(dtype, np.dtype) and (source < 0).any():
        if dtype.kind in "iu":
            nullable = f"{'U' * (dtype.kind == 'u')}Int{8 * dtype.itemsize}"
            series = series.astype(pd.api.types.pandas_dtype(nullable))
        elif dtype.kind == "b":
            series = series.astype("boolean")
    return pd.api.extensions.take(series.array, source, allow_fill=True)


def _named(frame: pd.DataFrame, name: str, option: str) -> Field:
    columns = [str(label) for label in frame.columns]
    if str(name) in columns:
        return Field(columns.index(str(name)))
    if name in frame.index.names:
        return Field(frame.index.names.index(name), is_level=True)
    raise ValueError(f"{option}={name!r} names no column; the columns are {', '.join(columns)}")


def _find_time(frame: pd.DataFrame, id_field: Field | None) -> Field | None:
    levels = [Field(level, True) for level in range(frame.index.nlevels)]
    columns = [Field(position) for position in range(frame.shape[1])]
    columns = [field for field in columns if not _is_aside(frame, field)]
    found = [field for field in levels if field != id_field and is_stamped(field.of(frame))]
    if not found:
        found = [field for field in columns if field != id_field and is_stamped(field.of(frame))]
    for fields in (levels, columns):
        if found:
            break
        for field in fields:
            series = field.of(frame)
            # A bad cell far below in a column called time is an error to report, not a reason
            # to take the column for something else.
            if (
                field != id_field
                and looks_like_time(series)
                and (_is_usual(frame, field) or reads_as_time(series))
            ):
                found.append(field)
    for fields in (levels, columns):
        if not found:
            usual = [field for field in fields if field != id_field and _is_usual(frame, field)]
            found = [
                field
                for field in usual
                if counts_time(field.of(frame)) or reads_as_time(field.of(frame))
            ]
    if len(found) < 2:
        return found[0] if found else None
    found.sort(key=lambda field: _rank(frame, field))
    if _is_usual(frame, found[0]):
        return found[0]
    labels = " and ".join(field.label(frame) for field in found)
    raise ValueError(f"{labels} hold timestamps; name the one that orders the rows with time=...")


def _not_taken_for_time(frame: pd.DataFrame, id_field: Field | None) -> tuple[str, ...]:
    """Notes on columns that tell no time though their names, or most of their cells, say so."""
    columns = [Field(position) for position in range(frame.shape[1])]
    columns = [field for field in columns if field != id_field]
    notes = []
    if isinstance(frame.index, pd.TimedeltaIndex):
        notes.append(
            "the index holds durations, which tell no time, and rows are taken in their order; add "
            "a time to them (pd.Timestamp('2024-01-01') + index) if they tell another"
        )
    for field in columns:
        known = field.of(frame).dropna()
        is_unix = is_unix_time(known)
        if not len(known) or not (_is_usual(frame, field) or is_mostly_time(known) or is_unix):
            continue
        if is_unix and not _is_usual(frame, field):
            notes.append(
                f"{field.label(frame)} holds numbers that look like times since 1970, and rows are "
                f"taken in their order; pass time={str(frame.columns[field.position])!r} if it "
                "tells another"
            )
        elif _is_aside(frame, field):
            notes.append(
                f"{field.label(frame)} tells a time in {len(known):,} of {len(frame):,} rows, and "
                "rows are taken in their order"
            )
        elif is_number(known):
            notes.append(
                f"{field.label(frame)} holds numbers that do not look like times, and rows are "
                f"taken in their order; pass time={str(frame.columns[field.position])!r} if it "
                "tells another"
            )
        else:
            cells = (cell for cell in known.head(1000) if not reads_as_time(pd.Series([cell])))
            notes.append(
                f"{field.label(frame)} does not read as times, such as "
                f"{str(next(cells, known.iloc[0]))!r}, and rows are taken in their order; write "
                "them like 2024-12-31 23:00 if it tells another"
            )
    parts = [f for f in columns if str(frame.columns[f.position]).lower() in _PARTS]
    if parts:
        named = ", ".join(repr(frame.columns[field.position]) for field in parts)
        notes.append(
            f"column(s) {named} sound like parts of a time, and rows are taken in their order; "
            "join them into one column of times if it tells another"
        )
    return tuple(notes)


def _is_aside(frame: pd.DataFrame, field: Field) -> bool:
    """Whether most cells of a column not called time are missing: it orders no rows."""
    return not _is_usual(frame, field) and bool(field.of(frame).isna().mean() > 0.5)


def _is_usual(frame: pd.DataFrame, field: Field) -> bool:
    """Whether times are usually called this."""
    return _rank(frame, field) < len(_USUAL_NAMES)


def _rank(frame: pd.DataFrame, field: Field) -> int:
    labels = frame.index.names if field.is_level else frame.columns
    name = str(labels[field.position]).lower()
    return _USUAL_NAMES.index(name) if name in _USUAL_NAMES else len(_USUAL_NAMES)


def _series_codes(frame: pd.DataFrame, id_field: Field | None) -> tuple[IntArray, tuple[Any, ...]]:
    if id_field is None:
        return np.zeros(len(frame), dtype=np.int64), ()
    codes, names = pd.factorize(id_field.of(frame))
    unknown = np.flatnonzero(codes < 0)
    if unknown.size:
        raise ValueError(
            f"{id_field.label(frame)} names no series in {unknown.size} of {len(frame)} rows, "
            f"first in row {unknown[0]}; fill these in or drop such rows"
        )
    return codes.astype(np.int64), tuple(names.tolist())


def _time_order(ticks: NDArray[Any], codes: IntArray) -> IntArray:
    later_series = np.diff(codes) > 0
    if (later_series | ((np.diff(codes) == 0) & (np.diff(ticks) >= 0))).all():
        return np.arange(len(ticks))
    return np.lexsort((ticks, codes))


def _repeated_message(
    frame: pd.DataFrame, time: Field, id: Field | None, clock: Clock, rows: IntArray
) -> str:
    cell = time.of(frame).iloc[rows[0]]
    what = f"{time.label(frame)} repeats {rows.size} timestamps within a series, such as {cell}"
    if id is not None:
        what = f"{what} in series {id.of(frame).iloc[rows[0]]!r}"
        return f"{what}; drop or average such rows"
    if _clocks_changed(clock, rows):
        return (
            f"{what}; if clocks were set back then, write the times with their offset from UTC "
            "(2024-10-27 02:00+01:00)"
        )
    named = [(Field(level, True), name) for level, name in enumerate(frame.index.names) if name]
    named += [(Field(position), name) for position, name in enumerate(frame.columns)]
    parts = [
        name
        for field, name in named
        if field != time and (str(name).lower() in _PARTS or is_time_of_day(field.of(frame)))
    ]
    candidates = []
    for field, name in named:
        if name in parts:
            continue
        series = field.of(frame)
        if field == time or series.dtype.kind not in "OUiub" or series.isna().any():
            continue
        try:
            codes, names = pd.factorize(series)
        except TypeError:  # cells that cannot be compared cannot name a series
            continue
        pairs = pd.DataFrame({"series": codes, "ticks": clock.ticks})
        if 2 * len(names) <= len(frame) and not pairs.duplicated().any():
            candidates.append((series.dtype.kind in "iub", len(names), name))
    if candidates:
        name = min(candidates, key=lambda candidate: candidate[:2])[2]
        return f"{what}; if the table holds several series, pass id={name!r}"
    if parts:
        return f"{what}; join it with {', '.join(map(repr, parts))} into one column of times"
    return f"{what}; name the column that tells the series apart with id=..., or drop such rows"


def _clocks_changed(clock: Clock, rows: IntArray) -> bool:
    """Whether local times repeat as they do in the night of a year when clocks are set back."""
    if clock.stamps is None or clock.stamps.tz is not None:
        return False
    repeated = clock.stamps[rows]
    nights = repeated.normalize()
    at_night = (repeated.hour <= 3) & (repeated.day_of_week >= 5)
    return bool(at_night.all() and nights.year.nunique() == nights.nunique())
