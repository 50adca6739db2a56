"""How far to trust the network against linear interpolation, column by column.

A network that was trained for minutes can be behind interpolation where that is nearly perfect: a
single missing cell of a smooth column. Held-out cells say where, and the filled value is moved
towards the interpolation by as much as lowers their error. A network that is better everywhere is
left alone, and so is one that may be behind by chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mdtim.calibration import Places
from mdtim.distribution import BinDistribution

REACH = (1.5, 3.5)
"""Edges between groups of cells, in steps to the nearest visible cell: 1, 2 to 3, more."""
MIN_CELLS = 40
"""A weight is fitted to at least this many held-out cells."""
DOUBT = 2.0
"""Standard errors by which interpolation must help before it is let in."""


def reach_group(nearest: Tensor) -> Tensor:
    """(...,) which of the groups cells belong to, by steps to the nearest visible cell."""
    return torch.bucketize(nearest, torch.tensor(REACH, dtype=nearest.dtype, device=nearest.device))


@dataclass(frozen=True, eq=False)
class StackCells:
    """C cells with what both sides say about them, in standardized units."""

    distribution: BinDistribution
    """(C,) the network's."""
    filled: Tensor
    """(C,) float64, what the network alone would fill in."""
    linear: Tensor
    """(C,) float64, linear interpolation, along the whole series where it is known."""
    nearest: Tensor
    """(C,) steps to the nearest visible cell of the variate; infinite where there is none."""
    at: Places
    """Where they lie."""


@dataclass(frozen=True)
class Stack:
    """Weight of the network for each variate and group of cells; the rest is interpolation's."""

    weights: tuple[tuple[float, ...], ...]
    """(V, 3) in [0, 1]."""

    @classmethod
    def fit(cls, cells: StackCells, truth: Tensor, num_variates: int) -> Stack:
        """Choose the weights with the least absolute error over (C,) held-out cells.

        Too few cells of a variate are judged with all variates of their group; too few of those
        leave the network alone.
        """
        candidates = torch.linspace(0, 1, 11, dtype=torch.float64, device=truth.device)
        group = reach_group(cells.nearest)
        bridged = torch.isfinite(cells.nearest)
        weights = []
        for variate in range(num_variates):
            row = []
            for reach in range(len(REACH) + 1):
                anywhere = bridged & (group == reach)
                here = anywhere & (cells.at.variate == variate)
                chosen = here if int(here.sum()) >= MIN_CELLS else anywhere
                if int(chosen.sum()) < MIN_CELLS:
                    row.append(1.0)
                    continue
                mixed = torch.lerp(
                    cells.linear[chosen, None], cells.filled[chosen, None], candidates.expand(1, -1)
                )
                error = (mixed - truth[chosen, None]).abs()
                best = int(error.mean(0).argmin())
                gain = error[:, -1] - error[:, best]
                row.append(float(candidates[best]) if _is_certain(gain) else 1.0)
            weights.append(tuple(row))
        return cls(tuple(weights))

    def apply(self, cells: StackCells) -> BinDistribution:
        """Move each distribution towards the interpolated value."""
        table = torch.tensor(self.weights, dtype=torch.float64, device=cells.linear.device)
        weight = table[cells.at.variate, reach_group(cells.nearest)]
        weight = torch.where(torch.isfinite(cells.nearest), weight, 1.0)
        said = cells.distribution
        shift = (1 - weight) * (cells.linear - cells.filled)
        return BinDistribution(said.probs, said.low + shift, said.step)

    @classmethod
    def from_dict(cls, tree: dict[str, Any] | None) -> Stack | None:
        """Rebuild from `dataclasses.asdict`; None stays None."""
        return None if tree is None else cls(tuple(tuple(row) for row in tree["weights"]))


def _is_certain(gain: Tensor) -> bool:
    """Whether (C,) gains, in the order of the windows, are more than chance.

    The cells of one gap err together and would pass for many: a gain must show in every quarter
    of the table, too.
    """
    doubt = DOUBT * gain.std(correction=0) / len(gain) ** 0.5
    everywhere = all(bool(quarter.mean() > 0) for quarter in gain.chunk(4))
    return everywhere and bool(gain.mean() > doubt)
