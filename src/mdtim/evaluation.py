"""How good is a fill? Hide known cells, fill them, compare, beside what needs no model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from mdtim import metrics
from mdtim.baselines.simple import BASELINES
from mdtim.imputer import MDTIMImputer
from mdtim.inference import Cells
from mdtim.missingness import points_and_runs
from mdtim.panel import BoolArray, FloatArray, Panel, gap_lengths
from mdtim.scaling import Standardizer
from mdtim.table import Table


@dataclass(frozen=True)
class MethodScore:
    """Errors of one method over the hidden cells, in units of each column's std."""

    method: str
    mae: float
    rmse: float
    crps: float
    """Equal to the MAE for a method that gives single values."""
    coverage90: float | None
    """None for a method without intervals."""


@dataclass(frozen=True)
class ColumnScore:
    """Errors within one column, in units of its std."""

    column: str
    num_hidden: int
    mae: float
    linear_mae: float
    coverage90: float


@dataclass(frozen=True)
class Evaluation:
    """Scores of a model and of the simple baselines on the same hidden cells."""

    share_hidden: float
    num_hidden: int
    rows: tuple[MethodScore, ...]
    """The model first."""
    columns: tuple[ColumnScore, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)


def hide_share(panel: Panel, share: float, seed: int) -> BoolArray:
    """(N, V) a share of the observed cells: half single ones, half runs like the table's gaps."""
    if not 0 < share < 1:
        raise ValueError(f"the share to hide lies between 0 and 1, got {share}")
    _, _, lengths = gap_lengths(panel.observed, panel.offsets)
    generator = np.random.default_rng([seed, 7])
    hidden = points_and_runs(panel.observed, panel.offsets, share, generator, lengths)
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
    table = imputer.read_table(data, reset=fit)
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
    assert cells.distribution is not None
    std = Standardizer.fit(panel.values).std
    filled = {"mdtim": panel.values.copy()}
    filled["mdtim"][cells.rows, cells.variates] = cells.mean
    shown = np.where(hidden, np.nan, panel.values)
    filled |= {name: fill(shown, panel.offsets) for name, fill in BASELINES.items()}
    # A column of which nothing is left to see cannot be filled, and is not scored.
    scored = hidden & ~np.isnan(filled["mdtim"])

    truth = torch.from_numpy(panel.values[cells.rows, cells.variates])
    crps = np.zeros(panel.values.shape)
    crps[cells.rows, cells.variates] = cells.distribution.crps(truth).numpy()
    inside = np.zeros(panel.values.shape, dtype=bool)
    lower, upper = (cells.distribution.quantile(level) for level in (0.05, 0.95))
    inside[cells.rows, cells.variates] = ((truth >= lower) & (truth <= upper)).numpy()

    rows = []
    for name, values in filled.items():
        error = (values - panel.values) / std
        of_model = name == "mdtim"
        rows.append(
            MethodScore(
                name,
                metrics.mae(error, np.zeros_like(error), scored),
                metrics.rmse(error, np.zeros_like(error), scored),
                float((crps / std)[scored].mean() if of_model else np.abs(error[scored]).mean()),
                float(inside[scored].mean()) if of_model else None,
            )
        )
    columns = tuple(
        _column_score(index, panel, filled, scored, inside, std)
        for index in range(len(panel.variates))
        if scored[:, index].any()
    )
    return Evaluation(share, int(scored.sum()), tuple(rows), columns)


def _column_score(
    index: int,
    panel: Panel,
    filled: dict[str, FloatArray],
    scored: BoolArray,
    inside: BoolArray,
    std: FloatArray,
) -> ColumnScore:
    rows = scored[:, index]
    truth = panel.values[rows, index]
    errors = {
        name: float(np.abs(filled[name][rows, index] - truth).mean() / std[index])
        for name in ("mdtim", "linear")
    }
    return ColumnScore(
        panel.variates[index],
        int(rows.sum()),
        errors["mdtim"],
        errors["linear"],
        float(inside[rows, index].mean()),
    )
