"""How far to trust the network against what needs no model, column by column.

A network can be behind interpolation where that is nearly perfect: a single missing cell of a
smooth column, or a long gap of a column that only rises. In a long gap of all columns it can be
behind the season, too. Held-out cells say where, and the filled value is moved towards the line,
or the line with the season on it, by as much as lowers their error. A network that is better
everywhere is left alone, and so is one that may be behind by chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mdtim.calibration import Places
from mdtim.distribution import BinDistribution

REACH = (1.5, 3.5, 8.5, 24.5)
"""Edges between groups of cells, in steps to the nearest visible cell: 1, 2 to 3, and so on."""
NUM_GROUPS = len(REACH) + 1
MIN_CELLS = 40
"""A weight is fitted to at least this many held-out cells."""
MAX_CELLS = 10_000
"""More of a variate and group would not move its weights."""
MIN_WINDOWS = 4
"""Cells of fewer windows may err together."""
DOUBT = 2.0
"""Standard errors by which the others must help before they are let in."""
_TENTHS = 10

Weights = tuple[float, float]
"""Of the line, and of the line with the season on it; the rest is the network's."""
NETWORK: Weights = (0.0, 0.0)


def reach_group(nearest: Tensor) -> Tensor:
    """(...,) which of the groups cells belong to, by steps to the nearest visible cell."""
    return torch.bucketize(nearest, torch.tensor(REACH, dtype=nearest.dtype, device=nearest.device))


@dataclass(frozen=True, eq=False)
class StackCells:
    """C cells with what all sides say about them, in standardized units."""

    distribution: BinDistribution
    """(C,) the network's."""
    filled: Tensor
    """(C,) float64, what the network alone would fill in."""
    linear: Tensor
    """(C,) float64, linear interpolation, along the whole series where it is known."""
    seasonal: Tensor
    """(C,) float64, that with the window's season on it; the same where no season is known."""
    nearest: Tensor
    """(C,) steps to the nearest visible cell of the variate, at most those of the window; infinite
    where there is none to interpolate."""
    at: Places
    """Where they lie."""
    window: Tensor
    """(C,) int64, the first row of the window that each was predicted in."""


@dataclass(frozen=True)
class Stack:
    """Weights of what needs no model, for each variate and group of cells."""

    weights: tuple[tuple[Weights, ...], ...]
    """(V, G)"""

    @classmethod
    def fit(cls, cells: StackCells, truth: Tensor, num_variates: int) -> Stack:
        """Choose the weights with the least absolute error over (C,) held-out cells.

        Too few cells of a variate are judged with all variates of their group; too few of those
        are taken for what lies nearer.
        """
        group = reach_group(cells.nearest)
        bridged = torch.isfinite(cells.nearest)
        weights = []
        for variate in range(num_variates):
            row: list[Weights] = []
            for reach in range(NUM_GROUPS):
                anywhere = bridged & (group == reach)
                here = anywhere & (cells.at.variate == variate)
                for chosen in (here, anywhere):
                    if int(chosen.sum()) >= MIN_CELLS:
                        row.append(_best(cells, truth, chosen.nonzero().squeeze(1)))
                        break
                else:
                    row.append(row[-1] if row else NETWORK)
            weights.append(tuple(row))
        return cls(tuple(weights))

    @property
    def is_seasonal(self) -> bool:
        """Whether the season has a say anywhere."""
        return any(season > 0 for row in self.weights for _, season in row)

    def apply(self, cells: StackCells) -> BinDistribution:
        """Move each distribution towards the values that need no model."""
        table = torch.tensor(self.weights, dtype=torch.float64, device=cells.linear.device)
        weight_C2 = table[cells.at.variate, reach_group(cells.nearest)]
        line, season = weight_C2.unbind(-1)
        shift = line * (cells.linear - cells.filled) + season * (cells.seasonal - cells.filled)
        shift = torch.where(torch.isfinite(cells.nearest), shift, 0.0)
        said = cells.distribution
        return BinDistribution(said.probs, said.low + shift, said.step)

    @classmethod
    def from_dict(cls, tree: dict[str, Any] | None) -> Stack | None:
        """Rebuild from `dataclasses.asdict`; None stays None."""
        if tree is None:
            return None
        return cls(tuple(tuple((line, season) for line, season in row) for row in tree["weights"]))


def _candidates(with_season: bool) -> list[Weights]:
    """All weights in tenths that leave the network none or some."""
    return [
        (line / _TENTHS, season / _TENTHS)
        for season in range((_TENTHS if with_season else 0) + 1)
        for line in range(_TENTHS - season + 1)
    ]


def _best(cells: StackCells, truth: Tensor, chosen: Tensor) -> Weights:
    """The weights of the least error over cells given by their numbers, if that is no chance."""
    chosen = chosen[:: -(-len(chosen) // MAX_CELLS)]
    filled, linear, seasonal = (
        part[chosen, None] for part in (cells.filled, cells.linear, cells.seasonal)
    )
    candidates = _candidates(with_season=not torch.equal(linear, seasonal))
    line_N, season_N = torch.tensor(candidates, dtype=torch.float64, device=truth.device).unbind(1)
    mixed_CN = filled + line_N * (linear - filled) + season_N * (seasonal - filled)
    error_CN = (mixed_CN - truth[chosen, None]).abs()
    best = int(error_CN.mean(0).argmin())
    gain = error_CN[:, 0] - error_CN[:, best]
    return candidates[best] if _is_certain(gain, cells.window[chosen]) else NETWORK


def _is_certain(gain: Tensor, window: Tensor) -> bool:
    """Whether (C,) gains are more than chance, where the cells of a window may err together."""
    _, member = torch.unique(window, return_inverse=True)
    num_windows = int(member.max()) + 1
    if num_windows < MIN_WINDOWS:
        return False
    mean = gain.mean()
    together = gain.new_zeros(num_windows).index_add_(0, member, gain - mean)
    variance = together.square().sum() * num_windows / (num_windows - 1)
    return bool(mean * len(gain) > DOUBT * variance.sqrt())
