"""From a panel to a trained, validated and calibrated network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mdtim.baselines.simple import interpolate
from mdtim.config import ModelConfig
from mdtim.corrections import Corrections
from mdtim.learning.judging import Judge, Shown, inner_steps
from mdtim.learning.lessons import TrainingData
from mdtim.learning.training import Progress, Trainer
from mdtim.masks import MaskMix
from mdtim.missingness import joint_share, points_and_runs
from mdtim.network import FactorizedDiT
from mdtim.panel import BoolArray, Panel, gap_lengths
from mdtim.runtime import own_random_state
from mdtim.series import DeviceSeries, DeviceWindows
from mdtim.windows import WindowIndex, covering_windows, every_window, hold_out

VALIDATION_RATE = 0.2
"""Share of the observed validation cells that are hidden to be predicted."""
MIN_VALIDATION_WINDOWS, MAX_VALIDATION_WINDOWS = 16, 256
MAX_VALIDATION_CELLS = 150_000
"""Enough to tell better from worse; more would only cost time."""
SHARE_WITHOUT_TRAINING, MAX_CELLS_WITHOUT_TRAINING = 0.4, 50_000
"""Where nothing is trained, nothing is lost by holding out more, and it is looked at but once."""
HELD_WINDOWS, MOST_HELD = 8, 0.25
"""Fewer windows than so many tell too little of how sure a network can be: they are held out where
that is no more than a quarter of the table."""
SMALL_TABLE = 12_500
"""Observed cells below which even that is too little to calibrate by: then some of all windows."""


@dataclass(frozen=True)
class FitReport:
    """How a fit went, over held-out hidden cells.

    Errors are in units of each column's std, or of each series' where these differ much in size.
    """

    reason: str
    """Why training stopped."""
    steps: int
    best_step: int
    seconds: float
    parameters: int
    validation_mae: float | None
    """None where there was nothing to validate on."""
    linear_mae: float | None
    """Linear interpolation over the same cells."""
    validation_crps: float | None
    coverage90: float | None
    """Share of the validation cells inside their 90 % interval."""
    held_out: bool
    """Whether whole windows were: else, in a small table, single cells of all windows were."""

    @classmethod
    def nothing_to_learn(cls) -> FitReport:
        """Report of a table without a single varying column."""
        return cls("no column varies", 0, 0, 0.0, 0, None, None, None, None, False)

    @property
    def better_than_linear(self) -> bool:
        """Whether the model beats linear interpolation on the validation cells."""
        return (
            self.validation_mae is not None
            and self.linear_mae is not None
            and self.validation_mae < self.linear_mae
        )


def fit_network(
    panel: Panel,
    standardized: NDArray[np.float32],
    config: ModelConfig,
    window: int,
    *,
    device: torch.device,
    seed: int,
    validation_share: float,
    stack: bool,
    calibrate: bool,
    max_seconds: float | None,
    checkpoint: Path | None,
    checkpoint_every: int,
    on_step: Callable[[Progress, float], None] | None,
    pretrained: FactorizedDiT | None = None,
) -> tuple[FactorizedDiT, Corrections, FitReport]:
    """Train on the panel's windows, hold some out, calibrate on them.

    Parameters
    ----------
    panel : Panel of the varying variates
    standardized : (N, V) float32, its values, NaN where missing
    pretrained : a network to start from, on the device; training never makes it worse
    """
    generator = np.random.default_rng(seed)
    training, validation = _divide(
        panel, window, bool(config.training.max_steps), validation_share, generator
    )
    shares_rows = _overlaps(training, validation)
    hidden_NV, inner_WT, shown = _hide(panel, standardized, validation, generator)
    # What interpolation and what is usual would say; only the corrections look at it.
    line, usual = interpolate(shown.values_NV, panel.offsets), shown.usual if stack else None
    held = DeviceWindows.put(validation, device)
    hidden = DeviceSeries.put(hidden_NV.astype(np.float32), device)
    hidden_WTV = hidden.gather(held.starts, held.ends, window).values_BTV > 0
    lengths = shown.lengths
    data = TrainingData(
        DeviceSeries.put(standardized, device, line, usual=usual),
        DeviceWindows.put(training, device),
        held,
        hidden_WTV & torch.from_numpy(inner_WT).to(device)[:, :, None],
        MaskMix.from_config(
            config.diffusion,
            torch.from_numpy(lengths).float().to(device) if len(lengths) else None,
            shown.joint,
        ),
        config.training.batch_size,
        DeviceSeries.put(shown.values_NV.astype(np.float32), device) if shares_rows else None,
    )
    network = pretrained
    if network is None:
        network = new_network(config, len(panel.variates), seed).to(device)
    judge = Judge(network, config, seed, data, shown)
    judge.learn_relations(shown.values_NV)
    ended = "not trained" if pretrained is None else "pretrained, not trained on this table"
    progress = Progress()
    # Where nothing was trained, any window tells; else those that training has not seen.
    outages_in: WindowIndex | None = every_window(panel.offsets, window)
    readings_in: WindowIndex | None = covering_windows(panel.offsets, window)
    if config.training.max_steps:
        config = replace(config, training=config.training.limited_to(training))
        trainer = Trainer(network, config, data, seed)
        if checkpoint is not None and (checkpoint / "config.json").exists():
            trainer.resume(checkpoint)
        ended = trainer.run(
            max_seconds=max_seconds,
            on_step=on_step,
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
            validate_first=pretrained is not None,
        )
        progress = trainer.progress
        outages_in = readings_in = None if shares_rows else validation
    network.eval()
    corrections, scores = judge.correct(
        stack=stack,
        calibrate=calibrate,
        outages_in=outages_in,
        readings_in=readings_in,
        generator=generator,
    )
    report = FitReport(
        reason=ended,
        steps=progress.step,
        best_step=progress.best_step,
        seconds=progress.seconds,
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        **scores,
        held_out=len(validation) > 0 and not shares_rows,
    )
    return network, corrections, report


def _divide(
    panel: Panel, window: int, trains: bool, share: float, generator: np.random.Generator
) -> tuple[WindowIndex, WindowIndex]:
    """Windows to learn from, and held-out ones."""
    observed, max_cells = panel.observed, MAX_VALIDATION_CELLS
    if not trains:
        share = max(share, SHARE_WITHOUT_TRAINING if observed.sum() > SMALL_TABLE else 1.0)
        max_cells = MAX_CELLS_WITHOUT_TRAINING
    num_blocks = int((panel.lengths // window).sum())
    if MOST_HELD * num_blocks >= HELD_WINDOWS:
        share = max(share, HELD_WINDOWS / num_blocks)
    observed_N = np.asarray(observed.any(axis=1))
    training, validation = hold_out(observed_N, panel.offsets, window, share, generator)
    limit = max_cells // (window * len(panel.variates))
    limit = max(MIN_VALIDATION_WINDOWS, min(limit, MAX_VALIDATION_WINDOWS))
    if len(validation) > limit:
        chosen = generator.permutation(len(validation))[:limit]
        validation = validation.take(np.sort(chosen))
    return training, validation


def _hide(
    panel: Panel,
    standardized: NDArray[np.float32],
    validation: WindowIndex,
    generator: np.random.Generator,
) -> tuple[BoolArray, BoolArray, Shown]:
    """Which cells (N, V) of the held-out windows are hidden, where they count, and the rest."""
    observed = panel.observed
    _, _, lengths = gap_lengths(observed, panel.offsets)
    joint = joint_share(observed)
    hidden_NV = points_and_runs(observed, panel.offsets, VALIDATION_RATE, generator, lengths, joint)
    inner_WT = inner_steps(validation, panel.offsets)
    inner_N = np.zeros(len(observed), dtype=bool)
    inner_N[(validation.starts[:, None] + np.arange(validation.length))[inner_WT]] = True
    hidden_NV &= inner_N[:, None]
    values_NV = np.where(hidden_NV, np.nan, standardized.astype(np.float64))
    return hidden_NV, inner_WT, Shown(panel, standardized, values_NV, lengths, joint)


def new_network(config: ModelConfig, num_variates: int, seed: int) -> FactorizedDiT:
    """An untrained network; its weights are drawn on the CPU, so that they are alike anywhere."""
    with own_random_state():
        torch.default_generator.manual_seed(seed)
        return FactorizedDiT(config.network, config.tokenizer, num_variates)


def _overlaps(training: WindowIndex, validation: WindowIndex) -> bool:
    return bool(np.isin(validation.starts, training.starts).any())
