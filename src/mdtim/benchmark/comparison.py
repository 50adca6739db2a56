"""Tables of all systems side by side: accuracy on the same masks, and cost."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from importlib.resources import files
from itertools import product
from statistics import fmean

from mdtim.baselines.settings import methods
from mdtim.benchmark.experiments import COSTS, FOUR_SETS, PATTERNS, RATES
from mdtim.benchmark.tables import Key, mean_over_seeds, paper_figures

TextRow = dict[str, str]

SYSTEMS = """\
Lowest first by the mean over the columns; in brackets the paper's figure for the system. \
Settings and their sources: `src/mdtim/baselines/settings.json`. A system without a bracket is not \
in the paper's table; one that is not listed has not been run."""

COST = """\
Seconds to impute are for the whole test set, the mean over the rates. The paper's MDTIM takes ten \
draws, ours one."""

COST_COLUMNS = (
    *("system", "scale", "MAE 30 %", "50 %", "70 %", "parameters (M)", "training (s)"),
    *("imputing (s)", "peak memory (GB)", "device"),
)


def system_tables(rows: Sequence[TextRow]) -> list[str]:
    """MAE of every method on each data set, the paper's figure for it in brackets."""
    chosen = [row for row in rows if row["experiment"] in ("main", "natural") and row["mae"]]
    if {row["method"] for row in chosen} <= {"mdtim"}:
        return []
    lines = ["## All systems on the same masks: MAE at 48 steps", "", SYSTEMS, ""]
    for dataset in (*FOUR_SETS, "physionet2012"):
        found = {
            method: figures
            for method in ("mdtim", *methods())
            if (figures := _figures(chosen, dataset, method, "mae"))
        }
        if found:
            lines += [f"### {dataset}", "", *_accuracy(dataset, found), ""]
    return lines


def _figures(rows: Sequence[TextRow], dataset: str, method: str, column: str) -> dict[Key, float]:
    return mean_over_seeds(
        [row for row in rows if row["dataset"] == dataset and row["method"] == method], column
    )


def _accuracy(dataset: str, found: dict[str, dict[Key, float]]) -> list[str]:
    keys: list[Key] = [(dataset, 48, pattern, rate) for pattern, rate in product(PATTERNS, RATES)]
    paper = {name.lower(): figures for name, figures in paper_figures("mae").items()}
    header = " | ".join(f"{pattern} {rate:.0%}" for _, _, pattern, rate in keys)
    lines = [f"| system | {header} |", "|---" * (1 + len(keys)) + "|"]
    for method, figures in sorted(found.items(), key=lambda item: fmean(item[1].values())):
        printed = paper.get(method, {})
        texts = [
            (f"{figures[key]:.4f}" if key in figures else "")
            + (f" ({printed[key]:g})" if key in printed else "")
            for key in keys
        ]
        lines.append(f"| {method} | {' | '.join(texts)} |")
    return lines


def sample_table(rows: Sequence[TextRow]) -> list[str]:
    """CRPS and coverage of the systems that have a distribution, in standardized units."""
    chosen = [row for row in rows if row["experiment"] == "main" and row["crps"]]
    lines = []
    for dataset, method in product(FOUR_SETS, ("mdtim", *methods())):
        crps = _figures(chosen, dataset, method, "crps")
        coverage = _figures(chosen, dataset, method, "coverage90")
        for key in sorted(crps):
            lines.append(
                f"| {dataset} | {method} | {key[2]} | {key[3]:.0%} | {crps[key]:.4f} | "
                f"{coverage[key]:.1%} |"
            )
    if {row["method"] for row in chosen} <= {"mdtim"}:
        return []
    return [
        "## Distributions side by side: CRPS in the units of the MAE, and 90 % coverage",
        "",
        "| data | system | pattern | rate | CRPS | 90 % covers |",
        "|---|---|---|---|---|---|",
        *lines,
        "",
    ]


def cost_table(rows: Sequence[TextRow]) -> list[str]:
    """The paper's table of cost, our figures above its own."""
    chosen = [row for row in rows if row["experiment"] == "efficiency" and row["mae"]]
    if not chosen:
        return []
    text = (files("mdtim.benchmark") / "paper_cost.csv").read_text(encoding="utf-8")
    printed = {(row["scale"], row["method"].lower()): row for row in csv.DictReader(text.split())}
    lines = ["## Cost: Energy, uniform", "", COST, "", f"| {' | '.join(COST_COLUMNS)} |"]
    lines.append("|---" * len(COST_COLUMNS) + "|")
    for method, scale in COSTS:
        own = [row for row in chosen if (row["method"], row["preset"]) == (method, scale)]
        if not own:
            continue
        errors = mean_over_seeds(own, "mae")
        figures = [errors.get(("energy", 48, "uniform", rate)) for rate in RATES]
        cells = [f"{value:.4f}" if value is not None else "" for value in figures]
        means = [_mean(own, name) for name in ("train_seconds", "impute_seconds", "peak_memory_gb")]
        texts = ["" if value is None else f"{value:.2f}" for value in means]
        params = f"{int(own[-1]['params']) / 1e6:.2f}"
        lines.append(
            f"| {method} | {scale} | {' | '.join([*cells, params, *texts])} | {own[-1]['device']} |"
        )
        theirs = printed.get(("large" if scale == "base" else scale, method))
        if theirs:
            errors_text = " | ".join(theirs[f"mae{rate:.0f}"] for rate in (30, 50, 70))
            lines.append(
                f"| *{method}, paper* | {scale} | {errors_text} | {theirs['params_millions']} | | "
                f"{theirs['impute_seconds']} | | |"
            )
    return [*lines, ""]


def _mean(rows: Sequence[TextRow], column: str) -> float | None:
    values = [float(row[column]) for row in rows if row[column]]
    return fmean(values) if values else None
