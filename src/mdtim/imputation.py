"""The result of filling a table: values, spread, quantiles, intervals, samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mdtim.inference import Cells
from mdtim.panel import BoolArray, FloatArray
from mdtim.runtime import keyed_uniform
from mdtim.tables.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mdtim.evaluation import Evaluation
    from mdtim.learning.fitting import FitReport

Sampler = Callable[[int], FloatArray]
"""Number of a joint draw → (N, V) its values, in data units."""

_MARGINAL_STREAM = 2**41
"""First stream of random numbers of the marginal samples."""


@dataclass(frozen=True)
class Origin:
    """What filled a table."""

    window: int
    """Steps per window."""
    fit: FitReport


class Imputation:
    """A filled table that knows how sure it is.

    Tables come back in the kind that went in: array for array, DataFrame for DataFrame. Observed
    cells are returned as they were; their std is 0 and all their quantiles are their value.

    Attributes
    ----------
    values
        The filled table.
    cells : Cells
        The filled cells of the panel, in data units.
    distribution : BinDistribution
        Their distributions, calibrated.
    origin : Origin, optional
        What filled it, where that is known.
    """

    def __init__(
        self,
        table: Table,
        cells: Cells,
        joint_sampler: Sampler,
        seed: int,
        origin: Origin | None = None,
    ) -> None:
        assert cells.distribution is not None
        self.table = table
        self.cells = cells
        self.distribution = cells.distribution
        self.origin = origin
        self._joint_sampler = joint_sampler
        self._seed = seed
        self.values: Any = table.restore(self._panel(cells.filled))

    def __repr__(self) -> str:
        left = int(np.isnan(self._panel(self.cells.filled)).sum())
        note = f", {left} left missing" if left else ""
        rows, variates = self.table.panel.values.shape
        return (
            f"Imputation({rows} steps × {variates} variates, {len(self.cells.filled)} filled{note})"
        )

    @property
    def missing(self) -> BoolArray:
        """(N, V) True where the panel had no value."""
        return ~self.table.panel.observed

    @property
    def num_missing(self) -> int:
        """Missing cells of the caller's rows; steps that the table skips are not among them."""
        return self.table.count(self.missing)

    @property
    def num_filled(self) -> int:
        """Those that were filled."""
        return self.table.count(self.missing & ~np.isnan(self._panel(self.cells.filled)))

    def _panel(self, cells: FloatArray, observed: FloatArray | None = None) -> FloatArray:
        """(N, V) one number per filled cell, the known values (or `observed`) elsewhere."""
        full = (self.table.panel.values if observed is None else observed).copy()
        full[self.cells.rows, self.cells.variates] = cells
        return full

    @property
    def std(self) -> Any:
        """Standard deviation of every cell: 0 where observed, NaN where left missing."""
        return self.table.arrange(self.panel_std())

    def panel_std(self) -> FloatArray:
        """(N, V) standard deviations, as :attr:`std` but in the shape of the panel."""
        base = np.where(self.missing, np.nan, 0.0)
        return self._panel(self.distribution.std().numpy(), base)

    def panel_quantile(self, level: float) -> FloatArray:
        """(N, V) quantiles in the shape of the panel."""
        if not 0 < level < 1:
            raise ValueError(f"a quantile level lies between 0 and 1, got {level}")
        return self._panel(self.distribution.quantile(level).numpy())

    def quantile(self, level: float) -> Any:
        """Value below which the truth lies with probability `level`."""
        return self.table.arrange(self.panel_quantile(level))

    def with_quantiles(self, levels: Sequence[float]) -> Any:
        """Return the filled table with further columns: `name_q0.05` for the level 0.05."""
        if not len(levels):
            return self.values
        if len({f"{level:g}" for level in levels}) < len(levels):
            raise ValueError(f"levels must differ in their first six digits, got {list(levels)}")
        extra = {f"q{level:g}": self.panel_quantile(level) for level in levels}
        return self.table.with_columns(self.values, extra)

    def interval(self, coverage: float = 0.9) -> tuple[Any, Any]:
        """Central interval that holds the truth with probability `coverage`: (lower, upper)."""
        if not 0 < coverage < 1:
            raise ValueError(f"coverage lies between 0 and 1, got {coverage}")
        tail = (1 - coverage) / 2
        return self.quantile(tail), self.quantile(1 - tail)

    def samples(self, count: int, *, joint: bool = False) -> list[Any]:
        """Draw `count` filled tables.

        Parameters
        ----------
        count : int
        joint : bool
            False draws every cell by itself from its own distribution. True runs the reverse
            diffusion, so the cells of a gap fit together, and each still keeps to its own
            distribution (a draw costs as many network passes as the diffusion has steps).
        """
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        if joint:
            return [self.table.restore(self._joint_sampler(number)) for number in range(count)]
        panel = self.table.panel
        # As the draws of the network: a series is drawn alike in any table.
        key = panel.row_keys()[self.cells.rows] * len(panel.variates) + self.cells.variates
        drawn = []
        for number in range(count):
            level = keyed_uniform(
                self._seed, _MARGINAL_STREAM + number, torch.from_numpy(key)
            ).double()
            cells = self.distribution.quantile(level.clamp(1e-6, 1 - 1e-6)).numpy()
            drawn.append(self.table.restore(self._panel(cells)))
        return drawn

    def report(
        self,
        path: str | PathLike[str],
        evaluation: Evaluation | None = None,
        *,
        name: str | None = None,
        notes: Sequence[str] | None = None,
    ) -> None:
        """Write a self-contained HTML page with the filled gaps and their bands.

        Parameters
        ----------
        evaluation : scores to show beside them, from :func:`mdtim.evaluation.evaluate`
        name : of the table, such as that of its file, for the title
        notes : what its owner should know, for the top; without, how the table was read
        """
        from mdtim.report import write_report

        write_report(self, path, evaluation, name=name, notes=notes)

    def plot(self, columns: Sequence[str] | None = None, *, series: Any = None) -> Figure:
        """Draw columns with their filled gaps and 50 % and 90 % bands; needs matplotlib.

        Parameters
        ----------
        columns : names of columns; without, up to eight with the most missing cells
        series : name of a series; without, the one with the most missing cells

        Returns
        -------
        matplotlib.figure.Figure
            On its own, outside pyplot: show it in a notebook or save it with `savefig`.
        """
        from mdtim.report.figure import plot

        return plot(self, columns, series)

    def _repr_html_(self) -> str:
        """Key numbers and a picture of the longest gap, for notebooks."""
        from mdtim.report.notebook import imputation_html

        return imputation_html(self)
