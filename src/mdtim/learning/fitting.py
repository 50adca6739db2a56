"""From a panel to a trained, validated and calibrated network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mdtim.autowindow import season_length
from mdtim.baselines.simple import interpolate
from mdtim.calibration import Calibration
from mdtim.closed_form.rowwise import RowModel
from mdtim.config import ModelConfig
from mdtim.corrections import Corrections
from mdtim.inference import Predictor
from mdtim.learning.lessons import TrainingData, ValidationCells, held_out_cells
from mdtim.learning.outages import HiddenWindows, hide_outages
from mdtim.learning.readings import hide_readings
from mdtim.learning.relations import read_relations
from mdtim.learning.training import Progress, Trainer
from mdtim.masks import MaskMix
from mdtim.missingness import joint_share, points_and_runs
from mdtim.network import FactorizedDiT
from mdtim.panel import BoolArray, FloatArray, IntArray, Panel, gap_lengths
from mdtim.readout import label_blur
from mdtim.runtime import own_random_state
from mdtim.series import DeviceSeries, DeviceWindows
from mdtim.stacking import MIN_READINGS, Stack
from mdtim.threads import threads_for_batches
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


@threads_for_batches()
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
    observed = panel.observed
    _, _, lengths = gap_lengths(observed, panel.offsets)
    max_cells = MAX_VALIDATION_CELLS
    if not config.training.max_steps:
        share = SHARE_WITHOUT_TRAINING if observed.sum() > SMALL_TABLE else 1.0
        validation_share = max(validation_share, share)
        max_cells = MAX_CELLS_WITHOUT_TRAINING
    num_blocks = int((panel.lengths // window).sum())
    if MOST_HELD * num_blocks >= HELD_WINDOWS:
        validation_share = max(validation_share, HELD_WINDOWS / num_blocks)
    observed_N = np.asarray(observed.any(axis=1))
    training, validation = hold_out(observed_N, panel.offsets, window, validation_share, generator)
    limit = max_cells // (window * len(panel.variates))
    limit = max(MIN_VALIDATION_WINDOWS, min(limit, MAX_VALIDATION_WINDOWS))
    if len(validation) > limit:
        chosen = generator.permutation(len(validation))[:limit]
        validation = validation.take(np.sort(chosen))
    joint = joint_share(observed)
    hidden_NV = points_and_runs(observed, panel.offsets, VALIDATION_RATE, generator, lengths, joint)
    inner_WT = _inner_steps(validation, panel.offsets)
    inner_N = np.zeros(len(observed), dtype=bool)
    inner_N[(validation.starts[:, None] + np.arange(window))[inner_WT]] = True
    hidden_NV &= inner_N[:, None]
    # What interpolation would say, the hidden cells not known; only the stack looks at it.
    shown = np.where(hidden_NV, np.nan, standardized.astype(np.float64))
    shares_rows = _overlaps(training, validation)
    line = interpolate(shown, panel.offsets)
    series = DeviceSeries.put(standardized, device, line)
    held = DeviceWindows.put(validation, device)
    hidden = DeviceSeries.put(hidden_NV.astype(np.float32), device)
    hidden_WTV = hidden.gather(held.starts, held.ends, window).values_BTV > 0
    data = TrainingData(
        series,
        DeviceWindows.put(training, device),
        held,
        hidden_WTV & torch.from_numpy(inner_WT).to(device)[:, :, None],
        MaskMix.from_config(
            config.diffusion,
            torch.from_numpy(lengths).float().to(device) if len(lengths) else None,
            joint,
        ),
        config.training.batch_size,
        DeviceSeries.put(shown.astype(np.float32), device) if shares_rows else None,
    )
    network = pretrained
    if network is None:
        network = new_network(config, len(panel.variates), seed).to(device)
    covering = covering_windows(panel.offsets, window)
    if config.network.relates:
        _learn_relations(network, shown, covering, device)
    ended = "not trained" if pretrained is None else "pretrained, not trained on this table"
    progress = Progress()
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
    network.eval()
    season, rows, outages = None, None, None
    if stack:
        season, rows = season_length(panel), RowModel.fit(shown, panel.offsets)
    if stack and not config.training.max_steps:
        anywhere = every_window(panel.offsets, window)
        outages = _outages(data, standardized, panel.offsets, anywhere, lengths, joint, generator)
    elif stack and not shares_rows:  # else training has seen all there is
        outages = _outages(data, standardized, panel.offsets, validation, lengths, joint, generator)
    predictor = Predictor(network, config, seed, season=season, rows=rows)
    readings: list[ValidationCells] = []
    if stack and not config.training.max_steps:
        readings = _readings(predictor, data, standardized, panel.offsets, covering, generator)
    elif stack and not shares_rows:
        readings = _readings(predictor, data, standardized, panel.offsets, validation, generator)
    if readings and config.network.relates:
        _learn_relations(network, shown, covering, device)
    corrections, scores = _correct(predictor, data, outages, readings, stack, calibrate)
    # The score is known now: what was held out may tell of the relations and the rows too.
    if config.network.relates:
        _learn_relations(network, standardized.astype(np.float64), covering, device)
    if corrections.rows is not None:
        whole = RowModel.fit(standardized.astype(np.float64), panel.offsets)
        judged = replace(whole, seldom_V=corrections.rows.seldom_V)  # asked as they were then
        corrections = replace(corrections, rows=judged)
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


def new_network(config: ModelConfig, num_variates: int, seed: int) -> FactorizedDiT:
    """An untrained network; its weights are drawn on the CPU, so that they are alike anywhere."""
    with own_random_state():
        torch.default_generator.manual_seed(seed)
        return FactorizedDiT(config.network, config.tokenizer, num_variates)


def _learn_relations(
    network: FactorizedDiT, values_NV: FloatArray, covering: WindowIndex, device: torch.device
) -> None:
    series = DeviceSeries.put(values_NV.astype(np.float32), device)
    network.learn_relations(read_relations(series, covering, network.config.prior))


def _outages(
    data: TrainingData,
    standardized: NDArray[np.float32],
    offsets: IntArray,
    windows: WindowIndex,
    lengths: IntArray,
    joint: float,
    generator: np.random.Generator,
) -> TrainingData | None:
    """The same for windows with a long gap in each; None if the table has no long gaps."""
    found = hide_outages(standardized, offsets, windows, lengths, joint, generator)
    return None if found is None else _of_hidden(data, found)


def _readings(
    predictor: Predictor,
    data: TrainingData,
    standardized: NDArray[np.float32],
    offsets: IntArray,
    windows: WindowIndex,
    generator: np.random.Generator,
) -> list[ValidationCells]:
    """Held-out readings of variates that are seldom known, with what all say about them.

    What the network knows of the relations is, behind this, that of the last fold.
    """
    network, config, said = predictor.network, predictor.config, []
    covering, inner_WT = covering_windows(offsets, windows.length), _inner_steps(windows, offsets)
    for found, rest_NV in hide_readings(standardized, offsets, windows, inner_WT, generator):
        if network.config.relates:
            _learn_relations(network, rest_NV, covering, data.device)
        rows = RowModel.fit(rest_NV, offsets)
        asked = Predictor(network, config, predictor.seed, season=predictor.season, rows=rows)
        cells = held_out_cells(asked, _of_hidden(data, found))
        assert cells is not None
        said.append(cells)
    return said


def _of_hidden(data: TrainingData, found: HiddenWindows) -> TrainingData:
    """The same for other windows."""
    return replace(
        data,
        series=DeviceSeries.put(found.values_NV, data.device, found.line_NV),
        validation=DeviceWindows.put(found.windows, data.device),
        hidden_WTV=torch.from_numpy(found.hidden_WTV).to(data.device),
    )


def _correct(
    predictor: Predictor,
    data: TrainingData,
    outages: TrainingData | None,
    readings: list[ValidationCells],
    stack: bool,
    calibrate: bool,
) -> tuple[Corrections, dict[str, float | None]]:
    """Fit the corrections to the held-out cells, and score what they lead to on those cells."""
    cells = held_out_cells(predictor, data)
    if cells is None:
        unknown = ("validation_mae", "linear_mae", "validation_crps", "coverage90")
        return Corrections(), dict.fromkeys(unknown)
    num_variates = data.series.values_NV.shape[1]
    told, seldom = cells, torch.tensor([], dtype=torch.int64)
    if readings:  # where there are enough, they alone tell what will be asked of their variates
        judged = torch.cat([some.said.at.variate for some in readings])
        seldom = (judged.bincount(minlength=num_variates) >= MIN_READINGS).nonzero().squeeze(1)
        told = reduce(ValidationCells.join, readings, cells.without(seldom))
    fitted_stack, stacked = None, cells.said.distribution
    said, at = told.said.distribution, told.said.at
    if stack:
        far = None if outages is None else held_out_cells(predictor, outages)
        known = told if far is None else told.join(far.without(seldom))
        assert predictor.rows is not None
        is_seldom = predictor.rows.seldom_V.tolist()
        fitted_stack = Stack.fit(known.said, known.truth, num_variates, is_seldom)
        stacked, said = (fitted_stack.apply(one.said) for one in (cells, told))
    calibration, final = None, stacked
    if calibrate:
        blur = label_blur(predictor.config.diffusion)
        calibration = Calibration.fit(said, told.truth, at, blur, num_variates)
        final = calibration.apply(stacked, cells.said.at)
    level = final.cdf(cells.truth)
    has_rows = fitted_stack is not None and fitted_stack.is_rowwise
    rows = predictor.rows if has_rows else None
    return Corrections(fitted_stack, calibration, predictor.season, rows), {
        "validation_mae": float((predictor.filled(stacked) - cells.truth).abs().mean()),
        "linear_mae": float((cells.said.sides.linear.nan_to_num(0.0) - cells.truth).abs().mean()),
        "validation_crps": float(final.crps(cells.truth).mean()),
        "coverage90": float(((level >= 0.05) & (level <= 0.95)).double().mean()),
    }


def _inner_steps(validation: WindowIndex, offsets: IntArray) -> BoolArray:
    """(W, T) steps in the middle of a validation window, or towards an end of its series.

    When a table is filled, windows overlap and a cell is read off where it lies in the middle. A
    score at the edge of a window, where only one side is visible, would be that of another task.
    """
    margin = validation.length // 4
    stops = np.minimum(validation.starts + validation.length, validation.ends)
    left = np.where(np.isin(validation.starts, offsets), 0, margin)
    right = stops - validation.starts - np.where(np.isin(stops, offsets), 0, margin)
    step_T = np.arange(validation.length)
    return (step_T >= left[:, None]) & (step_T < right[:, None])


def _overlaps(training: WindowIndex, validation: WindowIndex) -> bool:
    return bool(np.isin(validation.starts, training.starts).any())
