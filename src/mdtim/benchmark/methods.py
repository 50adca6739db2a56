"""From the name of a method to something that can be asked about hidden cells."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from mdtim.benchmark.experiments import OURS, Cell
from mdtim.benchmark.scoring import Said, Say, TestWindows
from mdtim.benchmark.systems import FittedSystem
from mdtim.benchmark.trained import TrainedModel, fit_calibration
from mdtim.datasets import LINEAR_GAUSSIAN
from mdtim.distribution import GaussianDistribution
from mdtim.inference import Predictor
from mdtim.series import WindowBatch
from mdtim.tokenizer import WindowScale
from mdtim.wanted import Wanted


@dataclass(frozen=True)
class Method:
    """A method that is ready to be scored, and what it took to get there."""

    say: Say
    params: int | None = None
    train_seconds: float | None = None
    peak_memory_gb: float | None = None
    compiles: bool = False
    """Whether the first batches take longer than all others."""


class Ensemble(Predictor):
    """Networks of one configuration and data set whose distributions are averaged."""

    def __init__(self, members: Sequence[Predictor]) -> None:
        first = members[0]
        super().__init__(first.network, first.config, first.seed)
        self.members = members

    def probs(
        self,
        values_BTV: Tensor,
        visible_BTV: Tensor,
        keys_BTV: Tensor,
        wanted: Wanted | None = None,
    ) -> tuple[Tensor, WindowScale]:
        """Average what the members predict; the window's scale is the same for all."""
        total, scale = self.members[0].probs(values_BTV, visible_BTV, keys_BTV, wanted)
        for member in self.members[1:]:
            total = total + member.probs(values_BTV, visible_BTV, keys_BTV, wanted)[0]
        return total / len(self.members), scale


def prepare(
    cell: Cell, test: TestWindows, runs: Path, limit: float, log: Callable[[str], None]
) -> Method | None:
    """Train or load what the method of a cell needs; None if the time was not enough.

    Parameters
    ----------
    limit : when to stop, on the clock of `time.monotonic`
    """
    if cell.method == "optimum":
        if cell.dataset != "linear_gaussian":
            raise ValueError(f"the optimum is known for linear_gaussian, not for {cell.dataset}")
        return Method(optimum_says)
    if cell.method == "clean":
        return Method(truth_says)
    if cell.settings is not None:
        return _system(FittedSystem(cell, test.dataset, test.device, runs), limit, log)
    assert cell.method in OURS, f"unknown method {cell.method!r}"
    models = []
    for seed in cell.train_seeds:
        model = TrainedModel(replace(cell, train_seed=seed), test.dataset, test.series, runs)
        if not model.prepare(limit - time.monotonic(), log):
            return None
        models.append(model)
    predictor = models[0].predictor()
    if cell.method == "mdtim-ensemble":
        predictor = Ensemble([model.predictor() for model in models])
        predictor.calibration = fit_calibration(predictor, models[0].training_data())
    if cell.method == "mdtim-argmax":
        predictor.config = predictor.config.change(estimate="mode")
    return Method(
        network_says(predictor),
        sum(model.params for model in models),
        sum(model.train_seconds for model in models),
        max(model.peak_memory_gb for model in models),
        compiles=True,
    )


def _system(system: FittedSystem, limit: float, log: Callable[[str], None]) -> Method | None:
    """A compared system as a method, fitted or loaded."""
    if not system.prepare(limit - time.monotonic(), log):
        return None
    figures = system.params, system.train_seconds, system.peak_memory_gb
    return Method(system.say, *figures, compiles=system.device.type == "cuda")


def network_says(predictor: Predictor) -> Say:
    """What a network says: what it fills in, and the calibrated distribution around it."""

    def say(batch: WindowBatch, visible_BTV: Tensor, scored_BTV: Tensor) -> Said:
        said = predictor.cells(batch, visible_BTV, scored_BTV)
        return Said(said.filled, lambda: predictor.calibrated(said.distribution, said.at))

    return say


def optimum_says(batch: WindowBatch, visible_BTV: Tensor, scored_BTV: Tensor) -> Said:
    """The conditional law of the linear-Gaussian process, given the window's visible cells."""
    values, visible = (part.cpu().numpy() for part in (batch.values_BTV.double(), visible_BTV))
    mean_BTV, variance_BTV = LINEAR_GAUSSIAN.smooth(values, visible)
    mean, variance = (
        torch.from_numpy(part).to(scored_BTV.device)[scored_BTV]
        for part in (mean_BTV, variance_BTV)
    )
    return Said(mean, lambda: GaussianDistribution(mean, variance.sqrt()))


def truth_says(batch: WindowBatch, visible_BTV: Tensor, scored_BTV: Tensor) -> Said:
    """What was hidden: the reference that nothing else can reach."""
    truth = batch.values_BTV[scored_BTV].double()
    return Said(truth, lambda: GaussianDistribution(truth, torch.zeros_like(truth)))
