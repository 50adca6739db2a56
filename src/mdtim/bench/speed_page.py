"""The measured sections of docs/speed.md, from results/speed.csv and results/parity.csv.

`python -m mdtim.bench.speed_page` writes them anew.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from mdtim.bench.section import read_rows, write_section

BEGIN = "<!-- measured: rendered from results/speed.csv by python -m mdtim.bench.speed_page -->"
END = "<!-- end of measured -->"
PARITY = "<!-- parity: rendered from results/parity.csv by python -m mdtim.bench.speed_page -->"
END_OF_PARITY = "<!-- end of parity -->"
SWEEPS = {"window length": "window", "variates": "variates"}
Row = dict[str, str]


def render(path: Path) -> str:
    """The section, without its marks: one table a device, then how cost grows."""
    rows = read_rows(path)
    lines: list[str] = []
    for device in dict.fromkeys(row["device"] for row in rows):
        own = [row for row in rows if row["device"] == device]
        rate = float(own[-1]["matmul_tflops"])
        lines += [
            f"### {device}",
            "",
            f"A large matrix product runs at {rate:,.1f} TFLOP/s there. *Share* is how much of it",
            "the network's own products and attention make of the whole time.",
            "",
            *_cases([row for row in own if not _swept(row)]),
            "",
            *_sweep([row for row in own if _swept(row)]),
        ]
    return "\n".join(lines).rstrip()


def _swept(row: Row) -> bool:
    return row["case"].startswith(tuple(SWEEPS))


def _cases(rows: Sequence[Row]) -> list[str]:
    lines = [
        "| case | size | variant | windows | draws | ms | TFLOP/s | share | memory | commit |",
        "|---" * 10 + "|",
    ]
    for row in rows:
        share = float(row["tflops"]) / float(row["matmul_tflops"])
        lines.append(
            f"| {row['case']} | {row['size']} | {row['variant']} | {row['batch']} | "
            f"{row['draws']} | {float(row['milliseconds']):,.1f} | {row['tflops']} | {share:.0%} | "
            f"{_memory(row)} | {row['commit']} |"
        )
    return lines


def _memory(row: Row) -> str:
    """Of the device; not measured on a CPU."""
    return f"{row['peak_memory_gb']} GB" if float(row["peak_memory_gb"]) else "–"


def _sweep(rows: Sequence[Row]) -> list[str]:
    """Imputing about as many cells in longer or wider windows: time for a million of them."""
    lines = []
    for what, column in SWEEPS.items():
        own = [row for row in rows if row["case"].startswith(what)]
        if not own:
            continue
        lines += [f"| {what} | ms for a million cells | memory |", "|---|---|---|"]
        for row in own:
            cells = int(row["window"]) * int(row["variates"]) * int(row["batch"])
            per_million = 1e6 * float(row["milliseconds"]) / cells
            lines.append(f"| {row[column]} | {per_million:,.0f} | {_memory(row)} |")
        lines.append("")
    return lines


def render_parity(path: Path) -> str:
    """Validation errors by seed: one line a variant and run."""
    rows = read_rows(path)
    seeds = sorted({row["seed"] for row in rows})
    names = " | ".join(f"seed {seed}" for seed in seeds)
    lines = [
        f"| variant | steps | {names} | mean | device | commit |",
        "|---" * (5 + len(seeds)) + "|",
    ]
    runs: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("variant", "steps", "device", "commit"))
        runs.setdefault(key, []).append(row)
    for (variant, steps, device, commit), own in runs.items():
        errors = {row["seed"]: float(row["validation_mae"]) for row in own}
        cells = " | ".join(f"{errors[seed]:.5f}" if seed in errors else "–" for seed in seeds)
        mean = statistics.mean(errors.values())
        lines.append(f"| {variant} | {steps} | {cells} | {mean:.5f} | {device} | {commit} |")
    return "\n".join(lines)


def update(page: Path, results: Path) -> None:
    """Render the sections of a page anew.

    Parameters
    ----------
    results : folder of the rows
    """
    write_section(page, BEGIN, END, render(results / "speed.csv"))
    write_section(page, PARITY, END_OF_PARITY, render_parity(results / "parity.csv"))


if __name__ == "__main__":
    update(Path("docs/speed.md"), Path("results"))
