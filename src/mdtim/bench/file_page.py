"""The rendered sections of README.md and docs/pretrained.md: cards of networks, and filled files.

`python -m mdtim.bench.file_page` writes them anew.
"""

from __future__ import annotations

from pathlib import Path

from mdtim.bench.section import read_rows, write_section
from mdtim.pretrained import card

CARD = "<!-- card: rendered from the weights by python -m mdtim.bench.file_page -->"
CARD_END = "<!-- end of card -->"
MEASURED = "<!-- measured: rendered from results/file.csv by python -m mdtim.bench.file_page -->"
MEASURED_END = "<!-- end of measured -->"
NETWORKS = ("zero-mini", "zero-base")
HEADER = (
    "| file | method | steps | window | MAE | CRPS | inside 50 / 80 / 90 / 95 % | "
    "50 %, all columns | seconds | device | load | commit |"
)


def render_cards() -> str:
    """The networks side by side."""
    cards = [card(name) for name in NETWORKS]
    facts = {
        "parameters": [f"{one['parameters']:,}" for one in cards],
        "steps": [f"{one['steps']:,}" for one in cards],
        "windows seen": [f"{one['windows']:,}" for one in cards],
        "cells seen": [f"{one['cells'] / 1e9:.2f} · 10⁹" for one in cards],
        "trained for": [f"{one['seconds']} s on one {one['device']}" for one in cards],
        "commit": [one["commit"] for one in cards],
    }
    for shape in cards[0]["error_relative_to_linear"]:
        facts[f"error, {shape}"] = [
            f"{one['error_relative_to_linear'][shape]:.3f}" for one in cards
        ]
    lines = [f"| | {' | '.join(NETWORKS)} |", "|---" * (1 + len(NETWORKS)) + "|"]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(row)} |" for name, row in facts.items())])


def render_files(path: Path) -> str:
    """One line for each measured fill; linear interpolation once for each case."""
    rows = read_rows(path)
    lines = [HEADER, "|---" * (HEADER.count("|") - 1) + "|"]
    seen = set()
    for row in sorted(rows, key=lambda row: row["case"]):
        if row["method"] == "linear" and row["case"] in seen:
            continue
        if row["method"] == "linear":
            seen.add(row["case"])
        inside = [row[f"cover{level}"] for level in (50, 80, 90, 95)]
        covered = " / ".join(f"{100 * float(one):.1f}" for one in inside if one) or "–"
        everywhere = f"{100 * float(row['cover50_all']):.1f}" if row["cover50_all"] else "–"
        seconds = row["seconds"] if float(row["seconds"]) else "–"
        lines.append(
            f"| {row['case']} | {row['method']} | {row['steps']} | {row['window']} | "
            f"{row['mae']} | {row['crps']} | {covered} | {everywhere} | {seconds} | "
            f"{row['device']} | {row['load']} | {row['commit']} |"
        )
    return "\n".join(lines)


FILES = {
    "random": "ETTh1, 30 % of its cells hidden at random",
    "blocks": "ETTh1, 30 % hidden in blocks of 24 to 96 hours",
    "outages": "ETTh1, nothing known for twelve stretches of 3 to 14 days",
    "weather": "New York's weather, 10 % hidden in runs like its own gaps",
}


def render_short(path: Path) -> str:
    """The latest figures of `zero-mini` in a few words."""
    latest = {(row["case"], row["method"]): row for row in read_rows(path)}
    header = "| file | pretrained, not trained on it | adapted to it | linear interpolation |"
    lines = [header, "|---|---|---|---|"]
    for case, words in FILES.items():
        figures = [words]
        for method in ("mdtim zero-mini", "mdtim zero-mini, adapted", "linear"):
            row = latest.get((case, method))
            took = f" in {float(row['seconds']):.0f} s" if row and float(row["seconds"]) else ""
            figures.append(f"{float(row['mae']):.3f}{took}" if row else "–")
        lines.append(f"| {' | '.join(figures)} |")
    return "\n".join(lines)


def update(readme: Path, page: Path, results: Path) -> None:
    """Write the sections into pages that have their marks."""
    write_section(readme, MEASURED, MEASURED_END, render_short(results))
    write_section(page, CARD, CARD_END, render_cards())
    write_section(page, MEASURED, MEASURED_END, render_files(results))


if __name__ == "__main__":
    update(Path("README.md"), Path("docs/pretrained.md"), Path("results/file.csv"))
