"""Which cells an experiment has: data set × window × pattern × rate × seeds × method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

from mdtim.config import ModelConfig, preset

RATES = (0.3, 0.5, 0.7)
PATTERNS = ("uniform", "geometric")
MASK_SEEDS = (0, 1, 2)
FOUR_SETS = ("etth", "energy", "weather", "sine")


@dataclass(frozen=True)
class Cell:
    """One score: a method with one training seed on one mask of one test set."""

    experiment: str
    dataset: str
    window: int
    pattern: str
    rate: float
    mask_seed: int
    train_seed: int
    method: str
    preset: str
    """Configuration of the method: a preset's name, with `+option=value` for each change."""

    @property
    def training_key(self) -> tuple[str, int, int, str, str]:
        """Cells that share this share one trained model."""
        return self.dataset, self.window, self.train_seed, self.method, self.preset


def _grid(
    experiment: str, datasets: tuple[str, ...], windows: tuple[int, ...], *presets: str
) -> list[Cell]:
    return [
        Cell(experiment, dataset, window, pattern, rate, mask_seed, 0, "mdtim", config)
        for config, dataset, window, pattern, rate, mask_seed in product(
            presets, datasets, windows, PATTERNS, RATES, MASK_SEEDS
        )
    ]


ABLATIONS = (
    "base",
    "base+interpolated=False+num_draws=10",
    "base+level_conditioning=False",
    "base+min_range=0.001",
    "base+matched_time=False",
    "base+mixed_masks=False",
    "base+cosine=False",
    "base+interpolation_prior=False",
    "base+spectral_weight=0.0",
    "base+label_width=0",
    "base+num_bins=20",
    "base+num_bins=60",
    "base+num_bins=100",
    "base+continuous=True+interpolation_prior=False",
)

COSTS = (
    *(("mdtim", scale) for scale in ("small", "base")),
    *((method, scale) for method in ("brits", "saits", "csdi") for scale in ("small", "large")),
    ("linear", "default"),
)
"""Methods of the paper's table of cost at its two scales, and what costs nothing."""

EXPERIMENTS: dict[str, Callable[[], list[Cell]]] = {
    "main": lambda: _grid("main", FOUR_SETS, (48,), "base"),
    "faithful": lambda: _grid("faithful", FOUR_SETS, (48,), "paper-large"),
    "long": lambda: _grid("long", ("etth",), (96, 192), "base"),
    "natural": lambda: _grid("natural", ("physionet2012",), (48,), "base"),
    "ablation": lambda: _grid("ablation", ("etth",), (48,), *ABLATIONS),
    "efficiency": lambda: [
        replace(cell, method=method, preset=scale)
        for method, scale in COSTS
        for cell in _grid("efficiency", ("energy",), (48,), scale)
        if cell.pattern == "uniform" and cell.mask_seed == 0
    ],
}


def cells_of(experiment: str, dataset: str | None = None) -> list[Cell]:
    """The cells of an experiment, all or of one data set.

    Examples
    --------
    >>> len(cells_of("main")), len(cells_of("main", "etth"))
    (72, 18)
    """
    if experiment not in EXPERIMENTS:
        raise ValueError(f"unknown experiment {experiment!r}; there are {', '.join(EXPERIMENTS)}")
    cells = EXPERIMENTS[experiment]()
    known = sorted({cell.dataset for cell in cells})
    if dataset is not None and dataset not in known:
        raise ValueError(f"experiment {experiment} has no data set {dataset!r}, but {known}")
    return [cell for cell in cells if dataset in (None, cell.dataset)]


def with_methods(cells: list[Cell], methods: list[str], settings: str = "default") -> list[Cell]:
    """The cells of some methods: those the experiment has, else on the masks of mdtim's cells.

    Parameters
    ----------
    settings : of the methods that the experiment itself does not have, see
        :func:`mdtim.baselines.settings.settings_of`

    Examples
    --------
    >>> len(with_methods(cells_of("main", "etth"), ["mdtim", "linear"]))
    36
    """
    chosen = []
    for method in methods:
        own = [cell for cell in cells if cell.method == method]
        masks = dict.fromkeys(
            replace(cell, method=method, preset=settings) for cell in cells if not own
        )
        chosen += own or list(masks)
    return chosen


def config_of(name: str, dataset: str) -> ModelConfig:
    """Configuration of a cell: a preset and its changes, such as `base+cosine=False`.

    Examples
    --------
    >>> config_of("base+num_bins=100", "etth").tokenizer.num_bins
    100
    """
    base, *changes = name.split("+")
    config = preset(base)
    if dataset == "physionet2012":
        # As in the paper: irregular sampling has no spectrum to be consistent with.
        config = config.change(spectral_weight=0.0)
    values = dict(change.split("=", 1) for change in changes)
    return config.change(**{key: _parse(value) for key, value in values.items()})


def _parse(text: str) -> bool | int | float:
    if text in ("True", "False"):
        return text == "True"
    return int(text) if text.lstrip("-").isdigit() else float(text)
