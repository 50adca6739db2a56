"""Hide cells of the test windows, ask a method about them, and take every score of the paper.

W windows, T steps, V variates, C scored cells, K bins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from mdtim import missingness
from mdtim.benchmark.experiments import PATTERNS
from mdtim.config import TokenizerConfig
from mdtim.datasets import Dataset
from mdtim.panel import BoolArray, IntArray
from mdtim.series import DeviceSeries, WindowBatch
from mdtim.tokenizer import Tokenizer, window_scale
from mdtim.windows import WindowIndex, every_window

SCORING_BATCH = 512


class Marginal(Protocol):
    """A distribution for each of C cells."""

    def std(self) -> Tensor:
        """(C,) standard deviation."""

    def quantile(self, level: float) -> Tensor:
        """(C,) value below which a share `level` of the mass lies."""

    def cdf(self, value: Tensor) -> Tensor:
        """(C,) probability of being at most `value`."""

    def cdf_at(self, points: Tensor) -> Tensor:
        """(C, P) probability of being at most each of P points."""

    def crps(self, truth: Tensor) -> Tensor:
        """(C,) continuous ranked probability score."""


@dataclass(frozen=True, eq=False)
class Said:
    """What a method says about C cells, in standardized units."""

    estimate: Tensor
    """(C,) float64, the filled values."""
    distribution: Callable[[], Marginal] | None
    """Made when asked for: a fill alone does not need it. None if the method gives values alone."""


Say = Callable[[WindowBatch, Tensor, Tensor], Said]
"""(batch, visible_BTV, scored_BTV) → what is said about the scored cells, from visible ones."""


@dataclass(frozen=True)
class Scores:
    """Errors over the hidden cells, in the paper's units."""

    mae: float
    mse: float
    crps: float | None
    """None, as the next two, where a method gives no distributions."""
    crps_window: float | None
    """As the paper's authors computed it: in window units, truth clipped to the output range."""
    coverage90: float | None
    impute_seconds: float


def windows_within(dataset: Dataset, rows: tuple[int, int], window: int) -> WindowIndex:
    """All stride-1 windows that lie inside [first, last) rows, series by series."""
    first, last = rows
    offsets: IntArray = np.clip(dataset.offsets, first, last)
    return every_window(np.unique(offsets), window)


def hidden_mask(pattern: str, shape: tuple[int, int, int], rate: float, seed: int) -> BoolArray:
    """The evaluation's mask of a whole test tensor; the pattern `none` hides nothing."""
    if pattern == "none":
        return np.zeros(shape, dtype=bool)
    patterns = {"uniform": missingness.uniform, "geometric": missingness.geometric}
    if pattern not in patterns:
        raise ValueError(f"unknown pattern {pattern!r}; there are {', '.join(patterns)} and none")
    return patterns[pattern](shape, rate, np.random.default_rng(seed))


MAX_VALIDATION_WINDOWS = 1_024


def validation_windows(dataset: Dataset, window: int) -> tuple[WindowIndex, BoolArray]:
    """Windows for early stopping, the same for every method, hidden in every way the test is.

    Returns
    -------
    index : at most 1,024 windows, evenly chosen
    hidden_WTV : a sixth of the windows hidden by each pattern and rate
    """
    index = windows_within(dataset, dataset.validation, window)
    every = -(-len(index) // MAX_VALIDATION_WINDOWS)
    index = index.take(np.arange(0, len(index), every))
    shape = (len(index), window, dataset.values.shape[1])
    hidden = np.zeros(shape, dtype=bool)
    ways = list(product(PATTERNS, missingness.RATES))
    for way, (pattern, rate) in enumerate(ways):
        every_way = hidden_mask(pattern, shape, rate, 1_000 + way)
        hidden[way :: len(ways)] = every_way[way :: len(ways)]
    return index, hidden


@dataclass(frozen=True, eq=False)
class HiddenBatch:
    """Some windows with what is hidden of them."""

    batch: WindowBatch
    visible_BTV: Tensor
    scored_BTV: Tensor
    """bool, hidden and known."""


@dataclass(frozen=True, eq=False)
class TestWindows:
    """The test windows of a data set, each seen by itself, on one device."""

    dataset: Dataset
    index: WindowIndex
    series: DeviceSeries
    device: torch.device

    __test__ = False  # for pytest: not a test

    @classmethod
    def put(cls, dataset: Dataset, window: int, device: torch.device) -> TestWindows:
        """Cut the windows and move the series onto the device."""
        series = DeviceSeries.put(dataset.values.astype(np.float32), device)
        return cls(dataset, windows_within(dataset, dataset.test, window), series, device)

    @property
    def shape(self) -> tuple[int, int, int]:
        """W, T, V."""
        return len(self.index), self.index.length, self.dataset.values.shape[1]

    def take(self, which: IntArray) -> TestWindows:
        """Only the chosen windows."""
        return TestWindows(self.dataset, self.index.take(which), self.series, self.device)

    def hide(self, hidden_WTV: BoolArray, batch_size: int = SCORING_BATCH) -> Iterator[HiddenBatch]:
        """Yield all windows, batch by batch."""
        hidden = torch.from_numpy(hidden_WTV).to(self.device)
        begin = 0
        for batch in self.series.batches(self.index, batch_size):
            scored = hidden[begin : begin + batch.count] & batch.observed_BTV
            begin += batch.count
            yield HiddenBatch(batch, batch.observed_BTV & ~scored, scored)

    def warm_up(self, say: Say) -> None:
        """Let a method compile what it compiles, so that it is not timed."""
        # A whole batch and a short one, which may be compiled apart.
        first = self.take(np.arange(min(SCORING_BATCH + 1, len(self.index))))
        for part in first.hide(hidden_mask("uniform", first.shape, 0.5, 0)):
            say(part.batch, part.visible_BTV, part.scored_BTV)

    def fill(
        self, say: Say, hidden_WTV: BoolArray, batch_size: int = SCORING_BATCH
    ) -> FilledWindows:
        """Let a method fill the hidden cells of every window."""
        unit_V = torch.from_numpy(self.dataset.unit).to(self.device)
        filled = []
        totals: dict[str, float] = {}
        count, seconds = 0, 0.0
        for part in self.hide(hidden_WTV, batch_size):
            said, took = _timed(say, part, self.device)
            seconds += took
            values = part.batch.values_BTV.clone()
            values[part.scored_BTV] = said.estimate.to(values.dtype)
            filled.append(values)
            for name, total in _sums(said, part, unit_V).items():
                totals[name] = totals.get(name, 0.0) + float(total)
            count += int(part.scored_BTV.sum())
        return FilledWindows(torch.cat(filled), seconds, totals, count)


@dataclass(frozen=True, eq=False)
class FilledWindows:
    """All test windows as one method filled them, and the errors it made."""

    values_WTV: Tensor
    """float32, standardized; 0 where missing."""
    seconds: float
    """What the method took."""
    totals: dict[str, float]
    """Sums over the scored cells, by the names of the scores."""
    count: int
    """Scored cells."""

    def scores(self) -> Scores:
        """Means over the scored cells."""
        if not self.count:
            raise ValueError("no known cell of the test windows is hidden: nothing to score")
        means = {name: total / self.count for name, total in self.totals.items()}
        crps, crps_window = means.get("crps"), means.get("crps_window")
        coverage = means.get("coverage90")
        return Scores(means["mae"], means["mse"], crps, crps_window, coverage, self.seconds)


def _timed(say: Say, part: HiddenBatch, device: torch.device) -> tuple[Said, float]:
    _synchronize(device)
    began = time.perf_counter()
    said = say(part.batch, part.visible_BTV, part.scored_BTV)
    _synchronize(device)
    return said, time.perf_counter() - began


def _sums(said: Said, part: HiddenBatch, unit_V: Tensor) -> dict[str, Tensor]:
    """Sums over the scored cells, by the names of the scores."""
    scored = part.scored_BTV
    truth = part.batch.values_BTV[scored].double()
    unit = unit_V.expand(scored.shape)[scored]
    error = (said.estimate - truth) * unit
    sums = {"mae": error.abs().sum(), "mse": (error**2).sum()}
    if said.distribution is None:
        return sums
    distribution = said.distribution()
    level = distribution.cdf(truth)
    return sums | {
        "crps": (distribution.crps(truth) * unit).sum(),
        "crps_window": window_crps(distribution, truth, part, unit_V).sum(),
        "coverage90": ((level >= 0.05) & (level <= 0.95)).sum(),
    }


WINDOW_GRID = Tokenizer(TokenizerConfig())
"""The paper's 60 output bins: one grid for all methods and configurations."""
WINDOW_RANGE = 1.0
"""Smallest range of a window in the authors' code, in the units of the score."""


def window_crps(distribution: Marginal, truth: Tensor, part: HiddenBatch, unit_V: Tensor) -> Tensor:
    """(C,) CRPS as a sum over the bins of a window's own grid: (CDF - step)² times the bin width.

    In window units; the truth is clipped to the grid. CDF and step are both taken at the centres
    of the bins.
    """
    scored = part.scored_BTV
    scale = window_scale(part.batch.values_BTV, part.visible_BTV, min_range=0.0)
    half_B1V = torch.maximum(scale.half_B1V.double(), WINDOW_RANGE / 2 / unit_V.double())
    center, half = (
        side.double().expand(scored.shape)[scored] for side in (scale.center_B1V, half_B1V)
    )
    reach = WINDOW_GRID.config.output_range
    x = ((truth - center) / half).clamp(-reach, reach)
    bins = WINDOW_GRID.centers(truth.device).double()
    cumulative = distribution.cdf_at(center[:, None] + half[:, None] * bins)
    step = (bins >= x[:, None]).double()
    return ((cumulative - step) ** 2).sum(-1) * WINDOW_GRID.output_step


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
