"""Sections of documents that are rendered from results, between two marks."""

from __future__ import annotations

import csv
from pathlib import Path


def write_section(page: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between two marks of a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        raise ValueError(f"{page} has no section to render; it needs the line {begin!r}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def read_rows(path: Path) -> list[dict[str, str]]:
    """All rows of a results file."""
    if not path.exists():
        raise ValueError(f"there is no results file {path}; run an experiment first")
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
