"""Named data sets: where they come from, how to get them, and the paper's splits of them.

Files are looked for in the folder `MDTIM_DATA` names, then in the user's cache; what is in neither
is downloaded from its public source. In every case the content is checked against a known hash.
Only NumPy is needed.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import os
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mdtim.panel import FloatArray, IntArray


@dataclass(frozen=True)
class Source:
    """A file of a public data set."""

    file: str
    url: str | None
    """Where the file itself can be had; None if it must be made from what the citation names."""
    sha256: str
    """Of the uncompressed content."""
    licence: str
    citation: str


SOURCES = {
    "etth": Source(
        "ETTh1.csv",
        "https://raw.githubusercontent.com/zhouhaoyi/ETDataset/main/ETT-small/ETTh1.csv",
        "f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066",
        "CC BY-ND 4.0",
        "Zhou et al. 2021, Electricity Transformer Temperature, hourly, ETTh1",
    ),
    "energy": Source(
        "energydata_complete.csv",
        "https://archive.ics.uci.edu/ml/machine-learning-databases/00374/energydata_complete.csv",
        "2820bf712ad0275cb18b85a05250926100d8e65ebb9f4d2d016ca91ea152a25d",
        "CC BY 4.0",
        "Candanedo 2017, Appliances energy prediction, UCI data set 374",
    ),
    "weather": Source(
        "weather.csv",
        "https://huggingface.co/datasets/thuml/Time-Series-Library/resolve/main/weather/weather.csv",
        "34ee981d07313e51da2a50bb600072c8ae4a69cb4b0651f4cb93a069d7a2ba63",
        "free for research",
        "Max Planck Institute for Biogeochemistry, Jena 2020, as prepared for Autoformer",
    ),
    "physionet2012": Source(
        "physionet2012_set_a.csv",
        None,
        "e9ba6e3de00dce07ad7b96edbad54a9c0e7cfc4b1ac57e58c3356615b6b09d86",
        "ODC-BY 1.0",
        "Silva et al. 2012, physionet.org/content/challenge-2012, set-a, all records in one table "
        "of RecordID, Time, Parameter, Value",
    ),
}


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


def read_content(name: str) -> bytes:
    """The uncompressed file of a data set, from a folder, the cache or its source, checked."""
    source = SOURCES[name]
    folders = [Path(os.environ["MDTIM_DATA"])] if os.environ.get("MDTIM_DATA") else []
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mdtim"
    for folder in (*folders, cache):
        for path in (folder / f"{source.file}.gz", folder / source.file):
            if path.is_file():
                raw = path.read_bytes()
                return _checked(gzip.decompress(raw) if path.suffix == ".gz" else raw, source, path)
    return _download(source, cache)


def _checked(content: bytes, source: Source, origin: object) -> bytes:
    found = hashlib.sha256(content).hexdigest()
    if found != source.sha256:
        raise ValueError(
            f"{origin} is not the {source.file} that is expected: its hash is {found[:12]}…, "
            f"expected {source.sha256[:12]}…; remove it to download it again"
        )
    return content


def _download(source: Source, cache: Path) -> bytes:
    if source.url is None:
        raise ValueError(
            f"{source.file} cannot be downloaded as one file; make it from its source "
            f"({source.citation}) and name its folder in MDTIM_DATA"
        )
    try:
        with urllib.request.urlopen(source.url, timeout=60) as answer:
            content = answer.read()
    except OSError as error:
        raise ValueError(
            f"{source.file} is not here and could not be downloaded from {source.url} ({error}); "
            "get it by other means and name its folder in MDTIM_DATA"
        ) from error
    content = _checked(content, source, source.url)
    cache.mkdir(parents=True, exist_ok=True)
    temporary = cache / f".{source.file}.{os.getpid()}"
    temporary.write_bytes(gzip.compress(content))
    os.replace(temporary, cache / f"{source.file}.gz")
    return content


def _long_series(name: str, values: FloatArray, window: int) -> Dataset:
    """Split one long series as the paper does: by windows, test windows from the last rows."""
    num_rows = len(values)
    known = values[: int(0.8 * num_rows)]
    standardized = (values - known.mean(axis=0)) / known.std(axis=0)
    num_windows = num_rows - window + 1
    first, second = int(0.8 * num_windows), int(0.9 * num_windows)
    return Dataset(
        name,
        standardized,
        np.array([0, num_rows]),
        training=(0, first + window - 1),
        validation=(first, second + window - 1),
        test=(int(0.9 * num_rows), num_rows),
        unit=np.ones(values.shape[1]),
    )


def _numbers(name: str, encoding: str = "utf-8") -> FloatArray:
    """All columns of a CSV but the first, the date."""
    rows = csv.reader(io.StringIO(read_content(name).decode(encoding)))
    next(rows)
    return np.array([[float(cell) for cell in row[1:]] for row in rows])


def _etth(window: int) -> Dataset:
    return _long_series("etth", _numbers("etth"), window)


def _energy(window: int) -> Dataset:
    return _long_series("energy", _numbers("energy"), window)


def _weather(window: int) -> Dataset:
    values = _numbers("weather", "latin-1")
    for column in values.T:
        fault = column == -9999
        # Forward, then backward fill: the index of the last good reading, or of the first one.
        last = np.maximum.accumulate(np.where(fault, -1, np.arange(len(column))))
        last[last < 0] = np.flatnonzero(~fault)[0]
        column[:] = column[last]
    return _long_series("weather", values, window)


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


_STATIC = {"Age", "Gender", "Height", "ICUType"}
_NO_SERIES = {"140501", "140936", "141264"}
_HOURS = 48


def _physionet2012(window: int) -> Dataset:
    """3,997 stays of 48 hourly bins, means within a bin; static descriptors are dropped."""
    if window != _HOURS:
        raise ValueError(f"physionet2012 has windows of {_HOURS} hours, got {window}")
    rows = csv.reader(io.StringIO(read_content("physionet2012").decode()))
    next(rows)
    stays: dict[str, int] = {}
    names: dict[str, int] = {}
    cells: list[tuple[int, int, int, float]] = []
    for record, clock, parameter, value in rows:
        if record in _NO_SERIES:
            continue
        stay = stays.setdefault(record, len(stays))
        # -1 in the admission record means unknown; empty names are transcription errors.
        if parameter in _STATIC or not parameter or float(value) < 0:
            continue
        hour = min(int(clock[:2]), _HOURS - 1)
        cells.append((stay, hour, names.setdefault(parameter, len(names)), float(value)))
    order = {name: place for place, name in enumerate(sorted(names))}
    place_of = np.array([order[name] for name in names])
    table = np.array(cells)
    places = table[:, :3].astype(np.int64)
    shape = (len(stays), _HOURS, len(names))
    flat = np.ravel_multi_index((places[:, 0], places[:, 1], place_of[places[:, 2]]), shape)
    total, count = np.zeros(np.prod(shape)), np.zeros(np.prod(shape))
    np.add.at(total, flat, table[:, 3])
    np.add.at(count, flat, 1)
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
    )


LOADERS: dict[str, Callable[[int], Dataset]] = {
    "etth": _etth,
    "energy": _energy,
    "weather": _weather,
    "sine": _sine,
    "physionet2012": _physionet2012,
}
