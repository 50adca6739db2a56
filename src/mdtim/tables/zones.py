"""The time zone behind offsets: clocks that are one hour ahead in winter and two in summer.

A table that was written with offsets from UTC names no zone, but days of local time are only days
in one: counted in UTC, one is 23 hours long and another 25.
"""

from __future__ import annotations

import re
import zoneinfo
from typing import Any

import numpy as np
import pandas as pd

from mdtim.panel import BoolArray, IntArray

_OFFSET = re.compile(r"([+-])(\d\d):?(\d\d)$")
_USUAL = (
    *("Europe/Berlin", "Europe/London", "Europe/Athens", "America/New_York", "America/Chicago"),
    *("America/Denver", "America/Los_Angeles", "Australia/Sydney", "Pacific/Auckland"),
)
"""Looked at first: of zones that have the same clocks a name that people know."""


def in_their_zone(cells: pd.Series[Any], stamps: pd.DatetimeIndex) -> pd.DatetimeIndex:
    """Put (R,) times of several offsets into a zone whose clocks have them; else leave them in UTC.

    Parameters
    ----------
    cells : the text that was read, its offset at the end; NaN or anything where nothing was read
    stamps : in UTC, NaT where a cell does not read

    Examples
    --------
    >>> cells = pd.Series(["2024-03-30 00:00:00+01:00", "2024-04-01 00:00:00+02:00"])
    >>> str(in_their_zone(cells, pd.DatetimeIndex(pd.to_datetime(cells, utc=True))).tz)
    'Europe/Berlin'
    """
    known = np.asarray(stamps.notna())
    offsets = _offsets(cells[known].astype(str))
    if offsets is None:
        return stamps
    read = stamps[known]
    # Where the offset changes clocks differ most between zones: the quick look.
    order = np.argsort(read.asi8, kind="stable")
    change = np.flatnonzero(np.diff(offsets[order]))
    few = order[np.unique(np.concatenate([[0], change, change + 1, [len(order) - 1]]))[:100]]
    there = zoneinfo.available_timezones()  # none on a bare machine
    for name in (*(name for name in _USUAL if name in there), *sorted(there)):
        if _has(name, read[few], offsets[few]).all() and _has(name, read, offsets).all():
            return stamps.tz_convert(name)
    return stamps


def _offsets(cells: pd.Series[Any]) -> IntArray | None:
    """(R,) seconds ahead of UTC; None if a cell does not end with them."""
    found = [_OFFSET.search(cell) for cell in cells]
    if any(one is None for one in found):
        return None
    parts = [one.groups() for one in found if one is not None]
    return np.array(
        [int(f"{sign}1") * (3600 * int(hour) + 60 * int(minute)) for sign, hour, minute in parts]
    )


def _has(name: str, stamps: pd.DatetimeIndex, offsets: IntArray) -> BoolArray:
    """(R,) whether clocks of a zone are so far ahead of UTC at these times."""
    wall = stamps.tz_convert(name).tz_localize(None).as_unit("ns").asi8
    ahead = wall - stamps.as_unit("ns").asi8
    return np.asarray(ahead == offsets * 10**9)
