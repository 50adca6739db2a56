"""A fitted model: a panel with gaps in, what can be said about the gaps out.

No table, no scikit-learn: this is what the estimator, the benchmark and services share.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mdtim import doubts
from mdtim.baselines.simple import interpolate, linear_between
from mdtim.calibration import Calibration
from mdtim.checkpoint import load_weights
from mdtim.config import ModelConfig
from mdtim.corrections import Corrections, without_corrections
from mdtim.distribution import BinDistribution
from mdtim.inference import (
    LEAST_SPREAD,
    Cells,
    OnWindows,
    Predictor,
    fill_cells,
    inference_batch,
)
from mdtim.learning.fitting import FitReport
from mdtim.network import FactorizedDiT
from mdtim.panel import FloatArray, IntArray, Panel
from mdtim.readout import label_blur
from mdtim.sampling import sample_series
from mdtim.scaling import Standardizer
from mdtim.series import DeviceSeries
from mdtim.series_scales import PanelScales, SeriesScales, without_scales
from mdtim.threads import threads_for_batches


@dataclass(frozen=True, eq=False)
class FittedModel:
    """A trained network with the scales, the corrections and the score that belong to it."""

    config: ModelConfig
    window: int
    variates: tuple[str, ...]
    """All columns of the table, the constant and the never observed ones too."""
    standardizer: Standardizer
    series_scales: SeriesScales | None
    """None where one scale for each column holds for all series."""
    network: FactorizedDiT | None
    """None where no column varies: then there is nothing to learn."""
    corrections: Corrections
    report: FitReport
    seed: int
    step_seconds: float | None = None
    """Between two steps of the table of the fit; None if it had no times."""

    def fill(
        self, panel: Panel, *, keep_distribution: bool, on_windows: OnWindows | None = None
    ) -> Cells:
        """All that can be said about a panel's missing cells, in data units.

        Cells of a column that was never observed are not among them.
        """
        doubts.of_what_never_varied(panel, self.standardizer)
        constant = self._constant_cells(panel)
        if self.network is None:
            return constant
        scales = self.scales_of(panel)
        doubts.of_another_table(panel, scales)
        doubts.of_series(panel, scales)
        doubts.of_another_step(panel, self.step_seconds)
        said = self._said(panel, scales, self.corrections, keep_distribution, on_windows)
        return said.join(constant)

    def _said(
        self,
        panel: Panel,
        scales: PanelScales,
        corrections: Corrections,
        keep_distribution: bool,
        on_windows: OnWindows | None = None,
    ) -> Cells:
        """What network and corrections say about the cells of columns that vary."""
        series, columns = self._series(panel, scales)
        batch_size = inference_batch(series, self.window, self.config)
        with threads_for_batches(series.values_NV.device):
            cells = fill_cells(
                self._predictor(corrections, batch_size),
                series,
                panel.offsets,
                self.window,
                batch_size=batch_size,
                keep_distribution=keep_distribution,
                on_windows=on_windows,
            )
        return _in_data_units(cells, panel, columns, scales)

    def sample(self, panel: Panel, number: int) -> FloatArray:
        """(N, V) the panel with its gaps drawn jointly by the network alone, draw `number`."""
        filled = panel.values.copy()
        constant = self._constant_cells(panel)
        filled[constant.rows, constant.variates] = constant.filled
        if self.network is None:
            return filled
        scales = self.scales_of(panel)
        series, columns = self._series(panel, scales)
        batch_size = inference_batch(series, self.window, self.config)
        with threads_for_batches(series.values_NV.device):
            drawn = sample_series(
                self._predictor(Corrections(), batch_size),
                series,
                panel.offsets,
                self.window,
                batch_size=batch_size,
                sample=number,
            )
        series_N1 = panel.series_of_rows()[:, None]
        drawn = scales.back(drawn, *np.broadcast_arrays(series_N1, columns))
        known = filled[:, columns]
        filled[:, columns] = np.where(np.isnan(known), drawn, known)
        return filled

    def _predictor(self, corrections: Corrections, max_windows: int | None = None) -> Predictor:
        assert self.network is not None
        return Predictor(
            self.network,
            self.config,
            self.seed,
            stack=corrections.stack,
            calibration=corrections.calibration,
            season=corrections.season,
            rows=corrections.rows,
            max_windows=max_windows,
        )

    def scales_of(self, panel: Panel) -> PanelScales:
        """Scales of a panel's series, and the bounds that it keeps to."""
        columns = self.standardizer.loosened(panel.values)
        return PanelScales.of(panel, columns, self.series_scales)

    def _series(self, panel: Panel, scales: PanelScales) -> tuple[DeviceSeries, IntArray]:
        """Put the modelled variates on the device; also their columns in the panel."""
        assert self.network is not None
        columns = np.flatnonzero(self.standardizer.varies)
        standardized = scales.forward(panel.values, panel.series_of_rows())[:, columns]
        line = None
        if self.corrections.stack is not None:
            line = _line(panel, scales, standardized.astype(np.float64), columns)
        profile, usual = self.corrections.profile, None
        if profile is not None and panel.timestamps is not None:
            usual = profile.at(panel.timestamps)
        device = self.network.centers.device
        return DeviceSeries.put(standardized, device, line, panel.row_keys(), usual), columns

    def _constant_cells(self, panel: Panel) -> Cells:
        """Cells of columns that never varied: the constant, without doubt."""
        scaler = self.standardizer
        constant = scaler.seen & ~scaler.varies
        rows, variates = np.nonzero(np.isnan(panel.values) & constant)
        mean = scaler.mean[variates]
        probs = torch.zeros(len(rows), self.config.tokenizer.num_outputs, dtype=torch.float16)
        probs[:, :1] = 1
        low = torch.from_numpy(mean)
        return Cells(rows, variates, mean, BinDistribution(probs, low, torch.zeros_like(low)))

    # -- as a document ----------------------------------------------------------------------

    def to_document(self) -> dict[str, Any]:
        """Everything but the weights, ready for JSON."""
        scaler = self.standardizer
        return {
            "model": self.config.to_dict(),
            "window": self.window,
            "variates": list(self.variates),
            "standardizer": {name: value.tolist() for name, value in vars(scaler).items()},
            "series": None if self.series_scales is None else self.series_scales.to_dict(),
            "corrections": self.corrections.to_dict(),
            "report": asdict(self.report),
            "seed": self.seed,
            "step_seconds": self.step_seconds,
        }

    def tensors(self) -> dict[str, torch.Tensor]:
        """Weights of the network, scales of series, and what the corrections know."""
        own = {} if self.network is None else self.network.state_dict()
        arrays = {} if self.series_scales is None else self.series_scales.arrays()
        scales = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return {**own, **scales, **self.corrections.tensors()}

    @classmethod
    def from_document(
        cls,
        document: dict[str, Any],
        tensors: dict[str, torch.Tensor],
        device: torch.device,
        folder: Path,
    ) -> FittedModel:
        """Rebuild from :meth:`to_document` and the weights; `folder` is for messages."""
        config = ModelConfig.from_dict(document["model"])
        scaler = document["standardizer"]
        standardizer = Standardizer(
            mean=np.array(scaler["mean"], dtype=np.float64),
            std=np.array(scaler["std"], dtype=np.float64),
            varies=np.array(scaler["varies"], dtype=bool),
            seen=np.array(scaler["seen"], dtype=bool),
            least=np.array(scaler["least"], dtype=np.float64),
            most=np.array(scaler["most"], dtype=np.float64),
        )
        network = None
        if standardizer.varies.any():
            count = int(standardizer.varies.sum())
            own = without_scales(without_corrections(tensors))
            network = FactorizedDiT.to_be_loaded(config.network, config.tokenizer, count, own)
            network.load_state_dict(load_weights(network.state_dict(), own, folder))
            network = network.to(device).eval()
        return cls(
            config=config,
            window=int(document["window"]),
            variates=tuple(document["variates"]),
            standardizer=standardizer,
            series_scales=SeriesScales.of_document(document, tensors),
            network=network,
            corrections=Corrections.from_dict(document["corrections"], tensors),
            report=FitReport(**document["report"]),
            seed=int(document["seed"]),
            step_seconds=document.get("step_seconds"),
        )


@dataclass(frozen=True, eq=False)
class JointSampler:
    """Draws a panel's gaps jointly, and each cell from its own distribution.

    The network draws the cells of a gap one after the other, each given those before. Where a drawn
    value lies in what the network says of its cell at once, from 0 to 1, is then looked up in what
    is said of the cell in the end, behind all corrections.
    """

    model: FittedModel
    panel: Panel
    cells: Cells
    """What was said of the panel's missing cells, with their distributions."""

    @cached_property
    def _alone(self) -> Cells:
        """What the network says by itself, of all cells at once, as sharp as it draws them."""
        config, count = self.model.config, int(self.model.standardizer.varies.sum())
        sharp = Calibration.of_blur(label_blur(config.diffusion), LEAST_SPREAD, count)
        corrections, scales = Corrections(calibration=sharp), self.model.scales_of(self.panel)
        return self.model._said(self.panel, scales, corrections, keep_distribution=True)

    def __call__(self, number: int) -> FloatArray:
        """(N, V) the panel with its gaps drawn jointly, draw `number`."""
        drawn = self.model.sample(self.panel, number)
        if self.model.network is None:
            return drawn
        alone = self._alone
        count = len(alone.rows)  # constants stand behind
        assert alone.distribution is not None
        assert self.cells.distribution is not None
        assert np.array_equal(self.cells.rows[:count], alone.rows)
        at = (alone.rows, alone.variates)
        level = alone.distribution.cdf(torch.from_numpy(drawn[at])).clamp(1e-6, 1 - 1e-6)
        said = self.cells.distribution.take(torch.arange(count))
        drawn[at] = said.quantile(level).numpy()
        return drawn


def _line(
    panel: Panel, scales: PanelScales, standardized: FloatArray, columns: IntArray
) -> FloatArray:
    """(N, V) interpolation along the whole series, of which the panel may be a part.

    NaN where a series knows nothing of a variate.
    """
    around = panel.surroundings
    if around is None:
        return interpolate(standardized, panel.offsets)
    every = np.arange(panel.num_series)

    def scaled(values: FloatArray) -> FloatArray:
        return scales.forward(values, every)[:, columns].astype(np.float64)

    return linear_between(
        standardized,
        panel.offsets,
        (around.before_steps[:, columns], scaled(around.before_values)),
        (around.after_steps[:, columns], scaled(around.after_values)),
    )


def _in_data_units(cells: Cells, panel: Panel, columns: IntArray, scales: PanelScales) -> Cells:
    series, variates = panel.series_of_rows()[cells.rows], columns[cells.variates]
    distribution = cells.distribution
    if distribution is not None:
        of_cells = (series, variates)
        std, shift = (torch.from_numpy(part[of_cells]) for part in (scales.std, scales.mean))
        bounds = np.stack([part[variates] for part in (scales.columns.least, scales.columns.most)])
        distribution = BinDistribution(
            distribution.probs,
            distribution.low * std + shift,
            distribution.step * std,
            torch.from_numpy(bounds.T.copy()),
        )
    return Cells(cells.rows, variates, scales.back(cells.filled, series, variates), distribution)
