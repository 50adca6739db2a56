"""Which cells an experiment has: data set × window × pattern × rate × seeds × method."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product

from mdtim.baselines.settings import Settings, settings_of
from mdtim.config import ModelConfig, preset
from mdtim.missingness import RATES

PATTERNS = ("uniform", "geometric")
MASK_SEEDS = (0, 1, 2)
TITLES = {"etth": "ETTh", "energy": "Energy", "weather": "Weather", "sine": "Sine"}
FOUR_SETS = tuple(TITLES)
HORIZONS = (4, 6, 8, 12)
AT_ONCE = ("zero-mini+max_steps=0", "zero-base+max_steps=0")
"""The pretrained networks as they are."""
OURS = ("mdtim", "mdtim-argmax", "mdtim-ensemble")
"""Ways to use a trained model of ours."""
BOUNDS = ("clean", "optimum")
"""Methods of some experiments only: what nothing can beat."""
ENSEMBLE_SEEDS = (0, 1, 2)
"""Training seeds of the models that `mdtim-ensemble` averages."""


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
    """`mdtim`; `mdtim-argmax`, the same model read at its likeliest bin; `mdtim-ensemble`, the
    mean of several models; `optimum`, the best there is where the process is known; `clean`,
    nothing hidden; else one of the compared systems."""
    preset: str
    """Configuration of the method: the name of a preset, or of a compared system's settings, with
    `+option=value` for each change."""

    @property
    def training_key(self) -> tuple[str, int, int, str, str]:
        """Cells that share this share one trained model."""
        return self.dataset, self.window, self.train_seed, self.method, self.preset

    @property
    def train_seeds(self) -> tuple[int, ...]:
        """Seeds of the models the method uses."""
        return ENSEMBLE_SEEDS if self.method == "mdtim-ensemble" else (self.train_seed,)

    @property
    def model_config(self) -> ModelConfig | None:
        """Configuration of the model, for a method that has one."""
        if not self.method.startswith("mdtim"):
            return None
        return config_of(self.preset, self.dataset)

    @property
    def settings(self) -> Settings | None:
        """Settings of the method, for a compared system."""
        if self.method.startswith("mdtim") or self.method in BOUNDS:
            return None
        return settings_of(self.method, self.dataset, self.preset)

    @property
    def horizon(self) -> int | None:
        """Steps to forecast from the filled window, if that is what is scored."""
        name, _, steps = self.experiment.partition("-")
        return int(steps) if name == "downstream" else None


def _grid(
    experiment: str,
    datasets: Iterable[str],
    windows: Iterable[int],
    presets: Iterable[str] = ("base",),
    method: str = "mdtim",
) -> list[Cell]:
    return [
        Cell(experiment, dataset, window, pattern, rate, mask_seed, 0, method, config)
        for config, dataset, window, pattern, rate, mask_seed in product(
            presets, datasets, windows, PATTERNS, RATES, MASK_SEEDS
        )
    ]


# Half as long as `large` trains on ETTh, as the variants are many.
_SHORT = "large+max_views=384"

ABLATIONS: dict[str, tuple[str, str]] = {
    "everything": ("mdtim", _SHORT),
    "AdamW, batches of 256": (
        "mdtim",
        f"{_SHORT}+optimizer=adamw+batch_size=256+learning_rate=0.0006",
    ),
    "from the pretrained weights": ("mdtim", "base+max_views=384"),
    "one drawn token, ten draws": ("mdtim", f"{_SHORT}+interpolated=False+num_draws=10"),
    "no level conditioning": ("mdtim", f"{_SHORT}+level_conditioning=False"),
    "no smallest range": ("mdtim", f"{_SHORT}+min_range=0.001"),
    "range not extended": ("mdtim", f"{_SHORT}+extended=False"),
    "time not matched": ("mdtim", f"{_SHORT}+matched_time=False"),
    "uniform masks only": ("mdtim", f"{_SHORT}+mixed_masks=False"),
    "constant learning rate": ("mdtim", f"{_SHORT}+cosine=False"),
    "no relations": ("mdtim", f"{_SHORT}+prior=line"),
    "no prior": ("mdtim", f"{_SHORT}+prior=none"),
    "λ = 0": ("mdtim", f"{_SHORT}+spectral_weight=0.0"),
    "one-hot labels": ("mdtim", f"{_SHORT}+label_width=0"),
    "median": ("mdtim", f"{_SHORT}+estimate=median"),
    "argmax": ("mdtim-argmax", _SHORT),
    "argmax, one-hot labels": ("mdtim-argmax", f"{_SHORT}+label_width=0"),
    "K = 20": ("mdtim", f"{_SHORT}+num_bins=20"),
    "K = 60": ("mdtim", f"{_SHORT}+num_bins=60"),
    "K = 100": ("mdtim", f"{_SHORT}+num_bins=100"),
    "continuous": ("mdtim", f"{_SHORT}+continuous=True+prior=none"),
}
"""What is taken away or changed, alone: method and configuration of each variant."""


def _ablation() -> list[Cell]:
    return [
        cell
        for method, config in ABLATIONS.values()
        for cell in _grid("ablation", ("etth",), (48,), (config,), method)
    ]


# Sine's windows are scaled by no less than 1.0 of its units, which is 4.86 of its std.
LIMITED = "paper-large+min_range=4.86"
"""The paper's recipe with the smallest range of the code that its authors released."""


# `small` is sized for a CPU in a hurry: here it learns longer. Twelve minutes for each compared
# system; BRITS walks 48 steps a batch, so its batches are larger.
COSTS = (
    ("mdtim", "small+batch_size=64+max_steps=10000+validate_every=500"),
    ("mdtim", "large"),
    ("brits", "small+batch_size=128+max_minutes=12"),
    ("brits", "large+batch_size=128+max_minutes=12"),
    ("saits", "small+max_minutes=12"),
    ("saits", "large+max_minutes=12"),
    ("csdi", "small+max_minutes=12"),
    ("csdi", "large+max_minutes=12"),
    ("linear", "default"),
)
"""Methods of the paper's table of cost at its two scales, and what costs nothing."""


def _efficiency() -> list[Cell]:
    return [
        cell
        for method, config in COSTS
        for cell in _grid("efficiency", ("energy",), (48,), (config,), method)
        if cell.pattern == "uniform" and cell.mask_seed == 0
    ]


def _downstream() -> list[Cell]:
    """Forecasts from filled windows, and from whole ones; one experiment for each horizon."""
    cells = []
    for horizon in HORIZONS:
        name = f"downstream-{horizon}"
        cells.append(Cell(name, "energy", 48, "none", 0.0, 0, 0, "clean", ""))
        cells += _grid(name, ("energy",), (48,))
    return cells


EXPERIMENTS: dict[str, Callable[[], list[Cell]]] = {
    "main": lambda: _grid("main", FOUR_SETS, (48,)),
    "zeroshot": lambda: _grid("zeroshot", FOUR_SETS, (48,), AT_ONCE),
    "faithful": lambda: _grid("faithful", FOUR_SETS, (48,), ("paper-large",)),
    "range": lambda: _grid("range", ("sine",), (48,), (LIMITED,)),
    "long": lambda: _grid("long", ("etth",), (96, 192)),
    "natural": lambda: _grid("natural", ("physionet2012", "nycweather"), (48,)),
    "ablation": _ablation,
    "ensemble": lambda: _grid("ensemble", FOUR_SETS, (48,), method="mdtim-ensemble"),
    "limit": lambda: (
        _grid("limit", ("linear_gaussian",), (48,), ("base", *AT_ONCE))
        + _grid("limit", ("linear_gaussian",), (48,), ("",), method="optimum")
    ),
    "downstream": _downstream,
    "efficiency": _efficiency,
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
        if not own and method in BOUNDS:
            raise ValueError(f"this experiment has no cells of {method!r}, which others have")
        is_ours = method.startswith("mdtim")
        if is_ours and method not in OURS:
            raise ValueError(f"unknown method {method!r}; of mdtim there are {', '.join(OURS)}")
        masks = [replace(cell, method=method) for cell in cells if cell.method.startswith("mdtim")]
        if not is_ours or settings != "default":  # else the presets that the experiment has
            masks = [replace(cell, preset=settings) for cell in masks]
        chosen += own or list(dict.fromkeys(masks))
    return chosen


def config_of(name: str, dataset: str) -> ModelConfig:
    """Configuration of a cell: a preset and its changes, such as `large+cosine=False`.

    Examples
    --------
    >>> config_of("large+num_bins=100", "etth").tokenizer.num_bins
    100
    """
    base, *changes = name.split("+")
    config = preset(base)
    if dataset == "physionet2012":
        # As in the paper: irregular sampling has no spectrum to be consistent with.
        config = config.change(spectral_weight=0.0)
    try:
        return config.change(**dict(map(_parse, changes)))
    except TypeError as error:  # a word where a number belongs
        raise ValueError(f"{name!r} cannot be: {error}") from error


def _parse(change: str) -> tuple[str, bool | int | float | str]:
    key, _, text = change.partition("=")
    if text in ("True", "False"):
        return key, text == "True"
    if text.isalpha():
        return key, text
    try:
        return key, int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError as error:
        raise ValueError(f"{change!r} has no value that can be read; write name=value") from error
