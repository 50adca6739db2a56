"""Results as Markdown: our figure, the paper's, and their ratio, cell by cell."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from statistics import fmean, geometric_mean

Key = tuple[str, int, str, float]
"""Data set, window, pattern, rate."""

TITLES = {
    "main": "Main: MAE at 48 steps",
    "faithful": "Faithful: the paper's own recipe, MAE at 48 steps",
    "long": "Long windows: ETTh, MAE",
    "natural": "Natural gaps: PhysioNet-2012, MAE",
}

INTRODUCTION = """\
Rendered by `mdtim benchmark tables` from `results/paper.csv`. Every figure is the mean over the \
mask seeds of a run that really happened: its row names the device, the versions and the commit, \
which may be older than the code beside this page. \
*Paper* is the figure the paper prints for MDTIM, *best other* the best of the systems it compares \
with. The lower of ours and the paper's is bold."""


def paper_figures(metric: str) -> dict[str, dict[Key, float]]:
    """The paper's figures of a metric (`mae` or `crps`), by method."""
    found: dict[str, dict[Key, float]] = defaultdict(dict)
    text = (files("mdtim.benchmark") / "paper.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        if row["metric"] == metric:
            found[row["method"]][_key(row)] = float(row["value"])
    return dict(found)


def _key(row: dict[str, str]) -> Key:
    return row["dataset"], int(row["window"]), row["pattern"], float(row["rate"])


def read_rows(path: Path) -> list[dict[str, str]]:
    """All rows of a results file."""
    if not path.exists():
        raise ValueError(f"there is no results file {path}; run an experiment first")
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def mean_over_seeds(rows: Sequence[dict[str, str]], column: str) -> dict[Key, float]:
    """Mean of a column over mask and training seeds, for each cell with a value.

    Where a cell was run with several configurations of one preset, the last one counts.
    """
    latest = {_key(row): row["config"] for row in rows if row[column]}
    values: dict[Key, list[float]] = defaultdict(list)
    for row in rows:
        if row[column] and row["config"] == latest[_key(row)]:
            values[_key(row)].append(float(row[column]))
    return {key: fmean(numbers) for key, numbers in values.items()}


def render(path: Path) -> str:
    """The whole document."""
    from mdtim.benchmark.comparison import cost_table, sample_table, system_tables

    every = read_rows(path)
    rows = [row for row in every if row["method"] == "mdtim"]
    parts = ["# Results", "", INTRODUCTION, ""]
    for experiment, title in TITLES.items():
        chosen = [row for row in rows if row["experiment"] == experiment]
        if chosen:
            parts += [f"## {title}", "", *_comparison(chosen, "mae"), ""]
    main = [row for row in rows if row["experiment"] == "main"]
    with_crps = [row for row in main if _key(row) in paper_figures("crps")["MDTIM"]]
    if with_crps:
        parts += [
            "## Probabilistic: CRPS in window units, as in the paper, and 90 % coverage",
            "",
            *_comparison(with_crps, "crps_window", "crps"),
            "",
        ]
    parts += [*system_tables(every), *sample_table(every), *cost_table(every)]
    parts += _failures(every)
    return "\n".join(parts).rstrip() + "\n"


def _comparison(
    rows: Sequence[dict[str, str]], column: str, paper_metric: str = "mae"
) -> list[str]:
    ours = mean_over_seeds(rows, column)
    coverage = mean_over_seeds(rows, "coverage90")
    paper = paper_figures(paper_metric)
    lines = [
        "| data | window | pattern | rate | ours | paper | ratio | best other | 90 % covers |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    ratios = []
    for key in sorted(ours):
        dataset, window, pattern, rate = key
        theirs = paper["MDTIM"].get(key)
        others = [(f[key], name) for name, f in paper.items() if name != "MDTIM" and key in f]
        mine = f"{ours[key]:.4f}"
        ratio = ""
        if theirs is not None:
            ratios.append(ours[key] / theirs)
            ratio = f"{ratios[-1]:.3f}"
            mine = f"**{mine}**" if ours[key] < theirs else mine
        best = "{:.3f} ({})".format(*min(others)) if others else ""
        printed = (
            "" if theirs is None else f"{theirs:g}" if ours[key] < theirs else f"**{theirs:g}**"
        )
        lines.append(
            f"| {dataset} | {window} | {pattern} | {rate:.0%} | {mine} | {printed} | {ratio} | "
            f"{best} | {coverage[key]:.1%} |"
        )
    if ratios:
        below = sum(ratio < 1 for ratio in ratios)
        mean = geometric_mean(ratios)
        summary = f"below the paper in {below} of {len(ratios)} cells."
        lines += ["", f"Geometric mean of ours / paper: {mean:.3f}; {summary}"]
    return lines


def _failures(rows: Sequence[dict[str, str]]) -> list[str]:
    failed = [row for row in rows if row["error"]]
    if not failed:
        return []
    lines = ["## Failures", ""]
    counts = Counter(
        f"{row['experiment']} {row['dataset']} {row['method']} {row['preset']}: {row['error']}"
        for row in failed
    )
    return lines + [f"- {failure} ({number} cells)" for failure, number in counts.items()]
