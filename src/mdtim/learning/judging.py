"""From a trained network to its corrections: what held-out cells, outages and readings tell of it.

N rows, W windows, T steps, V variates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np
import torch
from numpy.typing import NDArray

from mdtim.autowindow import season_length
from mdtim.calibration import Calibration
from mdtim.closed_form.profile import Profile, ProfileSums
from mdtim.closed_form.rowwise import RowModel
from mdtim.config import ModelConfig
from mdtim.corrections import Corrections
from mdtim.inference import Predictor
from mdtim.learning.lessons import TrainingData, ValidationCells, held_out_cells
from mdtim.learning.outages import LONG, HiddenWindows, hide_outages
from mdtim.learning.readings import hide_readings
from mdtim.learning.relations import read_relations
from mdtim.network import FactorizedDiT
from mdtim.panel import BoolArray, FloatArray, IntArray, Panel, gap_lengths
from mdtim.readout import label_blur
from mdtim.series import DeviceSeries, DeviceWindows
from mdtim.stacking import MIN_READINGS, Stack
from mdtim.windows import WindowIndex, covering_windows

Scores = dict[str, float | None]
ENOUGH_IN_LONG = 500
"""Held-out cells of a variate in long gaps that tell how uncertain such cells are."""


@dataclass(frozen=True, eq=False)
class Shown:
    """A table without its held-out cells: all that may be known of it when these are judged."""

    panel: Panel
    standardized: NDArray[np.float32]
    """(N, V) the whole table, NaN where missing."""
    values_NV: FloatArray
    """The same without the held-out cells."""
    lengths: IntArray
    """(G,) of the table's gaps."""
    joint: float
    """Share of the missing cells that lie in rows where every variate is missing."""

    @cached_property
    def sums(self) -> ProfileSums | None:
        """What is usual at which time, if anything is."""
        panel = self.panel
        return ProfileSums.find(self.values_NV, panel.offsets, panel.timestamps, panel.step_seconds)

    @cached_property
    def usual(self) -> FloatArray | None:
        """(N, V) what is usual at the time of each row."""
        if self.sums is None:
            return None
        assert self.panel.timestamps is not None
        return self.sums.profile().at(self.panel.timestamps)

    def law(self, values_NV: FloatArray) -> RowModel:
        """The law of rows, what is usual taken away."""
        return RowModel.fit(_less(values_NV, self.usual), self.panel.offsets)

    def whole_law(self, like: RowModel) -> tuple[RowModel, Profile | None]:
        """The same of the whole table, and what is usual in it, asked as those that were judged."""
        panel, values_NV = self.panel, self.standardized.astype(np.float64)
        profile, usual = None, None
        if self.sums is not None:
            times = panel.timestamps
            sums = ProfileSums.find(
                values_NV, panel.offsets, times, panel.step_seconds, self.sums.kinds_V
            )
            assert sums is not None
            assert times is not None
            profile = sums.profile()
            usual = profile.at(times)
        law = RowModel.fit(_less(values_NV, usual), panel.offsets)
        return replace(law, seldom_V=like.seldom_V), profile


def _less(values_NV: FloatArray, usual_NV: FloatArray | None) -> FloatArray:
    return values_NV if usual_NV is None else values_NV - usual_NV


@dataclass(frozen=True, eq=False)
class Judge:
    """A trained network, and what its corrections are fitted to."""

    network: FactorizedDiT
    config: ModelConfig
    seed: int
    data: TrainingData
    """With the held-out cells."""
    shown: Shown

    def correct(
        self,
        *,
        stack: bool,
        calibrate: bool,
        outages_in: WindowIndex | None,
        readings_in: WindowIndex | None,
        generator: np.random.Generator,
    ) -> tuple[Corrections, Scores]:
        """Fit the corrections, and score what they lead to on the held-out cells.

        Parameters
        ----------
        outages_in, readings_in : windows in which long gaps, and readings of variates that are
            seldom known, may be hidden as well; None: nowhere
        """
        season, rows = None, None
        if stack:
            season, rows = season_length(self.shown.panel), self.shown.law(self.shown.values_NV)
        predictor = Predictor(self.network, self.config, self.seed, season=season, rows=rows)
        outages = None
        if stack and outages_in is not None:
            outages = self._outages(outages_in, generator)
        readings: list[ValidationCells] = []
        if stack and readings_in is not None:
            readings = self._readings(predictor, readings_in, generator)
        if readings:
            self.learn_relations(self.shown.values_NV)
        corrections, scores = self._correct(predictor, outages, readings, stack, calibrate)
        # The score is known now: what was held out may tell of the relations and the rows too.
        self.learn_relations(self.shown.standardized.astype(np.float64))
        if corrections.rows is not None:
            law, profile = self.shown.whole_law(corrections.rows)
            corrections = replace(corrections, rows=law, profile=profile)
        return corrections, scores

    def learn_relations(self, values_NV: FloatArray) -> None:
        """Let the network know the relations in some values, if it has a use for them."""
        if not self.network.config.relates:
            return
        covering = covering_windows(self.shown.panel.offsets, self.data.validation.length)
        series = DeviceSeries.put(values_NV.astype(np.float32), self.data.device)
        relations = read_relations(series, covering, self.network.config.prior)
        self.network.learn_relations(relations)

    def _outages(self, windows: WindowIndex, generator: np.random.Generator) -> TrainingData | None:
        """Windows with a long gap in each; None if the table has no long gaps."""
        shown = self.shown
        found = hide_outages(
            shown.standardized,
            shown.panel.offsets,
            windows,
            shown.lengths,
            shown.joint,
            generator,
        )
        return None if found is None else self._of_hidden(found)

    def _readings(
        self, predictor: Predictor, windows: WindowIndex, generator: np.random.Generator
    ) -> list[ValidationCells]:
        """Held-out readings of variates that are seldom known, with what all say about them.

        What the network knows of the relations is, behind this, that of the last fold.
        """
        said, offsets = [], self.shown.panel.offsets
        inner_WT = inner_steps(windows, offsets)
        for found, rest_NV in hide_readings(
            self.shown.standardized, offsets, windows, inner_WT, generator
        ):
            self.learn_relations(rest_NV)
            asked = Predictor(
                self.network,
                self.config,
                self.seed,
                season=predictor.season,
                rows=self.shown.law(rest_NV),
            )
            cells = held_out_cells(asked, self._of_hidden(found))
            assert cells is not None
            said.append(cells)
        return said

    def _of_hidden(self, found: HiddenWindows) -> TrainingData:
        """The data of the fit with other windows, and what is usual without their hidden cells."""
        device, sums, usual = self.data.device, self.shown.sums, None
        if sums is not None:
            both = zip(found.rows_WT, found.hidden_WTV, strict=True)
            usual = np.concatenate([sums.without(rows, hidden) for rows, hidden in both])
        return replace(
            self.data,
            series=DeviceSeries.put(found.values_NV, device, found.line_NV, usual=usual),
            validation=DeviceWindows.put(found.windows, device),
            hidden_WTV=torch.from_numpy(found.hidden_WTV).to(device),
        )

    def _correct(
        self,
        predictor: Predictor,
        outages: TrainingData | None,
        readings: list[ValidationCells],
        stack: bool,
        calibrate: bool,
    ) -> tuple[Corrections, Scores]:
        cells = held_out_cells(predictor, self.data)
        if cells is None:
            unknown = ("validation_mae", "linear_mae", "validation_crps", "coverage90")
            return Corrections(), dict.fromkeys(unknown)
        num_variates = self.data.series.values_NV.shape[1]
        told, seldom = cells, torch.tensor([], dtype=torch.int64)
        if readings:  # where there are enough, they alone tell what will be asked of their variates
            judged = torch.cat([some.said.at.variate for some in readings])
            seldom = (judged.bincount(minlength=num_variates) >= MIN_READINGS).nonzero().squeeze(1)
            told = reduce(ValidationCells.join, readings, cells.without(seldom))
        fitted_stack, stacked, said = None, cells.said.distribution, told.said.distribution
        if stack:
            known = told
            if outages is not None and (far := held_out_cells(predictor, outages)) is not None:
                far = far.without(seldom)
                known, told = told.join(far), told.join(self._as_many_as_missing(far, told))
            assert predictor.rows is not None
            is_seldom = predictor.rows.seldom_V.tolist()
            fitted_stack = Stack.fit(known.said, known.truth, num_variates, is_seldom)
            stacked, said = (fitted_stack.apply(one.said) for one in (cells, told))
        calibration, final = None, stacked
        if calibrate:
            blur = label_blur(predictor.config.diffusion)
            calibration = Calibration.fit(said, told.truth, told.said.at, blur, num_variates)
            final = calibration.apply(stacked, cells.said.at)
        level = final.cdf(cells.truth)
        has_rows = fitted_stack is not None and fitted_stack.is_rowwise
        rows, linear = predictor.rows if has_rows else None, cells.said.sides.linear
        return Corrections(fitted_stack, calibration, predictor.season, rows), {
            "validation_mae": float((predictor.filled(stacked) - cells.truth).abs().mean()),
            "linear_mae": float((linear.nan_to_num(0.0) - cells.truth).abs().mean()),
            "validation_crps": float(final.crps(cells.truth).mean()),
            "coverage90": float(((level >= 0.05) & (level <= 0.95)).double().mean()),
        }

    def _as_many_as_missing(self, far: ValidationCells, others: ValidationCells) -> ValidationCells:
        """Some cells of outages: of each variate as many, beside others, as are missing in such.

        Held-out cells that lie in long gaps themselves tell more, with all that is missing around
        them: where there are enough, outages have no say.
        """
        panel, chosen = self.shown.panel, []
        _, variates, lengths = gap_lengths(panel.observed, panel.offsets)
        count = len(panel.variates)
        missing_V, in_long_V = (
            np.bincount(variates, lengths * one, count) for one in (np.ones(1), lengths > LONG)
        )
        for variate, times in enumerate(in_long_V / np.maximum(missing_V - in_long_V, 1)):
            own = (far.said.at.variate == variate).nonzero().squeeze(1)
            beside = others.said.at.gap[others.said.at.variate == variate]
            lacking = ENOUGH_IN_LONG - int((beside > LONG).sum())
            wanted = max(0, min(len(own), int(times * len(beside)), lacking))
            chosen.append(own[torch.arange(wanted) * len(own) // max(wanted, 1)])
        return far.take(torch.cat(chosen))


def inner_steps(windows: WindowIndex, offsets: IntArray) -> BoolArray:
    """(W, T) steps in the middle of a window, or towards an end of its series.

    When a table is filled, windows overlap and a cell is read off where it lies in the middle. A
    score at the edge of a window, where only one side is visible, would be that of another task.
    """
    margin = windows.length // 4
    stops = np.minimum(windows.starts + windows.length, windows.ends)
    left = np.where(np.isin(windows.starts, offsets), 0, margin)
    right = stops - windows.starts - np.where(np.isin(stops, offsets), 0, margin)
    step_T = np.arange(windows.length)
    return (step_T >= left[:, None]) & (step_T < right[:, None])
