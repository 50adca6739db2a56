"""What several windows say of the same cells, mixed into one.

C parts of cells, K output bins.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mdtim.distribution import mix


@dataclass(frozen=True, eq=False)
class Parts:
    """What single windows said about cells; a cell occurs once per window that sees it."""

    cell: Tensor
    """(C,) int64, its number in the panel."""
    weight: Tensor
    """(C,) float64, of this window beside the others."""
    filled: Tensor
    """(C,) float64"""
    probs: Tensor
    """(C, K)"""
    low: Tensor
    """(C,) float64, centre of the first bin."""
    step: Tensor
    """(C,) float64, distance of two bins."""

    @classmethod
    def none(cls, num_bins: int, device: torch.device) -> Parts:
        """No cell at all."""
        empty = torch.zeros(0, dtype=torch.float64, device=device)
        probs = torch.zeros(0, num_bins, device=device)
        return cls(empty.long(), empty, empty, probs, empty, empty)

    def join(self, other: Parts) -> Parts:
        """These and others behind them."""
        return Parts(
            *(
                torch.cat([getattr(self, name), getattr(other, name)])
                for name in ("cell", "weight", "filled", "probs", "low", "step")
            )
        )

    def take(self, chosen: Tensor) -> Parts:
        """Some of them, by a mask or by their places."""
        return Parts(
            self.cell[chosen],
            self.weight[chosen],
            self.filled[chosen],
            self.probs[chosen],
            self.low[chosen],
            self.step[chosen],
        )

    def split(self, boundary: int) -> tuple[Parts, Parts]:
        """Parts of cells before the boundary, and the rest."""
        before = self.cell < boundary
        return self.take(before), self.take(~before)

    def blend(self, keep_distribution: bool) -> tuple[Tensor, ...]:
        """Mix the parts of each cell: cells, filled values and, if wanted, distributions.

        A distribution is three tensors: probabilities in half precision, low and step.
        """
        cells, member, counts = torch.unique(self.cell, return_inverse=True, return_counts=True)
        order = torch.argsort(member, stable=True)
        first = torch.cumsum(counts, 0) - counts
        rank = torch.arange(len(order), device=order.device) - first[member[order]]
        most = int(counts.max()) if len(counts) else 1
        place = (member[order], rank)
        weight, filled, low, step = (
            torch.zeros((len(cells), most), dtype=torch.float64, device=order.device).index_put(
                place, part[order]
            )
            for part in (self.weight, self.filled, self.low, self.step)
        )
        blended = ((weight / weight.sum(1, keepdim=True)) * filled).sum(1)
        if not keep_distribution:
            return cells, blended
        probs = self.probs.new_zeros((len(cells), most, self.probs.shape[1]))
        probs[place] = self.probs[order]
        mixed = mix(weight, probs, low, step)
        return cells, blended, mixed.probs.half(), mixed.low, mixed.step
