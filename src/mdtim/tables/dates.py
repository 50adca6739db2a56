"""Dates as text: the formats that they are written in, how they are read, and written again.

Rows are counted from 0 in every message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mdtim.tables.zones import in_their_zone

SAMPLE = 50
"""Cells that are looked at to tell how a column is written."""

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
TIME_OF_DAY = re.compile(
    r"(?:(?P<gap>[T ])\d\d?:\d\d(?P<seconds>:\d\d)?(?P<fraction>\.\d+)?(?P<half> ?[AaPp][Mm])?)?"
    r"(?P<zone> ?(?:Z|[+-]\d\d:?\d\d))?"
)


def as_stamps(series: pd.Series[Any], format: str | None = None) -> pd.DatetimeIndex:
    """Convert (R,) cells; NaT where one does not read. Several offsets become one time zone."""
    if isinstance(series.dtype, pd.PeriodDtype):
        return pd.DatetimeIndex(series.dt.to_timestamp())
    try:
        return pd.DatetimeIndex(pd.to_datetime(series, format=format, errors="coerce"))
    except ValueError:
        parsed = pd.to_datetime(series, format=format, errors="coerce", utc=True)
        return in_their_zone(series, pd.DatetimeIndex(parsed))


class _Style(NamedTuple):
    """How one cell of text may be written."""

    formats: tuple[str, ...] = ()
    """The usual reading first."""
    separator: str = ""
    zone: str = ""


def _style(cell: str) -> _Style:
    for pattern, readings in _DATES:
        date = pattern.match(cell)
        rest = TIME_OF_DAY.fullmatch(cell, date.end()) if date else None
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


def _order(format: str) -> str:
    """Of day, month and year in a format, such as dmy."""
    return "".join(re.findall(r"%([dmbByY])", format)).lower().replace("b", "m")


def read_text(
    text: pd.Series[Any], label: str, orders: tuple[str, ...] = ()
) -> tuple[pd.DatetimeIndex, str | None, tuple[str, ...]]:
    """Read (R,) text in one format throughout.

    Parameters
    ----------
    orders : of day, month and year in text of the same making; of several readings these count

    Returns
    -------
    stamps : (R,)
    note : what to say where two readings would do, and tell other distances
    orders : of all readings that would do; none for ISO 8601
    """
    if not len(text):
        return pd.DatetimeIndex([]), None, ()
    first = str(text.iloc[0])
    if first != first.strip():
        text = text.str.strip()
    style = _style(first.strip())
    best = as_stamps(text, "ISO8601")
    if not best.isna().any():
        return best, None, ()
    found: dict[str, pd.DatetimeIndex] = {}
    for format in style.formats:
        stamps = as_stamps(text, format)
        if not stamps.isna().any():
            found[format] = stamps
        elif np.sum(stamps.isna()) < np.sum(best.isna()):
            best = stamps
    found = {format: found[format] for format in found if _order(format) in orders} or found
    if found:
        chosen = _likely(found)
        stamps = found.pop(chosen)
        if style.separator == ".":  # written day first nearly everywhere
            found.clear()
        possible = tuple(dict.fromkeys(map(_order, (chosen, *found))))
        return stamps, _ambiguity(text, stamps, chosen, found, label), possible
    row = int(np.flatnonzero(best.isna())[0])
    raise ValueError(
        f"{label} cannot be read as time: row {row} holds {text.iloc[row]!r}; write all of its "
        f"cells in one format, best as 2020-01-31 00:10:00"
    )


def _likely(found: Mapping[str, pd.DatetimeIndex]) -> str:
    """Of several readings the usual one, unless another is in order, or much more even."""
    in_order = {format: stamps for format, stamps in found.items() if _is_in_order(stamps)}
    usual, *others = in_order or found
    # Hours of 01/01 to 09/01 leave gaps of a month if they are read month first.
    for other in others:
        if _evenness(found[other]) > 2 * _evenness(found[usual]):
            usual = other
    return usual


def _evenness(stamps: pd.DatetimeIndex) -> float:
    """How much of the time between the first and the last its usual steps would take, 0 to 1."""
    steps = np.abs(np.diff(stamps.asi8)).astype(np.float64)
    span = float(steps.sum())
    return min(1.0, len(steps) * float(np.median(steps)) / span) if span else 1.0


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


def as_text(stamps: pd.DatetimeIndex, like: pd.Series[Any], known: pd.DatetimeIndex) -> list[str]:
    """Write (K,) timestamps in the style of the first cells of a text column."""
    sample = [str(cell) for cell in like.head(SAMPLE)]
    style = _style(sample[0])
    width = len(sample[0]) - len(style.zone)
    for format in style.formats:
        body = format.removesuffix("%z").rstrip()
        for variant in (_padded, _unpadded, _cut):
            if variant(known[:SAMPLE], body, width, style.zone) != sample:
                continue
            cells = variant(stamps, body, width, style.zone)
            # A style without the time of day cannot hold steps of an hour.
            back = as_stamps(pd.Series(cells, dtype=object), format)
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
        cells[new] = as_text(stamps[new].tz_convert(offset), like.iloc[own], alike)
    return cells.tolist()


def _padded(times: pd.DatetimeIndex, body: str, width: int, zone: str) -> list[str]:
    return [cell + zone for cell in times.strftime(body)]


def _unpadded(times: pd.DatetimeIndex, body: str, width: int, zone: str) -> list[str]:
    """Write 1/2/2020 0:05 for 01/02/2020 00:05."""
    return [re.sub(r"(?<![\d:])0(?=\d)", "", cell) + zone for cell in times.strftime(body)]


def _cut(times: pd.DatetimeIndex, body: str, width: int, zone: str) -> list[str]:
    """Write milliseconds where strftime knows only microseconds."""
    return [cell[:width] + zone for cell in times.strftime(body)]
