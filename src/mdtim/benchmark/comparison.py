"""Tables of all systems side by side: accuracy on the same masks, distributions and cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from statistics import fmean
from typing import NamedTuple

from mdtim.baselines.settings import methods
from mdtim.benchmark.experiments import COSTS, FOUR_SETS, MASK_SEEDS, PATTERNS
from mdtim.benchmark.markdown import table
from mdtim.benchmark.reading import (
    Key,
    TextRow,
    choose,
    mean_over_seeds,
    over_seeds,
    paper_costs,
    paper_figures,
)
from mdtim.benchmark.summary import MADE_UP, mean_ratio, ratios
from mdtim.missingness import RATES

SYSTEMS = """\
Lowest first by the mean over the columns, those with a dash last; in brackets the paper's \
figure for the system. Settings and their sources: `src/mdtim/baselines/settings.json`. A system \
without a bracket is not in the paper's table; one that is not listed has not been run, nor has \
a cell with a dash. A system that learns does so once for all rates, and all within the same \
limits unless its line says otherwise. A line *authors* is a second chance, with the settings of \
the system's own paper, for one that does worse here than there, and *hide_training* another, with \
its training windows hidden in more ways or not at all; one without has had none. A raised number \
counts the masks of a cell that has not had all three yet."""
_DIGITS = "⁰¹²³⁴⁵⁶⁷⁸⁹"

COST = """\
Seconds to impute are for the whole test set, the mean over the rates, alone on the GPU. The \
paper's MDTIM takes ten draws, ours one. All were trained at once on that GPU, the compared \
systems for up to a quarter of an hour: seconds of training are those of a shared GPU."""


def system_tables(rows: Sequence[TextRow]) -> list[str]:
    """MAE of every method on each data set, the paper's figure for it in brackets."""
    chosen = [row for row in rows if row["experiment"] in ("main", "natural") and row["mae"]]
    if {row["method"] for row in chosen} <= {"mdtim"}:
        return []
    lines = [SYSTEMS]
    for dataset in (*FOUR_SETS, "physionet2012", "nycweather"):
        found = {
            system: over_seeds(_own(chosen, dataset, system), "mae")
            for system in _systems(chosen, dataset)
        }
        if found:
            lines += ["", f"### {dataset}", "", *_accuracy(dataset, found)]
    return lines


class System(NamedTuple):
    """A method with its settings: one line of a table."""

    method: str
    preset: str

    @property
    def title(self) -> str:
        """The method, and what its settings are called where they are not the usual ones."""
        words = [word for word in self.preset.split("+") if word not in ("default", "base", "")]
        return ", ".join([self.method, *words])


def _systems(rows: Sequence[TextRow], dataset: str) -> list[System]:
    """All that a data set has rows of: mdtim, then the others in the order of their settings."""
    here = choose(rows, dataset=dataset)
    return [
        System(method, preset)
        for method in ("mdtim", *methods())
        for preset in dict.fromkeys(row["preset"] for row in choose(here, method=method))
    ]


def _raised(num_masks: int) -> str:
    """What a cell says if it has not had all masks; one training seed is all these have."""
    return _DIGITS[num_masks] if 0 < num_masks < len(MASK_SEEDS) else ""


def _own(rows: Sequence[TextRow], dataset: str, system: System) -> list[TextRow]:
    return choose(rows, dataset=dataset, method=system.method, preset=system.preset)


def _accuracy(dataset: str, found: dict[System, dict[Key, list[float]]]) -> list[str]:
    keys: list[Key] = [(dataset, 48, pattern, rate) for pattern, rate in product(PATTERNS, RATES)]
    paper = {name.lower(): figures for name, figures in paper_figures("mae").items()}
    body = []

    def order(item: tuple[System, dict[Key, list[float]]]) -> tuple[bool, float]:
        shown = [fmean(values) for key, values in item[1].items() if key in keys]
        return len(shown) < len(keys), fmean(shown or map(fmean, item[1].values()))

    for system, figures in sorted(found.items(), key=order):
        printed = paper.get(system.method, {})
        texts = [
            (f"{fmean(figures[key]):.4f}" if key in figures else "–")
            + _raised(len(figures.get(key, ())))
            + (f" ({printed[key]:g})" if key in printed else "")
            for key in keys
        ]
        body.append([system.title, *texts])
    return table(["system", *(f"{pattern} {rate:.0%}" for _, _, pattern, rate in keys)], body)


def sample_table(rows: Sequence[TextRow]) -> list[str]:
    """CRPS and coverage of the systems that have a distribution, in standardized units."""
    chosen = [row for row in rows if row["experiment"] == "main" and row["crps"]]
    if {row["method"] for row in chosen} <= {"mdtim"}:
        return []
    body = []
    for dataset in FOUR_SETS:
        for system in _systems(chosen, dataset):
            own = _own(chosen, dataset, system)
            crps, coverage = over_seeds(own, "crps"), over_seeds(own, "coverage90")
            for key in sorted(crps):
                name = [dataset, system.title, key[2], f"{key[3]:.0%}"]
                few = _raised(len(crps[key]))
                figures = f"{fmean(crps[key]):.4f}{few}", f"{fmean(coverage[key]):.1%}{few}"
                body.append([*name, *figures])
    return table(["data", "system", "pattern", "rate", "CRPS", "90 % covers"], body)


def cost_table(rows: Sequence[TextRow]) -> list[str]:
    """The paper's table of cost, our figures above its own."""
    chosen = [row for row in rows if row["experiment"] == "efficiency" and row["mae"]]
    if not chosen:
        return []
    printed = paper_costs()
    body = []
    for method, config in COSTS:
        own, scale = choose(chosen, method=method, preset=config), config.partition("+")[0]
        if not own:
            continue
        errors = mean_over_seeds(own, "mae")
        figures = [errors.get(("energy", 48, "uniform", rate)) for rate in RATES]
        cells = [f"{value:.4f}" if value is not None else "" for value in figures]
        means = [_mean(own, name) for name in ("train_seconds", "impute_seconds", "peak_memory_gb")]
        texts = ["" if value is None else f"{value:.2f}" for value in means]
        params = f"{int(own[-1]['params']) / 1e6:.2f}"
        body.append([method, scale, *cells, params, *texts, own[-1]["device"]])
        theirs = printed.get((scale, method))
        if theirs:
            cells = [theirs[f"mae{rate:.0f}"] for rate in (30, 50, 70)]
            costs = [theirs["params_millions"], "", theirs["impute_seconds"], "", ""]
            body.append([f"*{method}, paper*", scale, *cells, *costs])
    header = ["system", "scale", "MAE 30 %", "50 %", "70 %", "parameters (M)", "training (s)"]
    header += ["imputing (s)", "peak memory (GB)", "device"]
    return [COST, "", *table(header, body)]


def _mean(rows: Sequence[TextRow], column: str) -> float | None:
    values = [float(row[column]) for row in rows if row[column]]
    return fmean(values) if values else None


def zero_shot_tables(rows: Sequence[TextRow]) -> list[str]:
    """Pretrained networks beside linear interpolation on the same masks, and a trained SAITS."""
    chosen = choose(rows, experiment="zeroshot", error="")
    linear = mean_over_seeds(choose(rows, experiment="main", method="linear", error=""), "mae")
    saits = paper_figures("mae")["SAITS"]
    lines: list[str] = []
    for preset in sorted({row["preset"] for row in chosen}):
        own = choose(chosen, preset=preset)
        ours, crps = mean_over_seeds(own, "mae"), mean_over_seeds(own, "crps")
        coverage = mean_over_seeds(own, "coverage90")
        body = []
        for key in sorted(ours):
            figures = []
            for other in (linear, saits):
                figures += [f"{other[key]:.4f}", f"{ours[key] / other[key]:.3f}"]
            name = [key[0], key[2], f"{key[3]:.0%}", f"{ours[key]:.4f}"]
            body.append([*name, *figures, f"{crps[key]:.4f}", f"{coverage[key]:.1%}"])
        header = ["data", "pattern", "rate", "ours", "linear", "ratio", "SAITS, trained", "ratio"]
        real = {key[0] for key in ours} - {MADE_UP}
        means = [mean_ratio(ratios(ours, other, real)) for other in (linear, saits)]
        lines += [
            f"### {preset.partition('+')[0]}",
            "",
            *table([*header, "CRPS", "90 % covers"], body),
            "",
            f"Geometric means, measured data: {means[0]} of linear, {means[1]} of SAITS.",
            "",
        ]
    if not lines:
        return []
    return [
        "Not trained on the set: means, stds, relations among the columns and calibration are",
        "read off its training and validation rows. *SAITS* is the paper's figure for a model",
        "trained on the set.",
        "",
        *lines[:-1],
    ]
