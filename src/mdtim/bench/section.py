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
    with path.open("a+", newline="", encoding="utf-8") as file:
        file.seek(0)
        found = next(csv.reader(file), None)
        if found not in (None, columns):
            raise ValueError(f"{path} has other columns than {', '.join(columns)}; name a new file")
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if found is None:
            writer.writeheader()
        for row in rows:
            writer.writerow(row)
            file.flush()
        os.fsync(file.fileno())


def read_rows(path: Path) -> list[dict[str, str]]:
    """All rows of a results file."""
    if not path.exists():
        raise ValueError(f"there is no results file {path}; run an experiment first")
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
