"""Some cells of every window, side by side: those that something is asked about.

Behind the attention of the last block no cell looks at another, so only these go on from there.
B windows, T steps, V variates, N places for the cells of a window.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Wanted:
    """Wanted cells, as many places for each window as the one with the most of them needs."""

    place_BN: Tensor
    """int64, the cell's number in its window, t * V + v; in order, other cells behind them."""
    own_BN: Tensor
    """bool, False for the other cells."""

    @classmethod
    def find(cls, wanted_BTV: Tensor) -> Wanted | None:
        """The cells where the mask is True; None if a window has so many that nothing is spared."""
        wanted_BC = wanted_BTV.flatten(1)
        if not wanted_BC.numel():
            return None
        count_B = wanted_BC.sum(1)
        # In eights, for products whose bits do not hang on the batch (see `series.whole_batch`).
        num_places = 8 * -(-int(count_B.max()) // 8)
        if num_places >= wanted_BC.shape[1]:
            return None
        order_BC = wanted_BC.byte().argsort(dim=1, descending=True, stable=True)
        own_BN = torch.arange(num_places, device=count_B.device) < count_B[:, None]
        return cls(order_BC[:, :num_places], own_BN)

    def repeat(self, times: int) -> Wanted:
        """The same windows several times, one after the other."""
        return Wanted(self.place_BN.repeat(times, 1), self.own_BN.repeat(times, 1))

    def rows(self, window_cells: int) -> Tensor:
        """(B * N,) the cells counted through all windows of so many cells each."""
        first_B = torch.arange(len(self.place_BN), device=self.place_BN.device) * window_cells
        return (first_B[:, None] + self.place_BN).flatten()

    def pick(self, x_BTVX: Tensor) -> Tensor:
        """(B, N, 1, X) what there is of the wanted cells, from what there is of all."""
        num_windows, num_steps, num_variates, width = x_BTVX.shape
        rows = self.rows(num_steps * num_variates)
        picked_RX = x_BTVX.reshape(-1, width).index_select(0, rows)
        return picked_RX.view(num_windows, -1, 1, width)
