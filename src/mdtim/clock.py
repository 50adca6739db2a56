"""Timestamps in and out: what a time column holds becomes nanoseconds, and nanoseconds a cell.

Rows are counted from 0 in every message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mdtim.panel import BoolArray, IntArray

_SAMPLE = 50
_OBJECT_TIMES = frozenset({"datetime", "datetime64", "date"})

# What the date may look like, and how it then reads; the separator stands in for {s}. Where a
# pattern has two readings the order here is day first.
_DATES = (
    (re.compile(r"\d{4}([-/.]?)\d\d?\1\d\d?"), ("%Y{s}%m{s}%d",)),
    (re.compile(r"\d{4}([-/.])\d\d?"), ("%Y{s}%m",)),
    (re.compile(r"\d\d?([-/.])\d\d?\1\d{4}"), ("%d{s}%m{s}%Y", "%m{s}%d{s}%Y")),
    (re.compile(r"\d\d?([-/.])\d\d?\1\d\d"), ("%d{s}%m{s}%y", "%m{s}%d{s}%y", "%y{s}%m{s}%d")),
    (re.compile(r"\d\d?([-/. ])[A-Za-z]+\1\d{4}"), ("%d{s}%b{s}%Y", "%d{s}%B{s}%Y")),
    (re.compile(r"[A-Za-z]+ \d\d?(,?) \d{4}"), ("%b %d{s} %Y", "%B %d{s} %Y")),
)
_TIME_OF_DAY = re.compile(
    r"(?:(?P<gap>[T ])\d\d?:\d\d(?P<seconds>:\d\d)?(?P<fraction>\.\d+)?(?P<half> ?[AaPp][Mm])?)?"
    r"(?P<zone> ?(?:Z|[+-]\d\d:?\d\d))?"
)
# Only a year of four digits makes a date certain enough to take a column nobody has named.
_CERTAIN_DATE = re.compile(
    r"\d{4}([-/.])\d\d?(\1\d\d?)?(?!\d)|\d\d?([-/. ])\w+\3\d{4}(?!\d)|[A-Za-z]+ \d\d?,? \d{4}(?!\d)"
)


@dataclass(frozen=True, eq=False)
class Clock:
    """The times of R rows as numbers to sort and to subtract."""

    ticks: NDArray[Any]
    """(R,) nanoseconds since 1970 in UTC, or numbers that stand for no date."""
    stamps: pd.DatetimeIndex | None
    """(R,) the same in the caller's time zone; None for numbers that stand for no date."""
    note: str | None = None
    """What the user should know about how the times were read."""
    formats: tuple[str, ...] = ()
    """Of text that is not as ISO 8601 has it: all formats in which it can be read."""


def read_clock(series: pd.Series[Any], label: str, formats: tuple[str, ...] = ()) -> Clock:
    """Read R times of any type.

    Parameters
    ----------
    series : (R,) timestamps, dates, periods, text or numbers
    label : how messages call it
    formats : in which text of the same making can be read; of several readings these alone count

    Examples
    --------
    >>> read_clock(pd.Series(["01.02.2020 00:10", "13.02.2020 00:00"]), "the time").stamps[0]
    Timestamp('2020-02-01 00:10:00')
    """
    _check_present(series.isna().to_numpy(), label)
    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(series.dtype.categories.dtype)
    kind = _kind(series)
    if kind == "number":
        return _number_clock(series, label)
    note: str | None = None
    found: tuple[str, ...] = ()
    if kind == "stamp":
        stamps = _as_stamps(series)
    elif kind == "text":
        stamps, note, found = _read_text(series.astype(object), label, formats)
    else:
        raise ValueError(
            f"{label} is of type {series.dtype} and cannot be read as time; expected timestamps, "
            f"text that holds timestamps, or numbers"
        )
    try:
        stamps = stamps.as_unit("ns")
    except pd.errors.OutOfBoundsDatetime as error:
        raise ValueError(
            f"{label} holds times outside of the years 1678 to 2261 ({error}); correct them"
        ) from error
    return Clock(stamps.asi8, stamps, note, found)


def is_stamped(series: pd.Series[Any]) -> bool:
    """Whether the type of the column alone says that it holds timestamps."""
    return _kind(series) == "stamp"


def looks_like_time(series: pd.Series[Any]) -> bool:
    """Whether this is text whose first cells all read as timestamps, judged cheaply."""
    if _kind(series) != "text":
        return False
    sample = series.dropna().head(_SAMPLE).astype(object)
    if not len(sample) or not all(_CERTAIN_DATE.match(str(cell).strip()) for cell in sample):
        return False
    return reads_as_time(sample)


def is_mostly_time(series: pd.Series[Any]) -> bool:
    """Whether these are timestamps, or nine in ten of the first cells of a text look like dates."""
    if is_stamped(series):
        return True
    if _kind(series) != "text":
        return False
    sample = [str(cell).strip() for cell in series.dropna().head(_SAMPLE)]
    return 10 * sum(_CERTAIN_DATE.match(cell) is not None for cell in sample) >= 9 * len(sample) > 0


def reads_as_time(series: pd.Series[Any]) -> bool:
    """Whether this is text of which every known cell reads as a timestamp."""
    if _kind(series) != "text":
        return False
    try:
        _read_text(series.dropna().astype(object), "the time")
    except ValueError:
        return False
    return True


_EPOCH_SECONDS = (10**8, 9_200_000_000)
"""1973 to 2261: numbers of that size in a column of times are no measurements."""
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DIGITS = {8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
"""How a date and a time of day are written as one number, by how many digits it has."""


def counts_time(series: pd.Series[Any]) -> bool:
    """Whether numbers are times by their looks: Unix times, dates as digits, or equally spaced."""
    if _kind(series) != "number":
        return False
    known = series.dropna().to_numpy(dtype=np.float64)
    if known.size < 2:
        return False
    if _number_style(known) is not None:
        return True
    distances = np.diff(known)
    return bool(distances[0] > 0 and np.allclose(distances, distances[0], rtol=1e-6, atol=0))


def is_unix_time(series: pd.Series[Any]) -> bool:
    """Whether numbers look like moments since 1970, in equal steps, of which few are skipped."""
    if _kind(series) != "number" or len(series) < 3:
        return False
    numbers = np.sort(series.to_numpy(dtype=np.float64))
    distances = np.diff(numbers)
    if _number_style(numbers) not in _UNITS or distances.min() == 0:
        return False
    steps = distances / distances.min()
    return bool((steps % 1 == 0).all() and steps.sum() < 3 * len(numbers))


def _number_style(numbers: NDArray[Any]) -> str | None:
    """How whole numbers stand for times: a unit since 1970, or a date as digits, 2024123123."""
    if not numbers.size or not (np.floor(numbers) == numbers).all():
        return None
    low, high = float(numbers.min()), float(numbers.max())
    for count, format in _DIGITS.items():
        # In seconds since 1970 these would be times from 2030 on, of which few are dates as well.
        if 1_900 * 10 ** (count - 4) <= low and high < 2_101 * 10 ** (count - 4):
            times = _read_digits(numbers.astype(np.int64), format)
            if not times.isna().any():
                return format
    first, last = _EPOCH_SECONDS
    for name, unit in _UNITS.items():
        if first * unit <= low and high < last * unit:
            return name
    return None


def _read_digits(numbers: IntArray, format: str) -> pd.DatetimeIndex:
    """(R,) times, NaT where the digits are none."""
    text = numbers.astype(str)
    if format.endswith("%H"):  # pandas reads no hour without minutes
        text, format = np.char.add(text, "00"), format + "%M"
    return pd.DatetimeIndex(pd.to_datetime(text, format=format, errors="coerce"))


def _as_numbers(stamps: pd.DatetimeIndex, style: str) -> IntArray:
    """The inverse of how numbers of a style were read."""
    if style in _DIGITS.values():
        return stamps.strftime(style).to_numpy(dtype=np.int64)
    return np.asarray(stamps.asi8 // (10**9 // _UNITS[style]))


def is_number(series: pd.Series[Any]) -> bool:
    """Whether the column holds numbers."""
    return _kind(series) == "number"


def write_times(
    ticks: IntArray, like: pd.Series[Any], clock: Clock, label: str
) -> pd.api.extensions.ExtensionArray | NDArray[Any]:
    """Write K new times the way a time column writes its own.

    Parameters
    ----------
    ticks : (K,) nanoseconds since 1970 in UTC
    like : (R,) the time column; text is written in its style where that can be told, as ISO 8601
        otherwise
    clock : what `read_clock` made of `like`

    Returns
    -------
    (K,) array of the type of `like`
    """
    assert clock.stamps is not None
    stamps = pd.DatetimeIndex(ticks.view("M8[ns]"))
    if clock.stamps.tz is not None:
        stamps = stamps.tz_localize("UTC").tz_convert(clock.stamps.tz)
    if isinstance(like.dtype, pd.CategoricalDtype):
        like = like.astype(like.dtype.categories.dtype)
    if _kind(like) == "text":
        return pd.Series(_as_text(stamps, like, clock.stamps), dtype=like.dtype).array
    written: Any
    style = _number_style(like.to_numpy(dtype=np.float64)) if _kind(like) == "number" else None
    if style is not None:
        written = pd.Series(_as_numbers(stamps, style)).astype(like.dtype)
    elif like.dtype == object:
        cells: Any = stamps.date if _inferred(like) == "date" else stamps.to_pydatetime()
        written = pd.Series(cells, dtype=object)
    else:
        written = pd.Series(stamps).astype(like.dtype)
    if not np.array_equal(read_clock(written, label).ticks, ticks):
        raise ValueError(
            f"freq is finer than {label}, which is of type {like.dtype}; convert it to a type "
            f"that can hold the time of day"
        )
    array: pd.api.extensions.ExtensionArray = written.array
    return array


def _check_present(missing: BoolArray, label: str) -> None:
    rows = np.flatnonzero(missing)
    if rows.size:
        raise ValueError(
            f"{label} lacks a timestamp in {rows.size} of {len(missing)} rows, first in row "
            f"{rows[0]}; fill these in or drop such rows"
        )


def _inferred(series: pd.Series[Any]) -> str:
    return pd.api.types.infer_dtype(series, skipna=True)


def is_time_of_day(series: pd.Series[Any]) -> bool:
    """Whether all known cells tell an hour and a minute, and no day.

    Examples
    --------
    >>> is_time_of_day(pd.Series(["00:15", "11:45:10 PM"]))
    True
    """
    known = series.dropna()
    if len(known) == 0 or _kind(known) not in ("text", "other"):
        return False
    matches = (_TIME_OF_DAY.fullmatch(f" {str(cell).strip()}") for cell in known)
    return all(match is not None and match["gap"] for match in matches)


def _kind(series: pd.Series[Any]) -> str:
    """One of stamp, number, text, other."""
    dtype = series.dtype
    if dtype.kind == "M" or isinstance(dtype, pd.PeriodDtype):
        return "stamp"
    if dtype.kind in "iuf":
        return "number"
    if isinstance(dtype, pd.CategoricalDtype):
        return _kind(pd.Series(dtype.categories))
    inferred = _inferred(series) if pd.api.types.is_object_dtype(dtype) else ""
    if inferred in _OBJECT_TIMES:
        return "stamp"
    if inferred in ("integer", "floating", "mixed-integer-float"):
        return "number"
    return "text" if inferred == "string" or pd.api.types.is_string_dtype(dtype) else "other"


def _number_clock(series: pd.Series[Any], label: str) -> Clock:
    ticks = series.to_numpy(dtype="int64" if series.dtype.kind in "iu" else "float64")
    _check_present(np.isnan(ticks), label)  # Arrow tells NaN from null
    infinite = np.flatnonzero(np.isinf(ticks))
    if infinite.size:
        raise ValueError(f"{label} is infinite in row {infinite[0]}; correct or drop such rows")
    style = _number_style(ticks)
    if style is None:
        return Clock(ticks, None)
    whole = ticks.astype(np.int64)
    if style in _DIGITS.values():
        stamps = _read_digits(whole, style).as_unit("ns")
    else:
        stamps = pd.DatetimeIndex((whole * (10**9 // _UNITS[style])).view("M8[ns]"))
    return Clock(stamps.asi8, stamps)


def _as_stamps(series: pd.Series[Any], format: str | None = None) -> pd.DatetimeIndex:
    """Convert (R,) cells; NaT where one does not read. A single offset stays, mixed ones go."""
    if isinstance(series.dtype, pd.PeriodDtype):
        return pd.DatetimeIndex(series.dt.to_timestamp())
    try:
        return pd.DatetimeIndex(pd.to_datetime(series, format=format, errors="coerce"))
    except ValueError:
        parsed = pd.to_datetime(series, format=format, errors="coerce", utc=True)
        return pd.DatetimeIndex(parsed)


class _Style(NamedTuple):
    """How one cell of text may be written."""

    formats: tuple[str, ...] = ()
    """The usual reading first."""
    separator: str = ""
    zone: str = ""


def _style(cell: str) -> _Style:
    for pattern, readings in _DATES:
        date = pattern.match(cell)
        rest = _TIME_OF_DAY.fullmatch(cell, date.end()) if date else None
        if date is None or rest is None:
            continue
        tail = ""
        if rest["gap"]:
            tail = rest["gap"] + ("%I:%M" if rest["half"] else "%H:%M")
            tail += ":%S" if rest["seconds"] else ""
            tail += ".%f" if rest["fraction"] else ""
            tail += rest["half"][:-2] + "%p" if rest["half"] else ""
        zone = rest["zone"] or ""
        if zone:
            tail += " %z" if zone.startswith(" ") else "%z"
        # Slashes are mostly American, dots and dashes mostly European.
        ordered = readings
        if date[1] == "/" and "%b" not in readings[0]:
            ordered = (*readings[1::-1], *readings[2:])
        return _Style(tuple(reading.format(s=date[1]) + tail for reading in ordered), date[1], zone)
    return _Style()


def _read_text(
    text: pd.Series[Any], label: str, formats: tuple[str, ...] = ()
) -> tuple[pd.DatetimeIndex, str | None, tuple[str, ...]]:
    """Read (R,) text in one format throughout; also a note where two would do, and all that do."""
    if not len(text):
        return pd.DatetimeIndex([]), None, ()
    first = str(text.iloc[0])
    if first != first.strip():
        text = text.str.strip()
    style = _style(first.strip())
    best = _as_stamps(text, "ISO8601")
    if not best.isna().any():
        return best, None, ()
    found: dict[str, pd.DatetimeIndex] = {}
    for format in style.formats:
        stamps = _as_stamps(text, format)
        if not stamps.isna().any():
            found[format] = stamps
        elif np.sum(stamps.isna()) < np.sum(best.isna()):
            best = stamps
    found = {format: found[format] for format in found if format in formats} or found
    if found:
        readings = tuple(found)
        # Of several readings the usual one, unless it alone is out of order.
        chosen = next(filter(lambda format: _is_in_order(found[format]), found), next(iter(found)))
        stamps = found.pop(chosen)
        if style.separator == ".":  # written day first nearly everywhere
            found.clear()
        return stamps, _ambiguity(text, stamps, chosen, found, label), readings
    row = int(np.flatnonzero(best.isna())[0])
    raise ValueError(
        f"{label} cannot be read as time: row {row} holds {text.iloc[row]!r}; write all of its "
        f"cells in one format, best as 2020-01-31 00:10:00"
    )


def _is_in_order(stamps: pd.DatetimeIndex) -> bool:
    return bool(stamps.is_monotonic_increasing or stamps.is_monotonic_decreasing)


def _ambiguity(
    text: pd.Series[Any],
    stamps: pd.DatetimeIndex,
    format: str,
    others: Mapping[str, pd.DatetimeIndex],
    label: str,
) -> str | None:
    """What to say if another reading tells other distances, and is in order if this one is."""
    for second in others.values():
        if _is_in_order(stamps) and not _is_in_order(second):
            continue
        if (np.diff(second.asi8) != np.diff(stamps.asi8)).any():
            return (
                f"{label} can be read in two ways; {text.iloc[0]!r} is taken as {format}. Write "
                f"dates as 2020-01-31 to make it certain"
            )
    return None


def _as_text(stamps: pd.DatetimeIndex, like: pd.Series[Any], known: pd.DatetimeIndex) -> list[str]:
    """Write (K,) timestamps in the style of the first cells of a text column."""
    sample = [str(cell) for cell in like.head(_SAMPLE)]
    style = _style(sample[0])
    width = len(sample[0]) - len(style.zone)
    for format in style.formats:
        body = format.removesuffix("%z").rstrip()
        for variant in (_padded, _unpadded, _cut):
            if variant(known[:_SAMPLE], body, width, style.zone) != sample:
                continue
            cells = variant(stamps, body, width, style.zone)
            # A style without the time of day cannot hold steps of an hour.
            back = _as_stamps(pd.Series(cells, dtype=object), format)
            if np.array_equal(back.as_unit("ns").asi8, stamps.asi8):
                return cells
    zones = np.array([_style(str(cell)).zone for cell in like])
    if len(set(zones)) > 1 and all(zones):
        return _with_offsets(stamps, like, known, zones)
    return [stamp.isoformat() for stamp in stamps]


def _with_offsets(
    stamps: pd.DatetimeIndex, like: pd.Series[Any], known: pd.DatetimeIndex, zones: NDArray[Any]
) -> list[str]:
    """Write (K,) timestamps with the offset from UTC of the cell before them."""
    order = np.argsort(known.asi8, kind="stable")
    before = np.searchsorted(known.asi8[order], stamps.asi8, side="right") - 1
    wanted = zones[order[before.clip(0)]]
    cells = np.empty(len(stamps), dtype=object)
    for zone in set(wanted):
        own, new = np.flatnonzero(zones == zone), wanted == zone
        offset = pd.Timestamp(str(like.iloc[own[0]])).tz
        alike = known[own].tz_convert(offset)
        cells[new] = _as_text(stamps[new].tz_convert(offset), like.iloc[own], alike)
    return cells.tolist()


def _padded(times: pd.DatetimeIndex, body: str, width: int, zone: str) -> list[str]:
    return [cell + zone for cell in times.strftime(body)]


def _unpadded(times: pd.DatetimeIndex, body: str, width: int, zone: str) -> list[str]:
    """Write 1/2/2020 0:05 for 01/02/2020 00:05."""
    return [re.sub(r"(?<![\d:])0(?=\d)", "", cell) + zone for cell in times.strftime(body)]


def _cut(times: pd.DatetimeIndex, body: str, width: int, zone: str) -> list[str]:
    """Write milliseconds where strftime knows only microseconds."""
    return [cell[:width] + zone for cell in times.strftime(body)]
