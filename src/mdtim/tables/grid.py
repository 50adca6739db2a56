"""Distances in time: how many steps lie between the rows of a series."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.tseries.frequencies import to_offset

from mdtim.panel import BoolArray, IntArray
from mdtim.tables.clock import Clock

_MAX_ROWS = 50_000_000
_MAX_GROWTH = 3
_TOLERANCE = 0.01
DAY = 86_400 * 10**9
"""In nanoseconds."""
_MIN_WORKDAYS = 20
"""Of so many days some would be a Saturday or a Sunday, if there were any."""
_MONDAY = np.datetime64("1970-01-05")


@dataclass(frozen=True)
class Spacing:
    """How far apart two neighbouring steps lie."""

    reading: Literal["rows", "number", "months", "weekdays", "utc", "local"]
    """What is measured: nothing (rows are equal steps), the numbers of the time column, whole
    months, days from Monday to Friday, nanoseconds in UTC, or nanoseconds of local time."""
    size: float
    """One step, in that reading."""


class Grid(NamedTuple):
    """R sorted rows laid out among N equally spaced ones."""

    steps: IntArray
    """(R,) rows from each to the next: 1, and one more for each skipped step."""
    ticks: IntArray | None
    """(N,) nanoseconds since 1970 in UTC; None for numbers that stand for no date."""
    seconds: float | None
    """Length of one step."""
    note: str | None = None
    """Why rows had to be taken as equal steps."""
    spacing: Spacing | None = None
    """What the steps were counted by; None where no two rows have a distance."""
    marks: NDArray[Any] | None = None
    """(R,) the sorted times in the reading of the spacing."""


def infer_grid(
    clock: Clock,
    order: IntArray,
    joined: BoolArray,
    label: str,
    spacing: Spacing | None = None,
) -> Grid:
    """Lay sorted rows out in steps of the most common distance, or as equal steps.

    Parameters
    ----------
    clock : (R,) times
    order : (R,) rows by series, then time
    joined : (R - 1,) True where two neighbours in this order belong to one series
    label : how messages call the time
    spacing : a spacing that is known already; the rows must lie whole steps of it apart
    """
    steps = np.ones(len(order), dtype=np.int64)
    note = None
    if spacing is not None:
        steps[:-1][joined] = _spaced_steps(clock, order, joined, label, spacing)
    elif joined.any():
        regular, spacing, note = _regular_steps(clock, order, joined, label)
        steps[:-1][joined] = regular
    marks = None if spacing is None else _marks(clock, order, spacing.reading)
    if clock.stamps is None:
        return Grid(steps, None, None, note, spacing, marks)
    known = clock.ticks[order]
    width = np.zeros_like(known)
    width[:-1][joined] = np.diff(known)[joined] // steps[:-1][joined]
    if spacing is not None and spacing.reading in ("weekdays", "local"):
        ticks = _local_ticks(clock, order, steps, spacing)
    else:
        ticks = np.repeat(known, steps) + _within(steps) * np.repeat(width, steps)
    seconds = float(np.median(width[:-1][joined])) / 1e9 if joined.any() else None
    return Grid(steps, ticks, seconds, note, spacing, marks)


def _local_ticks(clock: Clock, order: IntArray, steps: IntArray, spacing: Spacing) -> IntArray:
    """(N,) nanoseconds in UTC, where skipped steps lie whole steps of local time ahead."""
    assert clock.stamps is not None
    ahead = _within(steps)
    wall = np.repeat(clock.stamps.tz_localize(None)[order].asi8, steps)
    if spacing.reading == "weekdays":
        day = np.repeat(_days(clock, order), steps)
        wall += (np.busday_offset(day, ahead) - day).astype(np.int64) * DAY
    else:
        wall += ahead * int(spacing.size)
    # An hour that clocks show twice is taken for the later one; one that they skip ends at once.
    times = pd.DatetimeIndex(wall.view("M8[ns]")).tz_localize(
        clock.stamps.tz, ambiguous=np.zeros(len(wall), dtype=bool), nonexistent="shift_forward"
    )
    return np.where(ahead == 0, np.repeat(clock.ticks[order], steps), times.asi8)


def _within(steps: IntArray) -> IntArray:
    """(N,) 0, 1, 2, ... anew from each row that the table holds."""
    return np.arange(steps.sum()) - np.repeat(np.cumsum(steps) - steps, steps)


def _regular_steps(
    clock: Clock, order: IntArray, joined: BoolArray, label: str
) -> tuple[IntArray, Spacing, str | None]:
    """Whole steps between neighbours of one series, or single ones and why these."""
    too_sparse = False
    for reading in _readings(clock, order, joined):
        distances = np.diff(_marks(clock, order, reading))[joined]
        if distances.min() <= 0:  # local time that was set back
            continue
        found, counts = np.unique(distances, return_counts=True)
        for step in dict.fromkeys((found[counts.argmax()], found[0])):
            steps = _whole_steps(distances, step)
            if steps is None:
                continue
            if steps.sum() + np.sum(~joined) + 1 <= _MAX_GROWTH * len(order):
                return steps.astype(np.int64), Spacing(reading, step.item()), None
            too_sparse = True
    if too_sparse:
        why = f"{label} skips more steps than {_MAX_GROWTH} times the rows of the table"
    else:
        distances = np.sort(np.diff(clock.ticks[order])[joined])
        middle = distances[len(distances) // 2]
        steps = distances / middle
        odd = distances[np.abs(steps - np.rint(steps)).argmax()]  # the one that fits the least
        if clock.stamps is not None:
            middle, odd = pd.Timedelta(middle, "ns"), pd.Timedelta(odd, "ns")
        why = f"{label} is not equally spaced: steps of {middle} but also, for instance, {odd}"
    note = f"{why}; the rows are taken as equal steps. Resample the table, or give freq"
    return np.ones(int(joined.sum()), dtype=np.int64), Spacing("rows", 1), note


def _spaced_steps(
    clock: Clock, order: IntArray, joined: BoolArray, label: str, spacing: Spacing
) -> IntArray:
    """Whole steps of a known spacing between neighbours of one series."""
    if spacing.reading == "rows":
        return np.ones(int(joined.sum()), dtype=np.int64)
    if (spacing.reading == "number") != (clock.stamps is None):
        raise ValueError(f"{label} holds another kind of time than the rest of the data set")
    distances = np.diff(_marks(clock, order, spacing.reading))[joined]
    steps = _whole_steps(distances, np.asarray(spacing.size))
    if steps is None or (steps < 1).any():
        raise ValueError(
            f"{label} is not spaced as the rest of the data set, in steps of "
            f"{spacing.size:g} ({spacing.reading}); resample it"
        )
    return steps.astype(np.int64)


def steps_between(distances: NDArray[Any], spacing: Spacing) -> IntArray:
    """(D,) whole steps nearest to distances in the reading of the spacing."""
    if spacing.reading == "rows":
        return np.ones(len(distances), dtype=np.int64)
    return np.rint(distances / spacing.size).astype(np.int64)


def _whole_steps(distances: NDArray[Any], step: Any) -> NDArray[Any] | None:
    steps = np.rint(distances / step)
    if (np.abs(distances - steps * step) > _TOLERANCE * step).any():
        return None
    return np.asarray(steps)


def _marks(clock: Clock, order: IntArray, reading: str) -> NDArray[Any]:
    """(R,) sorted times as a reading measures them."""
    if reading not in ("months", "weekdays", "local"):
        return clock.ticks[order]
    if reading == "weekdays":
        return np.asarray(np.busday_count(_MONDAY, _days(clock, order)))
    assert clock.stamps is not None
    wall = clock.stamps.tz_localize(None)[order]
    if reading == "local":
        return np.asarray(wall.asi8)
    return np.asarray(wall.year * 12 + wall.month, dtype=np.int64)


def _days(clock: Clock, order: IntArray) -> NDArray[Any]:
    """(R,) the sorted dates."""
    assert clock.stamps is not None
    return clock.stamps.tz_localize(None)[order].to_numpy().astype("M8[D]")


class Workdays(NamedTuple):
    """Rows that all lie from Monday to Friday at one time of day."""

    rows: int
    moment: int
    """The time of day, in nanoseconds of local time."""

    @classmethod
    def of(cls, clock: Clock) -> Workdays | None:
        """None if some lie elsewhere."""
        if clock.stamps is None:
            return None
        wall = clock.stamps.tz_localize(None)
        moments = np.unique(wall.asi8 % DAY)
        if len(moments) != 1 or (wall.day_of_week >= 5).any():
            return None
        return cls(len(wall), int(moments[0]))

    @classmethod
    def join(cls, parts: Sequence[Workdays | None]) -> Workdays | None:
        """All parts together; None if they are none, or of several times of day."""
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or len({part.moment for part in known}) != 1:
            return None
        return cls(sum(part.rows for part in known), known[0].moment)

    @property
    def tell(self) -> bool:
        """Whether the rows are enough to say that there are no weekends."""
        return self.rows >= _MIN_WORKDAYS


def _readings(
    clock: Clock, order: IntArray, joined: BoolArray
) -> Iterator[Literal["number", "months", "weekdays", "utc", "local"]]:
    """Yield readings in which the rows may prove equally spaced."""
    if clock.stamps is None:
        yield "number"
        return
    wall = clock.stamps.tz_localize(None)[order]
    if np.diff(wall.asi8)[joined].min() >= 28 * DAY:
        # The 31st of each month is the 30th in a month of 30 days.
        day = np.minimum(wall.day.max(), wall.days_in_month)
        if (wall.day == day).all() and len(np.unique(wall.asi8 % DAY)) == 1:
            yield "months"
    is_daily = np.diff(wall.asi8)[joined].min() == DAY
    workdays = Workdays.of(clock) if is_daily else None
    if workdays is not None and workdays.tell:
        yield "weekdays"
    yield "utc"
    if clock.stamps.tz is not None:  # days of 23 and 25 hours are days all the same
        yield "local"


def given_grid(clock: Clock, order: IntArray, joined: BoolArray, label: str, freq: str) -> Grid:
    """Lay sorted rows out on the grid the user asked for; parameters as for `infer_grid`."""
    offset = _offset(freq)
    if clock.stamps is None:
        raise ValueError(f"freq={freq!r} needs timestamps, but {label} holds numbers; leave it out")
    known = clock.ticks[order]
    is_day = isinstance(offset, pd.offsets.Day)
    if isinstance(offset, pd.offsets.Tick) or (is_day and clock.stamps.tz is None):
        # Days are not of one length in local time, all of these are.
        step = int(offset.nanos)
        apart = np.diff(known) // step
        starts = np.append(True, ~joined)  # the grid of each series starts at its first row
        phase = known % step
        off_grid = phase != phase[starts][np.cumsum(starts) - 1]
        steps = _checked_steps(clock, order, off_grid, apart, joined, label, freq)
        ticks = np.repeat(known, steps) + _within(steps) * step
        return Grid(steps, ticks, step / 1e9)
    grid = _calendar(clock.stamps, offset).as_unit("ns").asi8
    position = np.searchsorted(grid, known)
    off_grid = np.append(grid, -1)[position] != known
    steps = _checked_steps(clock, order, off_grid, np.diff(position), joined, label, freq)
    ticks = grid[np.repeat(position, steps) + _within(steps)]
    seconds = float(np.median(np.diff(grid))) / 1e9 if len(grid) > 1 else None
    return Grid(steps, ticks, seconds)


def _calendar(stamps: pd.DatetimeIndex, offset: pd.offsets.BaseOffset) -> pd.DatetimeIndex:
    """All times of a calendar between the first and the last one."""
    try:
        return pd.date_range(stamps.min(), stamps.max(), freq=offset)
    except ValueError:
        if stamps.tz is None:
            raise
    # Some night has no such hour, or two: the next that there is, or the first.
    wall = stamps.tz_localize(None)
    named = pd.date_range(wall.min(), wall.max(), freq=offset)
    is_summer = np.ones(len(named), dtype=bool)
    return named.tz_localize(stamps.tz, ambiguous=is_summer, nonexistent="shift_forward")


def _offset(freq: str) -> pd.offsets.BaseOffset:
    try:
        offset = to_offset(freq)
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"freq={freq!r} is not a pandas offset such as '10min', 'h', 'D' or 'MS': {error}"
        ) from error
    if offset.n <= 0:
        raise ValueError(f"freq={freq!r} does not lead forward in time; give a positive step")
    try:
        (pd.Timestamp(0) + offset).as_unit("ns")
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"freq={freq!r} is longer than two centuries; give a shorter step"
        ) from error
    return offset


def _checked_steps(
    clock: Clock,
    order: IntArray,
    off_grid: BoolArray,
    apart: IntArray,
    joined: BoolArray,
    label: str,
    freq: str,
) -> IntArray:
    """(R,) steps of sorted rows from the (R - 1,) they lie apart, unless these cannot be."""
    assert clock.stamps is not None
    if off_grid.any():
        row = order[np.flatnonzero(off_grid)[0]]
        raise ValueError(
            f"{label} has {int(off_grid.sum())} timestamps off the grid of freq={freq!r}, such as "
            f"{clock.stamps[row]} in row {row}; give the freq of the table or resample it"
        )
    total = len(order) + (apart[joined] - 1.0).sum()  # in floats, which do not overflow
    if total > _MAX_ROWS:
        raise ValueError(
            f"freq={freq!r} makes {total:.0f} rows out of {len(order)}, more than the limit "
            f"of {_MAX_ROWS}; give a coarser freq"
        )
    return np.append(np.where(joined, apart, 1), 1)
