"""How good is a fill? Hide known cells, fill them, compare, beside what needs no model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from mdtim import doubts, metrics
from mdtim.baselines.simple import BASELINES
from mdtim.distribution import BinDistribution
from mdtim.imputer import MDTIMImputer
from mdtim.inference import Cells
from mdtim.missingness import joint_share, points_and_runs
from mdtim.panel import BoolArray, FloatArray, IntArray, Panel, gap_lengths, length_groups
from mdtim.series_scales import PanelScales
from mdtim.tables.table import Table

CALIBRATION_LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Central intervals whose coverage is measured."""


@dataclass(frozen=True)
class MethodScore:
    """Errors of one method over the hidden cells, in units of each column's std.

    In a column whose series differ much in size these units are the std of each series.
    """

    method: str
    mae: float
    rmse: float
    crps: float
    """Equal to the MAE for a method that gives single values."""
    coverage90: float | None
    """None for a method without intervals."""


@dataclass(frozen=True)
class ColumnScore:
    """Errors of every method within one column, in units of its std."""

    column: str
    num_hidden: int
    rows: tuple[MethodScore, ...]
    """The model first."""
    calibration: tuple[CalibrationPoint, ...]
    commonest: float
    """Share of the known cells that have the column's most frequent value. An interval that holds
    it covers so much at least, whatever it promises."""


@dataclass(frozen=True)
class GapLengthScore:
    """Errors of every method in gaps of similar length, hidden and missing cells taken together."""

    shortest: int
    longest: int
    """Steps, both included."""
    num_hidden: int
    rows: tuple[MethodScore, ...]
    """The model first."""


@dataclass(frozen=True)
class CalibrationPoint:
    """How many of the hidden values lie inside a central interval of the model."""

    level: float
    """Share that the interval promises."""
    covered: float
    """Share that it holds."""


@dataclass(frozen=True)
class Evaluation:
    """Scores of a model and of the simple baselines on the same hidden cells."""

    share_hidden: float
    num_hidden: int
    rows: tuple[MethodScore, ...]
    """The model first."""
    columns: tuple[ColumnScore, ...]
    gap_lengths: tuple[GapLengthScore, ...]
    """From short to long; lengths of which nothing was hidden are left out."""
    calibration: tuple[CalibrationPoint, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)


def hide_share(panel: Panel, share: float, seed: int) -> BoolArray:
    """(N, V) a share of the observed cells: half single ones, half runs like the table's gaps.

    Where the table's gaps are in all columns at once, as after an outage, so are as many of these.
    """
    if not 0 < share < 1:
        raise ValueError(f"the share to hide lies between 0 and 1, got {share}")
    seen = panel.observed.any(axis=0)
    observed = panel.observed[:, seen]
    _, _, lengths = gap_lengths(observed, panel.offsets)
    generator = np.random.default_rng([seed, 7])
    hidden = np.zeros(panel.values.shape, dtype=bool)
    hidden[:, seen] = points_and_runs(
        observed, panel.offsets, share, generator, lengths, joint_share(observed)
    )
    if not hidden.any():
        raise ValueError(f"{share:.0%} of {int(panel.observed.sum())} known cells is none at all")
    return hidden


def without(panel: Panel, hidden: BoolArray) -> Panel:
    """Return the panel with the hidden cells missing."""
    return replace(panel, values=np.where(hidden, np.nan, panel.values))


def evaluate(
    imputer: MDTIMImputer, data: Any, *, share: float = 0.1, seed: int = 0, fit: bool
) -> tuple[Evaluation, Table]:
    """Hide a share of the known cells, fill them and score the fill.

    Parameters
    ----------
    imputer : fitted on other data, or to be fitted here on what is not hidden
    data : any table :meth:`MDTIMImputer.fit` takes
    fit : whether to fit the imputer here

    Returns
    -------
    evaluation : Evaluation
    table : the table as read, nothing hidden
    """
    if not fit:
        check_is_fitted(imputer, "model_")
    table = imputer.read_table(data, reset=fit)
    if not fit:
        doubts.of_the_same_table(table.panel, imputer.model_.standardizer)
    hidden = hide_share(table.panel, share, seed)
    shown = without(table.panel, hidden)
    if fit:
        imputer.fit_panel(shown)
    cells = imputer.model_.fill(shown, keep_distribution=True)
    return score(table.panel, hidden, cells, share), table


def score(panel: Panel, hidden: BoolArray, cells: Cells, share: float) -> Evaluation:
    """Compare filled cells with the truth, beside the simple baselines.

    Parameters
    ----------
    panel : the truth
    hidden : (N, V) cells that were hidden from the model
    cells : what the model said about the missing ones, the hidden among them
    """
    fills = _ScoredFills.of(panel, hidden, cells)
    columns = tuple(
        ColumnScore(
            name,
            int(own.sum()),
            fills.scores(own),
            fills.calibration(own),
            commonest_share(panel.values[:, variate]),
        )
        for variate, name in enumerate(panel.variates)
        if (own := fills.variates == variate).any()
    )
    length = _gap_length_of_cells(without(panel, hidden))[fills.rows, fills.variates]
    by_length = tuple(
        GapLengthScore(shortest, longest, int(own.sum()), fills.scores(own))
        for shortest, longest in length_groups(length)
        if (own := (length >= shortest) & (length <= longest)).any()
    )
    everything = np.ones(len(fills.rows), dtype=bool)
    return Evaluation(
        share,
        len(fills.rows),
        fills.scores(everything),
        columns,
        by_length,
        fills.calibration(everything),
    )


def commonest_share(column: FloatArray) -> float:
    """Share of the known values of a column that are its most frequent one.

    Examples
    --------
    >>> commonest_share(np.array([0.0, 0.0, 0.0, 2.5, np.nan]))
    0.75
    """
    _, counts = np.unique(column[~np.isnan(column)], return_counts=True)
    return float(counts.max() / counts.sum()) if len(counts) else 0.0


@dataclass(frozen=True, eq=False)
class _ScoredFills:
    """What the methods said about the M cells that are scored."""

    rows: IntArray
    variates: IntArray
    errors: dict[str, FloatArray]
    """Method → (M,) fill less truth in units of the column's or series' std; the model first."""
    crps: FloatArray
    """(M,) of the model, in the same units."""
    distribution: BinDistribution
    truth: torch.Tensor
    """(M,) float64, data units."""

    @classmethod
    def of(cls, panel: Panel, hidden: BoolArray, cells: Cells) -> _ScoredFills:
        assert cells.distribution is not None
        # A column of which nothing is left to see cannot be filled, and is not scored.
        scored = hidden[cells.rows, cells.variates] & ~np.isnan(cells.filled)
        at = rows, variates = cells.rows[scored], cells.variates[scored]
        truth = panel.values[at]
        std = PanelScales.fit(panel).std[panel.series_of_rows()[rows], variates]
        shown = without(panel, hidden).values
        errors = {"mdtim": (cells.filled[scored] - truth) / std}
        for name, fill in BASELINES.items():
            errors[name] = (fill(shown, panel.offsets)[at] - truth) / std
        chosen, known = torch.from_numpy(scored), torch.from_numpy(truth)
        whole = cells.distribution
        distribution = whole.take(chosen)
        crps = distribution.crps(known).numpy() / std
        return cls(rows, variates, errors, crps, distribution, known)

    @cached_property
    def inside(self) -> dict[float, BoolArray]:
        """Level → (M,) True where the truth lies in the model's central interval of that level."""
        return {level: self._inside(level) for level in CALIBRATION_LEVELS}

    def _inside(self, level: float) -> BoolArray:
        lower, upper = (self.distribution.quantile(0.5 + side * level / 2) for side in (-1, 1))
        inside: BoolArray = ((self.truth >= lower) & (self.truth <= upper)).numpy()
        return inside

    def calibration(self, own: BoolArray) -> tuple[CalibrationPoint, ...]:
        """Coverage of the model's intervals over the cells of a mask."""
        return tuple(
            CalibrationPoint(level, float(inside[own].mean()))
            for level, inside in self.inside.items()
        )

    def scores(self, own: BoolArray) -> tuple[MethodScore, ...]:
        """Scores of every method over the cells of a mask."""
        rows = []
        for name, error in self.errors.items():
            zero, of_model = np.zeros_like(error), name == "mdtim"
            mae = metrics.mae(zero, error, own)
            crps = float(self.crps[own].mean()) if of_model else mae
            covered = float(self.inside[0.9][own].mean()) if of_model else None
            rows.append(MethodScore(name, mae, metrics.rmse(zero, error, own), crps, covered))
        return tuple(rows)


def _gap_length_of_cells(panel: Panel) -> IntArray:
    """(N, V) steps of the gap that every missing cell belongs to, 0 for an observed cell."""
    _, _, lengths = gap_lengths(panel.observed, panel.offsets)
    of_cells = np.zeros(panel.values.shape, dtype=np.int64)
    # Gaps and their cells come in the same order: by column, then by row.
    of_cells.T[~panel.observed.T] = np.repeat(lengths, lengths)
    return of_cells
