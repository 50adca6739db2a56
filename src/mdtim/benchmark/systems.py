"""A compared system in an experiment: the windows and the masks that mdtim gets, and its scores.

W windows, T steps, V variates.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mdtim import metrics
from mdtim.baselines.protocol import HeldOut, Trained, WindowImputer, conceal
from mdtim.baselines.registry import build
from mdtim.baselines.settings import settings_of
from mdtim.benchmark.experiments import Cell
from mdtim.benchmark.scoring import Scores, hidden_mask, validation_windows, windows_within
from mdtim.checkpoint import load_folder, save_folder
from mdtim.datasets import Dataset
from mdtim.panel import BoolArray, FloatArray
from mdtim.windows import WindowIndex

FILL_AT_ONCE = 256
"""Windows whose samples are held in memory together."""


class FittedSystem:
    """A system fitted to one data set; one that trains is kept in a folder."""

    def __init__(self, cell: Cell, dataset: Dataset, device: torch.device, folder: Path) -> None:
        self.cell = cell
        self.dataset = dataset
        self.device = device
        self.folder = folder
        self.settings = settings_of(cell.method, cell.dataset, cell.preset)
        self.imputer = self._build(self.settings.limits.max_minutes)
        self.train_seconds = 0.0
        self.peak_memory_gb: float | None = None

    def _build(self, max_minutes: float) -> WindowImputer:
        limits = replace(self.settings.limits, max_minutes=max_minutes)
        settings = replace(self.settings, limits=limits)
        num_variates = self.dataset.values.shape[1]
        return build(settings, self.cell.window, num_variates, self.cell.train_seed, self.device)

    @property
    def params(self) -> int:
        """Number of trained numbers."""
        return self.imputer.num_parameters

    def prepare(self, max_seconds: float, log: Callable[[str], None]) -> bool:
        """Load the system, or fit it; False if the run's time was not enough for its limit."""
        if isinstance(self.imputer, Trained) and (self.folder / "config.json").exists():
            document, tensors = load_folder(self.folder)
            self.imputer.restore(tensors)
            self.train_seconds = document["train_seconds"]
            self.peak_memory_gb = document["peak_memory_gb"]
            return True
        log(f"  settings: {self.settings.source}")
        allowed = 60 * self.settings.limits.max_minutes
        if max_seconds < allowed:
            self.imputer = self._build(max_seconds / 60)
        index, hidden = validation_windows(self.dataset, self.cell.window)
        training = windows_within(self.dataset, self.dataset.training, self.cell.window)
        validation = HeldOut(gather(self.dataset, index), hidden)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        began = time.monotonic()
        self.imputer.fit(gather(self.dataset, training), validation)
        self.train_seconds = time.monotonic() - began
        if max_seconds < allowed and self.train_seconds > max_seconds:
            log(f"  needs up to {allowed / 60:g} minutes; give the run more, or lower max_minutes")
            return False
        if self.device.type == "cuda":
            self.peak_memory_gb = torch.cuda.max_memory_allocated(self.device) / 1e9
        log(f"  fitted in {self.train_seconds:.1f} s, {self.params:,} parameters")
        if isinstance(self.imputer, Trained):
            document = {
                "kind": "system",
                "settings": self.settings.values,
                "train_seconds": self.train_seconds,
                "peak_memory_gb": self.peak_memory_gb,
            }
            save_folder(self.folder, document, self.imputer.state())
        return True

    def score(self, cell: Cell) -> Scores:
        """Score the system on one mask of the test windows."""
        index = windows_within(self.dataset, self.dataset.test, cell.window)
        windows_WTV = gather(self.dataset, index)
        num_windows, num_steps, num_variates = windows_WTV.shape
        shape = num_windows, num_steps, num_variates
        hidden_WTV = hidden_mask(cell.pattern, shape, cell.rate, cell.mask_seed)
        return score_system(self.imputer, windows_WTV, hidden_WTV, self.dataset.unit)


def gather(dataset: Dataset, index: WindowIndex) -> NDArray[np.float32]:
    """(W, T, V) the windows themselves, NaN where missing."""
    assert (index.starts + index.length <= index.ends).all(), "a series is shorter than a window"
    rows = index.starts[:, None] + np.arange(index.length)
    windows: NDArray[np.float32] = dataset.values.astype(np.float32)[rows]
    return windows


def score_system(
    imputer: WindowImputer,
    windows_WTV: NDArray[np.float32],
    hidden_WTV: BoolArray,
    unit_V: FloatArray,
) -> Scores:
    """Put NaN at the hidden cells, let the system fill them, and compare.

    CRPS and coverage of the middle 90 % are taken where the system gives samples.
    """
    totals: dict[str, float] = {}
    count, seconds = 0, 0.0
    for begin in range(0, len(windows_WTV), FILL_AT_ONCE):
        part = slice(begin, begin + FILL_AT_ONCE)
        truth, hidden = windows_WTV[part], hidden_WTV[part]
        scored = hidden & ~np.isnan(truth)
        if not scored.any():
            continue
        began = time.perf_counter()
        filled = imputer.fill(conceal(truth, hidden))
        seconds += time.perf_counter() - began
        estimate, target = filled.values_WTV * unit_V, truth * unit_V
        found = {
            "mae": metrics.mae(target, estimate, scored),
            "mse": metrics.mse(target, estimate, scored),
        }
        if filled.samples_SWTV is not None:
            samples = filled.samples_SWTV * unit_V
            lower, upper = np.quantile(samples, [0.05, 0.95], axis=0)
            found["crps"] = metrics.sample_crps(target, samples, scored)
            found["coverage90"] = metrics.coverage(target, lower, upper, scored)
        cells = int(scored.sum())
        count += cells
        for name, value in found.items():
            totals[name] = totals.get(name, 0.0) + cells * value
    if not count:
        raise ValueError("no cell of the test windows is hidden: there is nothing to score")
    means = {name: total / count for name, total in totals.items()}
    return Scores(
        means["mae"], means["mse"], means.get("crps"), None, means.get("coverage90"), seconds
    )
