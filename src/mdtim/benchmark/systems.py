"""A compared system in an experiment: the windows that mdtim gets, and what it says about them.

W windows, B windows of a batch, T steps, V variates, S samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdtim.baselines.protocol import (
    HeldOut,
    OutOfTime,
    Trained,
    UnreadableModel,
    WindowImputer,
    conceal,
)
from mdtim.baselines.registry import build
from mdtim.benchmark.experiments import Cell
from mdtim.benchmark.rows import short_hash
from mdtim.benchmark.scoring import Said, validation_windows, windows_within
from mdtim.checkpoint import load_folder, save_folder
from mdtim.datasets import Dataset
from mdtim.distribution import SampleDistribution
from mdtim.runtime import tensor_float32
from mdtim.series import WindowBatch
from mdtim.windows import WindowIndex


class FittedSystem:
    """A system fitted to one data set; one that trains is kept in a folder."""

    def __init__(self, cell: Cell, dataset: Dataset, device: torch.device, runs: Path) -> None:
        assert cell.settings is not None, f"{cell.method} is not a compared system"
        self.cell = cell
        self.dataset = dataset
        self.device = device
        self.settings = cell.settings
        key = (cell.dataset, cell.window, cell.method, cell.preset, cell.train_seed)
        self.folder = runs / "-".join(map(str, (*key, short_hash(self.settings.plain()))))
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
            try:
                document, tensors = load_folder(self.folder)
                self.imputer.restore(tensors)
                self.train_seconds = document["train_seconds"]
                self.peak_memory_gb = document["peak_memory_gb"]
            except (ValueError, KeyError, RuntimeError) as error:
                raise UnreadableModel(
                    f"the {self.cell.method} kept in {self.folder} cannot be used ({error}); "
                    "remove the folder to train it again"
                ) from error
            return True
        log(f"  settings: {self.settings.source}")
        allowed = 60 * self.settings.limits.max_minutes
        ask = f"  needs up to {allowed / 60:g} minutes; give the run more, or lower max_minutes"
        if max_seconds < allowed and "lr_drops" in self.settings.values:
            log(ask)  # with less time its rate would drop earlier: another training
            return False
        if max_seconds < allowed:
            self.imputer = self._build(max_seconds / 60)
        index, hidden = validation_windows(self.dataset, self.cell.window)
        training = windows_within(self.dataset, self.dataset.training, self.cell.window)
        validation = HeldOut(gather(self.dataset, index), hidden)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        began = time.monotonic()
        try:
            with tensor_float32(self.device):
                self.imputer.fit(gather(self.dataset, training), validation)
        except OutOfTime:
            if max_seconds >= allowed:
                raise
            log(ask)
            return False
        self.train_seconds = time.monotonic() - began
        if max_seconds < allowed and self.train_seconds > max_seconds:
            log(ask)
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

    def say(self, batch: WindowBatch, visible_BTV: Tensor, scored_BTV: Tensor) -> Said:
        """Put NaN at all cells that are not visible, and let the system fill them."""
        values_BTV, visible = batch.values_BTV.cpu().numpy(), visible_BTV.cpu().numpy()
        with tensor_float32(self.device):
            filled = self.imputer.fill(conceal(values_BTV, ~visible))
        estimate_BTV = torch.from_numpy(filled.values_WTV).to(scored_BTV.device)
        samples_SBTV = filled.samples_SWTV
        if samples_SBTV is None:
            return Said(estimate_BTV[scored_BTV].double(), None)
        samples = torch.from_numpy(samples_SBTV[:, scored_BTV.cpu().numpy()].T)
        return Said(
            estimate_BTV[scored_BTV].double(),
            lambda: SampleDistribution.of(samples.to(scored_BTV.device)),
        )


def gather(dataset: Dataset, index: WindowIndex) -> NDArray[np.float32]:
    """(W, T, V) the windows themselves, NaN where missing."""
    assert (index.starts + index.length <= index.ends).all(), "a series is shorter than a window"
    rows = index.starts[:, None] + np.arange(index.length)
    windows: NDArray[np.float32] = dataset.values.astype(np.float32)[rows]
    return windows
