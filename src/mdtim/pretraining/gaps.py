"""Which cells of made-up windows are hidden: every way that cells get lost.

B windows, T steps, V variates. True means hidden.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from mdtim.masks import draw_points, draw_runs

EDGES = (0.25, 0.52, 0.65, 0.73, 0.79, 0.95)
"""Where each way but the first begins on a scale from 0 to 1: their shares."""
MOST = 0.95
"""Largest share of a window that is hidden."""


def draw_gaps(values_BTV: Tensor, generator: torch.Generator) -> Tensor:
    """Hide points, runs, both, joint runs, whole variates, a few long gaps, or high values."""
    num_windows, num_steps, num_variates = values_BTV.shape
    shape = (num_windows, num_steps, num_variates)
    device = values_BTV.device

    def uniform(*size: int) -> Tensor:
        return torch.rand(size, generator=generator, device=device)

    rate_B = 0.02 + (MOST - 0.02) * uniform(num_windows)
    longest = max(num_steps / 3, 2.5)
    mean_run_B = torch.exp(uniform(num_windows) * math.log(longest / 2)) * 2
    points = draw_points(rate_B, shape, generator)
    runs = draw_runs(rate_B, mean_run_B, shape, generator)
    few_points = draw_points(0.3 * rate_B, shape, generator)
    some_runs = draw_runs(0.7 * rate_B, mean_run_B, shape, generator)
    joint = draw_runs(0.6 * rate_B, mean_run_B, shape, generator)[:, :, :1].expand(shape)
    # At least one variate stays.
    gone = uniform(num_windows, 1, num_variates) < 0.7 * rate_B[:, None, None]
    gone = gone & (torch.arange(num_variates, device=device) > 0)
    order = uniform(num_windows, num_variates).argsort(1)[:, None].expand(shape)
    whole = gone.expand(shape).gather(2, order) | few_points
    long_gaps = _one_gap_each(uniform, shape)
    # High values are lost more often, as from a sensor that saturates.
    steepness = 1 + 4 * uniform(num_windows, 1, 1)
    threshold = 2 * uniform(num_windows, 1, num_variates) - 0.5
    lost = uniform(*shape) < torch.sigmoid(steepness * (values_BTV - threshold))
    ways = [points, runs, some_runs | few_points, joint | few_points, whole, long_gaps, lost]
    picked_B = uniform(num_windows)[:, None, None]
    hidden = ways[0]
    for way, edge in zip(ways[1:], EDGES, strict=True):
        hidden = torch.where(picked_B >= edge, way, hidden)
    return hidden


def _one_gap_each(uniform: Callable[..., Tensor], shape: tuple[int, int, int]) -> Tensor:
    """One long gap in some of the variates, all else visible."""
    num_windows, num_steps, num_variates = shape
    share = uniform(num_windows, 1, 1)
    length = num_steps * (0.05 + 0.6 * uniform(num_windows, 1, num_variates))
    start = uniform(num_windows, 1, num_variates) * (num_steps + length) - length
    step = torch.arange(num_steps, device=share.device)[:, None]
    inside: Tensor = (step >= start) & (step < start + length)
    chosen: Tensor = uniform(num_windows, 1, num_variates) < 0.2 + 0.8 * share
    return inside & chosen
