"""Windows cut from a pool of made-up tables, which is renewed now and then.

S tables, L steps, B windows, T steps of a window, V variates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mdtim.closed_form.dynamics import steps_of_memory, whitening
from mdtim.closed_form.guesses import Relations, deviations
from mdtim.learning.relations import free_of_chance, successive
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
    """One for each table: those that some of its rows tell of it."""

    @classmethod
    def draw(cls, seed: int, count: int, shape: Shape, device: torch.device) -> Pool:
        """Make tables of several windows each."""
        dice = Dice(seed, device)
        num_cuts = max(2, min(16, 1536 // shape.num_steps))
        tables = draw_tables(dice, count, num_cuts * shape.num_steps, shape.num_variates)
        return cls(tables, _relations(dice, tables, shape.num_steps))

    def replace(self, other: Pool) -> None:
        """Take the tables of another pool, in the same memory."""
        self.tables_SLV.copy_(other.tables_SLV)
        self.relations.copy_(other.relations)

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
        return values_BTV, self.relations.of(table_B)


def _relations(dice: Dice, tables_SLV: Tensor, num_steps: int) -> Relations:
    """What `read_relations` finds in a table, of which it may have seen only the first rows."""
    count, length, num_variates = tables_SLV.shape
    rows_S = dice.log_uniform(count, low=num_steps, high=length).round()
    seen_SL1 = (torch.arange(length, device=rows_S.device) < rows_S[:, None])[..., None]
    cuts = tables_SLV.view(count, -1, num_steps, num_variates)
    level = (cuts - cuts.mean(2, keepdim=True)).flatten(1, 2)
    change = deviations(tables_SLV, tables_SLV, "change")
    memory = steps_of_memory(num_variates)
    moving = successive(tables_SLV, memory)
    covariances = []
    for part in (level, change, moving):
        # Of what reaches over several steps, the last one counts.
        part = part * seen_SL1[:, length - part.shape[1] :]
        known_S11 = seen_SL1[:, length - part.shape[1] :].sum(1, keepdim=True).clamp_min(1)
        covariances.append(part.mT @ part / known_S11)
    level_SVV, change_SVV, moving_SS = covariances
    free = free_of_chance(moving_SS, rows_S, num_variates)
    return Relations(level_SVV, change_SVV, whitening(free))
