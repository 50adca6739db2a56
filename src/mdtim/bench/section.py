"""Sections of documents that are rendered from results, between two marks."""

from __future__ import annotations

from pathlib import Path


def write_section(page: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between two marks of a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        raise ValueError(f"{page} has no section to render; it needs the line {begin!r}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
