"""The measured section of docs/scale.md: figures from results/scale.csv, and what follows of them.

`python -m mdtim.bench.scale_page` writes it anew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from mdtim.bench.section import read_rows, write_section

BEGIN = "<!-- measured: rendered from results/scale.csv by python -m mdtim.bench.scale_page -->"
END = "<!-- end of measured -->"
HEADER = (
    "| rows | variates | parts | network | device | workers | rows/s | speed-up | "
    "rows/s of a core's time | memory early | memory at the end | load | commit |"
)
SIZES = (10**9, 10**12)
"""Cells of the data sets whose cost is worked out."""
FLEET = 100
"""Cores, or GPUs, among which the larger job is shared."""


def render(path: Path) -> str:
    """The section, without its marks."""
    rows = read_rows(path)
    lines = [HEADER, "|---" * (HEADER.count("|") - 1) + "|"]
    for row in rows:
        lines.append(
            f"| {int(row['rows']):,} | {row['variates']} | {row['parts']} | {row['size']} | "
            f"{row['device']} | {row['workers']} | {float(row['rows_per_second']):,.0f} | "
            f"{float(row['speedup']):.2f} | {float(row['rows_per_cpu_second']):,.0f} | "
            f"{float(row['first_memory_gb']):.2f} GB | {float(row['last_memory_gb']):.2f} GB | "
            f"{row['load']} on {row['cores']} cores | {row['commit']} |"
        )
    lines += ["", *_costs(rows)]
    return "\n".join(lines)


def _costs(rows: Sequence[dict[str, str]]) -> list[str]:
    """Hours and memory for large data sets, from the latest row of each device and network."""
    latest = {(row["device"], row["size"]): row for row in rows}
    lines: list[str] = []
    for (device, size), row in latest.items():
        on_core = device.startswith("CPU")
        speed = float(row["rows_per_cpu_second" if on_core else "rows_per_second"])
        variates = int(row["variates"])
        unit = "core" if on_core else "GPU"
        fact = f"one {unit} fills {speed:,.0f} rows of {variates} variates a second"
        lines += [f"With the network `{size}` on {device}, {fact}.", ""]
        for cells in SIZES:
            hours = cells / variates / speed / 3600
            exponent = round(math.log10(cells))
            lines.append(
                f"- 10^{exponent} cells: 10^{exponent} / {variates} / {speed:,.0f} / 3600 = "
                f"{hours:,.1f} hours of one {unit}; with {FLEET}, each at "
                f"{float(row['last_memory_gb']):.2f} GB, {hours / FLEET:.3g} hours."
            )
        lines.append("")
    return lines[:-1]


def update(page: Path, results: Path) -> None:
    """Write the section into a page that has its marks."""
    write_section(page, BEGIN, END, render(results))


if __name__ == "__main__":
    update(Path("docs/scale.md"), Path("results/scale.csv"))
