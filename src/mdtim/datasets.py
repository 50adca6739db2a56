"""Named data sets with the paper's splits, and two that are made here.

Only NumPy is needed; `sources.py` says where the files come from.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mdtim.baselines.kalman import StateSpace
from mdtim.panel import FloatArray, IntArray
from mdtim.sources import read_content
from mdtim.weather import WEATHER_COLUMNS, nyc_weather_file


@dataclass(frozen=True, eq=False)
class Dataset:
    """Series with the split and the units of the paper's evaluation."""

    name: str
    values: FloatArray
    """(N, V) standardized; NaN where naturally missing."""
    offsets: IntArray
    """(S + 1,) series boundaries."""
    training: tuple[int, int]
    """Rows whose windows are for training: [first, last)."""
    validation: tuple[int, int]
    test: tuple[int, int]
    unit: FloatArray
    """(V,) what one standardized unit counts in the score; 1 but for Sine, scored in raw units."""
    variates: tuple[str, ...] = ()
    """Their names, where the source gives any."""


def load(name: str, window: int = 48) -> Dataset:
    """Load a data set by name, split for windows of the given length.

    Examples
    --------
    >>> sine = load("sine")
    >>> sine.values.shape
    (480000, 5)
    """
    if name not in LOADERS:
        raise ValueError(f"unknown data set {name!r}; there are {', '.join(LOADERS)}")
    return LOADERS[name](window)


def _long_series(name: str, variates: Sequence[str], values: FloatArray, window: int) -> Dataset:
    """Standardize one long series by its first 80 % of rows, and split it as the paper does."""
    num_rows = len(values)
    known = values[: int(0.8 * num_rows)]
    standardized = (values - np.nanmean(known, axis=0)) / np.nanstd(known, axis=0)
    return _split_series(name, variates, standardized, window)


def _split_series(
    name: str, variates: Sequence[str], standardized: FloatArray, window: int
) -> Dataset:
    """Training and validation by windows; test windows from the last rows."""
    num_rows = len(standardized)
    num_windows = num_rows - window + 1
    first, second = int(0.8 * num_windows), int(0.9 * num_windows)
    return Dataset(
        name,
        standardized,
        np.array([0, num_rows]),
        training=(0, first + window - 1),
        validation=(first, second + window - 1),
        test=(int(0.9 * num_rows), num_rows),
        unit=np.ones(standardized.shape[1]),
        variates=tuple(variates),
    )


def _read_columns(name: str, encoding: str = "utf-8") -> tuple[list[str], FloatArray]:
    """Names and numbers of all columns of a CSV but the first, the date."""
    rows = csv.reader(io.StringIO(read_content(name).decode(encoding)))
    names = next(rows)[1:]
    return names, np.array([[float(cell) for cell in row[1:]] for row in rows])


def _etth(window: int) -> Dataset:
    return _long_series("etth", *_read_columns("etth"), window)


def _energy(window: int) -> Dataset:
    return _long_series("energy", *_read_columns("energy"), window)


def _weather(window: int) -> Dataset:
    names, values = _read_columns("weather", "latin-1")
    for column in values.T:
        fault = column == -9999
        # Forward, then backward fill: the index of the last good reading, or of the first one.
        last = np.maximum.accumulate(np.where(fault, -1, np.arange(len(column))))
        last[last < 0] = np.flatnonzero(~fault)[0]
        column[:] = column[last]
    # Without the units, some of which the source has damaged.
    return _long_series("weather", [name.split(" (")[0] for name in names], values, window)


def _sine(window: int) -> Dataset:
    """10,000 windows of five waves (sin(f·j + φ) + 1) / 2 with f, φ ~ U(0, 0.1)."""
    generator = np.random.default_rng(2024)
    frequency, phase = (generator.uniform(0, 0.1, size=(10_000, 1, 5)) for _ in range(2))
    waves = (np.sin(frequency * np.arange(window)[:, None] + phase) + 1) / 2
    values = waves.reshape(-1, 5)
    train = values[: 8_000 * window]
    std = train.std(axis=0)
    return Dataset(
        "sine",
        (values - train.mean(axis=0)) / std,
        np.arange(10_001) * window,
        training=(0, 8_000 * window),
        validation=(8_000 * window, 9_000 * window),
        test=(9_000 * window, 10_000 * window),
        unit=std,
    )


_STATIC = (b"Age", b"Gender", b"Height", b"ICUType")
_NO_SERIES = (b"140501", b"140936", b"141264")
_HOURS = 48


def _physionet2012(window: int) -> Dataset:
    """3,997 stays of 48 hourly bins, means within a bin; static descriptors are dropped."""
    if window != _HOURS:
        raise ValueError(f"physionet2012 has windows of {_HOURS} hours, got {window}")
    columns = [("record", "S8"), ("clock", "S5"), ("parameter", "S16"), ("value", "f8")]
    text = io.StringIO(read_content("physionet2012").decode())
    table = np.loadtxt(text, columns, delimiter=",", skiprows=1, encoding="utf-8")
    table = table[~np.isin(table["record"], _NO_SERIES)]
    stays, stay = np.unique(table["record"], return_inverse=True)
    # -1 in the admission record means unknown.
    known_cells = ~np.isin(table["parameter"], _STATIC) & (table["value"] >= 0)
    table, stay = table[known_cells], stay[known_cells]
    found, variate = np.unique(table["parameter"], return_inverse=True)
    names = [name.decode() for name in found]
    hour = np.minimum(table["clock"].astype("S2").astype(np.int64), _HOURS - 1)
    shape = (len(stays), _HOURS, len(names))
    flat = np.ravel_multi_index((stay, hour, variate), shape)
    size = int(np.prod(shape))
    total, count = np.bincount(flat, table["value"], size), np.bincount(flat, minlength=size)
    with np.errstate(invalid="ignore"):
        values = (total / count).reshape(-1, len(names))
    ends = np.array([2_557, 2_557 + 640, len(stays)]) * _HOURS
    known = values[: ends[0]]
    std = np.nanstd(known, axis=0)
    return Dataset(
        "physionet2012",
        (values - np.nanmean(known, axis=0)) / np.where(std > 0, std, 1.0),
        np.arange(len(stays) + 1) * _HOURS,
        training=(0, int(ends[0])),
        validation=(int(ends[0]), int(ends[1])),
        test=(int(ends[1]), int(ends[2])),
        unit=np.ones(len(names)),
        variates=tuple(names),
    )


LINEAR_GAUSSIAN = StateSpace.rotations(
    periods=(24.0, 11.0, 5.0),
    dampings=(0.98, 0.95, 0.9),
    num_variates=8,
    noise=0.05,
    generator=np.random.default_rng(2012),
)
"""The process behind `linear_gaussian`: the best possible fill of it is known."""
_LINEAR_GAUSSIAN_ROWS = 50_000


def _linear_gaussian(window: int) -> Dataset:
    """Eight variates that see three damped rotations; standardized by the process itself."""
    values = LINEAR_GAUSSIAN.sample(_LINEAR_GAUSSIAN_ROWS, np.random.default_rng(2013))
    return _split_series("linear_gaussian", (), values, window)


def _nycweather(window: int) -> Dataset:
    """One series of 27 variates: nine measurements at each of three airports, with real gaps."""
    with nyc_weather_file().open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    hours = np.array([row["time_hour"].removesuffix("Z") for row in rows], dtype="datetime64[h]")
    place = (hours - hours.min()).astype(np.int64)
    airports = sorted({row["origin"] for row in rows})
    values = np.full((place.max() + 1, len(airports), len(WEATHER_COLUMNS)), np.nan)
    for hour, row in zip(place, rows, strict=True):
        found = [np.nan if row[name] == "NA" else float(row[name]) for name in WEATHER_COLUMNS]
        values[hour, airports.index(row["origin"])] = found
    names = [f"{airport} {name}" for airport in airports for name in WEATHER_COLUMNS]
    return _long_series("nycweather", names, values.reshape(len(values), -1), window)


LOADERS: dict[str, Callable[[int], Dataset]] = {
    "etth": _etth,
    "energy": _energy,
    "weather": _weather,
    "sine": _sine,
    "physionet2012": _physionet2012,
    "nycweather": _nycweather,
    "linear_gaussian": _linear_gaussian,
}
