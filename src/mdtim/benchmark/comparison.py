"""Tables of all systems side by side: accuracy on the same masks, distributions and cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from statistics import fmean
from typing import NamedTuple

from mdtim.baselines.settings import methods, settings_of
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
a cell with a dash. A system that learns does so once for all rates. *Learned in* says how long \
and on what (one core of a CPU, or an H200 that most shared with others), and *stopped* that its \
time was up, not that its validation error had ceased to fall. A line *authors* is a second \
chance, with the settings of the system's own paper, for one that does worse here than there, and \
*hide_training* another, with its training windows hidden in more ways or not at all; one without \
has had none. A raised number counts the masks of a cell that has not had all three yet."""
SAMPLES = """\
mdtim gives a distribution, corrected on the validation windows; the others give samples, as they \
are, 10 of CSDI and FGTI and 100 of GP-VAE. Between the fifth and the ninety-fifth percent of ten \
samples lies what is between the lowest and the highest: of a perfect sampler 9 / 11 = 82 % of the \
truth, not 90 %. If it is normal, its CRPS is 1.10 times that of its distribution, and the MAE of \
its median 1.07 times; of a hundred samples, 1.01 times both."""
_DIGITS = "⁰¹²³⁴⁵⁶⁷⁸⁹"

COST = """\
All on one GPU. They learned side by side, so that *learned in* is longer than alone, and most \
were stopped by their time; then each filled the test set alone, one after the other in one run. \
Seconds to impute are for the whole test set (1,927 windows), the mean over the rates; what is \
compiled was compiled before. The paper's MDTIM takes ten draws, ours one; CSDI draws ten samples. \
Memory is the peak of learning. *linear* runs on the CPU."""


def system_tables(rows: Sequence[TextRow]) -> list[str]:
    """MAE of every method on each data set, the paper's figure for it in brackets."""
    chosen = [row for row in rows if row["experiment"] in ("main", "natural") and row["mae"]]
    if {row["method"] for row in chosen} <= {"mdtim"}:
        return []
    lines = [SYSTEMS]
    for dataset in (*FOUR_SETS, "physionet2012", "nycweather"):
        own = {system: _own(chosen, dataset, system) for system in _systems(chosen, dataset)}
        if own:
            lines += ["", f"### {dataset}", "", *_accuracy(dataset, own)]
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


def _learned(system: System, row: TextRow) -> str:
    """How long a system learned and on what, and whether time ended it, of one of its rows."""
    if not int(row["params"] or 0):
        return ""
    seconds = float(row["train_seconds"] or 0)
    where = row["device"].removeprefix("NVIDIA ").partition(",")[0]
    stopped = seconds >= _seconds_allowed(system, row["dataset"])
    return f"{seconds / 60:.1f} min, {where}{', stopped' if stopped else ''}"


def _seconds_allowed(system: System, dataset: str) -> float:
    if system.method == "mdtim":
        return math.inf  # ends by its schedule
    try:
        return 60 * settings_of(system.method, dataset, system.preset).limits.max_minutes
    except ValueError:  # settings that are gone
        return math.inf


def _accuracy(dataset: str, own: dict[System, list[TextRow]]) -> list[str]:
    found = {system: over_seeds(rows, "mae") for system, rows in own.items()}
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
        body.append([system.title, *texts, _learned(system, own[system][-1])])
    columns = [f"{pattern} {rate:.0%}" for _, _, pattern, rate in keys]
    return table(["system", *columns, "learned in"], body)


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
    header = ["data", "system", "pattern", "rate", "CRPS", "90 % covers"]
    return [SAMPLES, "", *table(header, body)]


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
        own = choose(own, config=own[-1]["config"])  # of the settings as they were last
        errors = mean_over_seeds(own, "mae")
        figures = [errors.get(("energy", 48, "uniform", rate)) for rate in RATES]
        cells = [f"{value:.4f}" if value is not None else "" for value in figures]
        texts = [_learned(System(method, config), own[-1])]
        for name in ("impute_seconds", "peak_memory_gb"):
            values = [float(row[name]) for row in own if row[name]]
            texts.append(f"{fmean(values):.2f}" if values else "")
        params = f"{int(own[-1]['params']) / 1e6:.2f}"
        changes = config.partition("+")[2]  # the scale has a column
        body.append([System(method, changes).title, scale, *cells, params, *texts])
        theirs = printed.get((scale, method))
        if theirs:
            cells = [theirs[f"mae{rate:.0f}"] for rate in (30, 50, 70)]
            costs = [theirs["params_millions"], "", theirs["impute_seconds"], ""]
            body.append([f"*{method}, paper*", scale, *cells, *costs])
    header = ["system", "scale", "MAE 30 %", "50 %", "70 %", "parameters (M)", "learned in"]
    header += ["imputing (s)", "memory (GB)"]
    return [COST, "", *table(header, body)]


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
                least = other.get(key)
                figures += (
                    ["–", "–"] if least is None else [f"{least:.4f}", f"{ours[key] / least:.3f}"]
                )
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
