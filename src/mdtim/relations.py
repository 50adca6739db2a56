"""Read the relations among the variates off a table: two covariance matrices.

N rows, W windows, T steps, V variates.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mdtim.guesses import Kind, Relations, deviations, draw_line, relate
from mdtim.series import DeviceSeries, DeviceWindows
from mdtim.windows import WindowIndex

MAX_CELLS = 4_000_000
"""Enough to know a covariance; a longer table is sampled evenly."""
ENOUGH_ROWS = 200.0
"""Rows in which two variates are both known, from which on these rows alone decide."""
ROUNDS = 3
"""The first fills gaps by the windows' own relations, the next by what that told of the table."""


def read_relations(series: DeviceSeries, index: WindowIndex) -> Relations:
    """Estimate how the variates move together inside the given windows.

    Two variates are compared where both are known. Where that is seldom, windows filled by the
    relations found so far help out; a filled cell varies less than a real one, so only there.
    """
    num_variates = series.values_NV.shape[1]
    length = index.length
    every = max(1, -(-len(index) * length * num_variates // MAX_CELLS))
    index = index.take(np.arange(0, len(index), every))
    windows = DeviceWindows.put(index, series.values_NV.device)
    per_batch = max(1, 500_000 // (length * num_variates))
    relations = Relations.none(num_variates, series.values_NV.device)
    for _ in range(ROUNDS):
        kinds: tuple[Kind, Kind] = ("level", "change")
        sums = [_Sums(num_variates, series.values_NV.device, kind) for kind in kinds]
        for begin in range(0, len(windows), per_batch):
            part = slice(begin, begin + per_batch)
            batch = series.gather(windows.starts[part], windows.ends[part], length)
            for one in sums:
                one.add(batch.values_BTV, batch.observed_BTV, relations)
        relations = Relations(*(one.covariance() for one in sums))
    return relations


class _Sums:
    """Sums of products of one kind over the windows of a table, in float64."""

    def __init__(self, num_variates: int, device: torch.device, kind: Kind) -> None:
        self.kind = kind
        square = (num_variates, num_variates)
        self.filled_VV = torch.zeros(square, dtype=torch.float64, device=device)
        self.known_VV, self.counts_VV = self.filled_VV.clone(), self.filled_VV.clone()
        self.num_rows = 0

    def add(self, values_BTV: Tensor, observed_BTV: Tensor, relations: Relations) -> None:
        line = draw_line(values_BTV, observed_BTV)
        filled = relate(values_BTV, observed_BTV, line, relations, self.kind).kriging_BTV
        known = observed_BTV
        if self.kind == "change":
            known = observed_BTV[:, 1:-1] & observed_BTV[:, 2:] & observed_BTV[:, :-2]
        count = observed_BTV.sum(1, keepdim=True)
        mean = (values_BTV * observed_BTV).sum(1, keepdim=True) / count.clamp_min(1)
        # A variate with nothing visible in the window says nothing about itself.
        deviation = (deviations(filled, mean, self.kind) * (count > 0)).double().flatten(0, 1)
        self.filled_VV += deviation.mT @ deviation
        self.num_rows += len(deviation)
        there = known.double().flatten(0, 1)
        self.known_VV += (deviation * there).mT @ (deviation * there)
        self.counts_VV += there.mT @ there

    def covariance(self) -> Tensor:
        filled = self.filled_VV / max(self.num_rows, 1)
        known = self.known_VV / self.counts_VV.clamp_min(1)
        matrix = torch.lerp(filled, known, self.counts_VV / (self.counts_VV + ENOUGH_ROWS))
        # Entries from different rows need not make a covariance together: the nearest one does.
        values, vectors = torch.linalg.eigh(matrix)
        values = values.clamp_min(1e-4 * values.mean())
        covariance: Tensor = ((vectors * values) @ vectors.mT).float()
        return covariance
