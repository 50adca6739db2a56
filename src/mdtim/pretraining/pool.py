"""Windows cut from a pool of made-up tables, which is renewed now and then.

S tables, L steps, B windows, T steps of a window, V variates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mdtim.guesses import Relations, deviations
from mdtim.pretraining.dice import Dice
from mdtim.pretraining.tables import draw_tables


@dataclass(frozen=True)
class Shape:
    """Windows of one training step."""

    num_windows: int
    num_steps: int
    num_variates: int


@dataclass(frozen=True, eq=False)
class Pool:
    """Tables and what can be read off each of them as a whole."""

    tables_SLV: Tensor
    relations: Relations
    """(S, V, V) each: those a table of this length tells of itself."""

    @classmethod
    def draw(cls, seed: int, count: int, shape: Shape, device: torch.device) -> Pool:
        """Make tables of several windows each."""
        dice = Dice(seed, device)
        num_cuts = max(2, min(16, 1536 // shape.num_steps))
        tables = draw_tables(dice, count, num_cuts * shape.num_steps, shape.num_variates)
        return cls(tables, _relations(tables, shape.num_steps))

    def replace(self, other: Pool) -> None:
        """Take the tables of another pool, in the same memory."""
        self.tables_SLV.copy_(other.tables_SLV)
        self.relations.level_VV.copy_(other.relations.level_VV)
        self.relations.change_VV.copy_(other.relations.change_VV)

    def windows(self, shape: Shape, generator: torch.Generator) -> tuple[Tensor, Relations]:
        """(B, T, V) windows at random places, with the relations of their tables."""
        count, length, _ = self.tables_SLV.shape
        device = self.tables_SLV.device
        size = (shape.num_windows,)
        table_B = torch.randint(count, size, generator=generator, device=device)
        start_B = torch.randint(
            length - shape.num_steps + 1, size, generator=generator, device=device
        )
        step_BT = start_B[:, None] + torch.arange(shape.num_steps, device=device)
        values_BTV = self.tables_SLV[table_B[:, None], step_BT]
        relations = Relations(self.relations.level_VV[table_B], self.relations.change_VV[table_B])
        return values_BTV, relations


def _relations(tables_SLV: Tensor, num_steps: int) -> Relations:
    """Covariances inside windows, as `read_relations` finds them in a whole table."""
    count, _, num_variates = tables_SLV.shape
    cuts = tables_SLV.view(count, -1, num_steps, num_variates)
    level = (cuts - cuts.mean(2, keepdim=True)).flatten(1, 2)
    change = deviations(tables_SLV, tables_SLV, "change")
    return Relations(*(part.mT @ part / part.shape[1] for part in (level, change)))
