"""The paper's grid in a few lines: what README.md shows of docs/results.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import geometric_mean

from mdtim.bench.section import read_rows, write_section
from mdtim.benchmark.experiments import FOUR_SETS, TITLES
from mdtim.benchmark.markdown import table
from mdtim.benchmark.reading import Key, TextRow, choose, last_runs, mean_over_seeds, paper_figures
from mdtim.benchmark.rows import is_current

BEGIN = "<!-- compared: rendered by mdtim benchmark tables --summary README.md -->"
END = "<!-- end of compared -->"
MADE_UP = "sine"
"""Of the four sets the one that nobody measured; averages of the others leave it out."""


def ratios(
    ours: dict[Key, float], theirs: dict[Key, float], datasets: Iterable[str]
) -> list[float]:
    """Ours over theirs in every cell of some sets that both have."""
    wanted = set(datasets)
    return [ours[key] / theirs[key] for key in sorted(ours) if key in theirs and key[0] in wanted]


def mean_ratio(numbers: Sequence[float]) -> str:
    """The geometric mean, or a dash where there is nothing to average."""
    return f"{geometric_mean(numbers):.3f}" if numbers else "–"


def summary_table(rows: Sequence[TextRow]) -> list[str]:
    """Geometric means of error ratios, for each set and over the three measured ones."""
    trained = mean_over_seeds(choose(rows, experiment="main", method="mdtim", error=""), "mae")
    linear = mean_over_seeds(choose(rows, experiment="main", method="linear", error=""), "mae")
    at_once = choose(rows, experiment="zeroshot", preset="zero-mini+max_steps=0", error="")
    zero_shot = mean_over_seeds(at_once, "mae")
    paper = paper_figures("mae")
    comparisons = (
        (trained, paper["MDTIM"]),
        (trained, linear),
        (zero_shot, paper["MDTIM"]),
        (zero_shot, paper["SAITS"]),
        (zero_shot, linear),
    )
    real = [name for name in FOUR_SETS if name != MADE_UP]
    lines = {TITLES[name]: [name] for name in FOUR_SETS} | {"the three measured sets": real}
    body = [
        [title, *(mean_ratio(ratios(ours, theirs, sets)) for ours, theirs in comparisons)]
        for title, sets in lines.items()
    ]
    header = ["48 steps", "trained: of the paper's MDTIM", "trained: of linear interpolation"]
    header += [
        f"not trained on it: of {other}"
        for other in (
            "the paper's trained MDTIM",
            "the paper's trained SAITS",
            "linear interpolation",
        )
    ]
    return [*table(header, body), *_older(rows)]


def _older(rows: Sequence[TextRow]) -> list[str]:
    """Which sets the trained model was run on with a preset that has changed since."""
    trained = choose(last_runs(rows), experiment="main", method="mdtim", error="")
    stale = {row["dataset"] for row in trained if not is_current(row)}
    names = [title for name, title in TITLES.items() if name in stale]
    if not names:
        return []
    return ["", f"Trained on {', '.join(names)} before the preset changed to what it is now."]


def update(readme: Path, results: Path) -> None:
    """Render the section of a page anew."""
    write_section(readme, BEGIN, END, "\n".join(summary_table(read_rows(results))))
