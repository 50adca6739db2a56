"""Results files, and sections of documents that are rendered from them, between two marks."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mdtim.atomic import atomic_path


def write_section(page: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between two marks of a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        raise ValueError(f"{page} has no section to render; it needs the line {begin!r}")
    with atomic_path(page) as temporary:
        temporary.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def append_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Add rows to a results file, each in one piece: a killed run leaves whole lines.

    A file whose columns are others is refused, lest figures get under the wrong names.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = list(rows[0])
    check_columns(path, columns)
    with path.open("a+", newline="", encoding="utf-8") as file:
        file.seek(0)
        text = file.read()
        if text and not text.endswith("\n"):
            file.write("\n")  # as an editor leaves it
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if not text:
            writer.writeheader()
        for row in rows:
            writer.writerow(row)
            file.flush()
        os.fsync(file.fileno())


def check_columns(path: Path, columns: Sequence[str]) -> None:
    """Refuse a results file that exists and has other columns, or rows that are not whole."""
    if path.exists() and path.stat().st_size:
        header, _ = _read(path)
        if header != list(columns):
            raise ValueError(f"{path} has other columns than {', '.join(columns)}; name a new file")


def read_rows(path: Path) -> list[dict[str, str]]:
    """All rows of a results file."""
    if not path.exists():
        raise ValueError(f"there is no results file {path}; run an experiment first")
    header, rows = _read(path)
    return [dict(zip(header, row, strict=True)) for row in rows]


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of a file, each as long as the header."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            rows = []
            for row in reader:
                if row and len(row) != len(header):
                    raise ValueError(
                        f"line {reader.line_num} of {path} has {len(row)} cells, not "
                        f"{len(header)}; it was cut off or joined with another: remove it"
                    )
                rows += [row] if row else []
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file of results ({error})") from error
    return header, rows
