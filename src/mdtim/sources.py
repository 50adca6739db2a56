"""Where the public data sets come from: look in a folder, then in the cache, then download.

Whatever the way, the content is checked against a known hash before it is used.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mdtim.atomic import atomic_path


def _as_it_is(downloaded: bytes) -> bytes:
    return downloaded


def join_records(archive: bytes) -> bytes:
    """Make one table of a compressed archive with one small table for each record.

    Each file is called after its record and has the columns Time, Parameter and Value, with the
    record's own number among the parameters. The table has a column RecordID instead, and the
    records in rising order.
    """
    records: dict[str, list[str]] = {}
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as files:
        for member in files:
            content = files.extractfile(member)
            if content is None or not member.name.endswith(".txt"):
                continue
            _, *rows = content.read().decode().splitlines()
            records[Path(member.name).stem] = [row for row in rows if ",RecordID," not in row]
    lines = [f"{record},{row}" for record in sorted(records) for row in records[record]]
    return "\n".join(["RecordID,Time,Parameter,Value", *lines, ""]).encode()


@dataclass(frozen=True)
class Source:
    """A file of a public data set."""

    file: str
    url: str
    sha256: str
    """Of the uncompressed content."""
    licence: str
    citation: str
    build: Callable[[bytes], bytes] = _as_it_is
    """Makes the file of what the address gives."""


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
        "https://physionet.org/files/challenge-2012/1.0.0/set-a.tar.gz",
        "e9ba6e3de00dce07ad7b96edbad54a9c0e7cfc4b1ac57e58c3356615b6b09d86",
        "ODC-BY 1.0",
        "Silva et al. 2012, physionet.org/content/challenge-2012, set-a, all records in one table",
        join_records,
    ),
}


def read_content(name: str) -> bytes:
    """The uncompressed file of a data set, from a folder, the cache or its source, checked.

    The folder is the one that `MDTIM_DATA` names; files in it may be compressed with gzip.
    """
    source = SOURCES[name]
    folders = [Path(os.environ["MDTIM_DATA"])] if os.environ.get("MDTIM_DATA") else []
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mdtim"
    for folder in (*folders, cache):
        for path in (folder / f"{source.file}.gz", folder / source.file):
            if path.is_file():
                return _checked(_unpacked(path), source, path)
    return _download(source, cache)


def _unpacked(path: Path) -> bytes:
    raw = path.read_bytes()
    if path.suffix != ".gz":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be unpacked ({error}); get it anew") from error


def _checked(content: bytes, source: Source, origin: object) -> bytes:
    found = hashlib.sha256(content).hexdigest()
    if found != source.sha256:
        raise ValueError(
            f"{origin} is not the {source.file} that is expected: its hash is {found[:12]}…, "
            f"expected {source.sha256[:12]}…; remove it to download it again"
        )
    return content


def _download(source: Source, cache: Path) -> bytes:
    try:
        with urllib.request.urlopen(source.url, timeout=60) as answer:
            content = answer.read()
    except OSError as error:
        raise ValueError(
            f"{source.file} is not here and could not be downloaded from {source.url} ({error}); "
            "get it by other means and name its folder in MDTIM_DATA"
        ) from error
    try:
        content = source.build(content)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise ValueError(
            f"what {source.url} gave is damaged or of another kind ({error}); try again, or get "
            f"{source.file} by other means and name its folder in MDTIM_DATA"
        ) from error
    content = _checked(content, source, source.url)
    cache.mkdir(parents=True, exist_ok=True)
    with atomic_path(cache / f"{source.file}.gz") as temporary:
        temporary.write_bytes(gzip.compress(content))
    return content
