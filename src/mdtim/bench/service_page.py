"""The rendered sections of docs/service.md: the service under load, and the size of a report.

`python -m mdtim.bench.service_page` writes them anew.
"""

from __future__ import annotations

from pathlib import Path

from mdtim.bench.section import read_rows, write_section

LOAD = "<!-- load: rendered from results/load.csv by python -m mdtim.bench.service_page -->"
LOAD_END = "<!-- end of load -->"
REPORT = "<!-- report: rendered from results/report.csv by python -m mdtim.bench.service_page -->"
REPORT_END = "<!-- end of report -->"
LOAD_HEADER = (
    "| clients | workers | taken | done | refused (429) | 5xx | result after, median / 99 % | "
    "status, median / 99 % | memory of service, workers | device | commit |"
)
REPORT_HEADER = "| rows × columns | missing cells | gaps | written in | size | load | commit |"


def render_load(path: Path) -> str:
    """One line for each run, the latest first."""
    lines = _head(LOAD_HEADER)
    for row in reversed(read_rows(path)):
        before, after = (
            [f"{float(row[f'{who}_mb_{when}']):,.0f}" for who in ("service", "workers")]
            for when in ("before", "after")
        )
        memory = ", ".join(f"{a} → {b}" for a, b in zip(before, after, strict=True))
        lines.append(
            f"| {row['clients']} | {row['workers']} | {row['accepted']} | {row['done']} | "
            f"{row['refused']} | {row['server_errors']} | "
            f"{float(row['job_p50']):.0f} / {float(row['job_p99']):.0f} s | "
            f"{1000 * float(row['status_p50']):.0f} / {1000 * float(row['status_p99']):.0f} ms | "
            f"{memory} MB | {row['device']} | {row['commit']} |"
        )
    return "\n".join(lines)


def render_report(path: Path) -> str:
    """One line for each measured report, the latest first."""
    lines = _head(REPORT_HEADER)
    lines += [
        f"| {int(row['rows']):,} × {row['columns']} | {int(row['missing']):,} | "
        f"{int(row['gaps']):,} | {float(row['seconds']):.1f} s | "
        f"{float(row['megabytes']):.2f} MB | {row['load']} | {row['commit']} |"
        for row in reversed(read_rows(path))
    ]
    return "\n".join(lines)


def _head(header: str) -> list[str]:
    return [header, "|---" * (header.count("|") - 1) + "|"]


def update(page: Path, load: Path, report: Path) -> None:
    """Write the sections into a page that has their marks."""
    write_section(page, LOAD, LOAD_END, render_load(load))
    write_section(page, REPORT, REPORT_END, render_report(report))


if __name__ == "__main__":
    update(Path("docs/service.md"), Path("results/load.csv"), Path("results/report.csv"))
