"""Timestamps in and out: what a time column holds becomes nanoseconds, and nanoseconds a cell.

Rows are counted from 0 in every message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mdtim.panel import BoolArray, IntArray
from mdtim.tables.dates import SAMPLE, TIME_OF_DAY, as_stamps, as_text, read_text

_OBJECT_TIMES = frozenset({"datetime", "datetime64", "date"})

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
    date_orders: tuple[str, ...] = ()
    """Of text that is not as ISO 8601 has it: all orders of its dates that it can be read in."""


def read_clock(series: pd.Series[Any], label: str, date_orders: tuple[str, ...] = ()) -> Clock:
    """Read R times of any type.

    Parameters
    ----------
    series : (R,) timestamps, dates, periods, text or numbers
    label : how messages call it
    date_orders : such as dmy, of text of the same making; of several readings these alone count

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
    orders: tuple[str, ...] = ()
    if kind == "stamp":
        stamps = as_stamps(series)
    elif kind == "text":
        stamps, note, orders = read_text(series.astype(object), label, date_orders)
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
    return Clock(stamps.asi8, stamps, note, orders)


def is_stamped(series: pd.Series[Any]) -> bool:
    """Whether the type of the column alone says that it holds timestamps."""
    return _kind(series) == "stamp"


def looks_like_time(series: pd.Series[Any]) -> bool:
    """Whether this is text whose first cells all read as timestamps, judged cheaply."""
    if _kind(series) != "text":
        return False
    sample = series.dropna().head(SAMPLE).astype(object)
    if not len(sample) or not all(_CERTAIN_DATE.match(str(cell).strip()) for cell in sample):
        return False
    return reads_as_time(sample)


def is_mostly_time(series: pd.Series[Any]) -> bool:
    """Whether these are timestamps, or nine in ten of the first cells of a text look like dates."""
    if is_stamped(series):
        return True
    if _kind(series) != "text":
        return False
    sample = [str(cell).strip() for cell in series.dropna().head(SAMPLE)]
    return 10 * sum(_CERTAIN_DATE.match(cell) is not None for cell in sample) >= 9 * len(sample) > 0


def reads_as_time(series: pd.Series[Any]) -> bool:
    """Whether this is text of which every known cell reads as a timestamp."""
    if _kind(series) != "text":
        return False
    try:
        read_text(series.dropna().astype(object), "the time")
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
        return pd.Series(as_text(stamps, like, clock.stamps), dtype=like.dtype).array
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
    matches = (TIME_OF_DAY.fullmatch(f" {str(cell).strip()}") for cell in known)
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
