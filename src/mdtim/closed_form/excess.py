"""Readings beyond belief: what the network is not shown of them, and how it comes back.

B windows, T steps, V variates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mdtim.closed_form.guesses import Neighbours
from mdtim.distribution import BinDistribution
from mdtim.tokenizer import believable


@dataclass(frozen=True, eq=False)
class Excess:
    """What the network is not shown of readings beyond belief, continued along the steps.

    A flood or a restart lies far beyond all that a table holds otherwise. The network fills what
    lies below the limit, and between two readings of the event the rest is a line. Beside a
    single one there is none: it may as well be a fault.
    """

    line: Tensor
    """What to add to a cell, in standardized units; 0 nearly everywhere."""
    doubt: Tensor
    """Half of the difference between the readings' excess on both sides."""

    @classmethod
    def find(cls, values_BTV: Tensor, neighbours: Neighbours) -> Excess:
        """That of every cell of a batch."""
        visible_BTV = neighbours.visible_BTV
        beyond_BTV = values_BTV - believable(values_BTV, visible_BTV)
        beyond_BTV = torch.where(visible_BTV, beyond_BTV, 0.0)
        left, right = (
            beyond_BTV.gather(1, side) for side in (neighbours.left_BTV, neighbours.right_BTV)
        )
        inside = (left * right > 0) & neighbours.gap_BTV.isfinite()
        line = torch.lerp(left, right, neighbours.share_BTV)
        return cls(
            torch.where(inside, line, 0.0), torch.where(inside, (right - left).abs() / 2, 0.0)
        )

    def take(self, wanted_BTV: Tensor) -> Excess:
        """That of some cells."""
        return Excess(self.line[wanted_BTV].double(), self.doubt[wanted_BTV].double())

    def is_somewhere(self) -> bool:
        """Whether any cell has some."""
        return bool((self.line != 0).any() | (self.doubt > 0).any())

    def added_to(self, said: BinDistribution) -> BinDistribution:
        """Distributions of cells moved by the line, and as much wider as it is in doubt."""
        std = said.std()
        wider = torch.where(self.doubt > 0, (std + self.doubt) / std.clamp_min(1e-9), 1.0)
        mean = said.mean()
        return BinDistribution(
            said.probs, mean + self.line - wider * (mean - said.low), wider * said.step
        )
