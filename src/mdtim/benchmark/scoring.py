"""Hide cells of the test windows, predict them, and take every score of the paper.

W windows, T steps, V variates, K bins.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mdtim import missingness
from mdtim.datasets import Dataset
from mdtim.distribution import BinDistribution
from mdtim.inference import Predictor, masked_share
from mdtim.panel import BoolArray, IntArray
from mdtim.series import DeviceSeries, DeviceWindows
from mdtim.windows import WindowIndex, every_window


@dataclass(frozen=True)
class Scores:
    """Errors over the hidden cells, in the paper's units."""

    mae: float
    mse: float
    crps: float | None
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
    """The evaluation's mask of a whole test tensor."""
    patterns = {"uniform": missingness.uniform, "geometric": missingness.geometric}
    if pattern not in patterns:
        raise ValueError(f"unknown pattern {pattern!r}; there are {', '.join(patterns)}")
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
    ways = [(pattern, rate) for pattern in ("uniform", "geometric") for rate in (0.3, 0.5, 0.7)]
    for way, (pattern, rate) in enumerate(ways):
        drawn = hidden_mask(pattern, shape, rate, 1_000 + way)
        hidden[way :: len(ways)] = drawn[way :: len(ways)]
    return index, hidden


def score_windows(
    predictor: Predictor,
    series: DeviceSeries,
    index: WindowIndex,
    hidden_WTV: BoolArray,
    unit: np.ndarray,
    batch_size: int,
) -> Scores:
    """Predict the hidden cells of every window, each window by itself."""
    device = predictor.device
    windows = DeviceWindows.put(index, device)
    hidden = torch.from_numpy(hidden_WTV).to(device)
    unit_V = torch.from_numpy(unit).to(device)
    totals = torch.zeros(5, dtype=torch.float64, device=device)
    count, seconds = 0, 0.0
    for begin in range(0, len(windows), batch_size):
        part = slice(begin, begin + batch_size)
        batch = series.gather(windows.starts[part], windows.ends[part], index.length)
        scored = hidden[part] & batch.observed_BTV
        _synchronize(device)
        began = time.perf_counter()
        visible = batch.observed_BTV & ~scored
        probs, scale = predictor.probs(batch.values_BTV, visible, batch.cell_keys())
        _synchronize(device)
        seconds += time.perf_counter() - began
        full = predictor.distribution(probs, scale)
        cells = BinDistribution(probs[scored], full.low[scored], full.step[scored])
        truth = batch.values_BTV[scored].double()
        weight = unit_V.expand(scored.shape)[scored]
        share = masked_share(visible)[scored.nonzero(as_tuple=True)[0]]
        totals += _cell_scores(cells, truth, weight, share, predictor)
        count += int(scored.sum())
    mae, mse, crps, crps_window, coverage = (totals / max(count, 1)).tolist()
    return Scores(mae, mse, crps, crps_window, coverage, seconds)


def _cell_scores(
    cells: BinDistribution,
    truth: Tensor,
    unit: Tensor,
    share: Tensor,
    predictor: Predictor,
) -> Tensor:
    """Sums of absolute error, squared error, CRPS, window CRPS and coverage."""
    error = (cells.mean() - truth) * unit
    cells = predictor.calibrated(cells, share)
    level = cells.cdf(truth)
    reach = predictor.config.tokenizer.output_range
    half = cells.step / predictor.tokenizer.output_step
    center = cells.low + reach * half
    x = ((truth - center) / half).clamp(-reach, reach)
    bins = predictor.tokenizer.centers(truth.device).double()
    cumulative = cells.probs.double().cumsum(-1)
    step = (bins >= x[:, None]).double()
    window_crps = ((cumulative - step) ** 2).sum(-1) * predictor.tokenizer.output_step
    return torch.stack(
        [
            error.abs().sum(),
            (error**2).sum(),
            (cells.crps(truth) * unit).sum(),
            window_crps.sum(),
            ((level >= 0.05) & (level <= 0.95)).double().sum(),
        ]
    )


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
