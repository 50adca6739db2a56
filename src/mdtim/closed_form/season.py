"""What a window's season says of its gaps: the line through them, with the season on it.

A line knows nothing of the days that pass inside an outage. Sines of the season and its overtones
are fitted to what a window shows of a variate, and added to the line between the visible cells.

B windows, T steps, V variates, P fitted numbers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mdtim.closed_form.guesses import Neighbours

OVERTONES = 4
"""Sines of one season, the slowest as long as it."""
SEASONS = 3
"""That a window must have room for."""
_MOST = 1.5
"""In half-ranges of the window; readings farther from its middle are pulled in."""
_TREND = 2
"""Numbers of a level and a slope, which are fitted beside the sines and left to the line."""
_RIDGE = 2.0
"""Cells that speak against a sine."""


def above_the_line(x_BTV: Tensor, neighbours: Neighbours, season: int) -> Tensor:
    """(B, T, V) float64, how far the season lies above the line through it at the visible cells.

    Parameters
    ----------
    x_BTV : visible values, about unit size; 0 elsewhere
    season : steps
    """
    basis_TP = _basis(x_BTV.shape[1], season, x_BTV.device)
    # A reading beyond belief is no part of a season.
    shown_BTV = x_BTV.double().clamp(-_MOST, _MOST)
    coefficients_BVP = _fit(shown_BTV, neighbours.visible_BTV.double(), basis_TP)
    season_BTV = _weighted(coefficients_BVP[..., _TREND:], basis_TP[:, _TREND:])
    return season_BTV - neighbours.line(season_BTV.to(x_BTV.dtype))


def _basis(num_steps: int, season: int, device: torch.device) -> Tensor:
    """(T, P): a level, a slope, then the sines."""
    step_T = torch.arange(num_steps, dtype=torch.float64, device=device)
    columns = [torch.ones_like(step_T), step_T / num_steps - 0.5]
    for overtone in range(1, min(OVERTONES, (season - 1) // 2) + 1):
        angle_T = 2 * math.pi * overtone / season * step_T
        columns += [angle_T.cos(), angle_T.sin()]
    return torch.stack(columns, dim=1)


def _fit(x_BTV: Tensor, visible_BTV: Tensor, basis_TP: Tensor) -> Tensor:
    """(B, V, P) least squares over the visible cells, with a ridge."""
    count = basis_TP.shape[1]
    shown_BTV = x_BTV * visible_BTV
    products = x_BTV.new_empty((x_BTV.shape[0], x_BTV.shape[2], count, count))
    right = x_BTV.new_empty((x_BTV.shape[0], x_BTV.shape[2], count))
    # Sums and no matrix product, whose last bits would depend on the batch.
    for first in range(count):
        column_T1 = basis_TP[:, first, None]
        right[..., first] = (shown_BTV * column_T1).sum(1)
        for second in range(first + 1):
            both = (visible_BTV * (column_T1 * basis_TP[:, second, None])).sum(1)
            products[..., first, second] = products[..., second, first] = both
    ridge_P = torch.full_like(basis_TP[0], _RIDGE)
    ridge_P[:_TREND] = 1e-3
    found: Tensor = torch.linalg.solve(products + torch.diag(ridge_P), right)
    return found


def _weighted(coefficients_BVP: Tensor, basis_TP: Tensor) -> Tensor:
    total = torch.zeros((), dtype=torch.float64, device=basis_TP.device)
    for number, column_T in enumerate(basis_TP.unbind(1)):
        total = total + column_T[:, None] * coefficients_BVP[:, None, :, number]
    return total
