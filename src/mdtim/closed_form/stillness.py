"""Where a variate hardly moves: what the network says of less than it can tell apart is a line.

The scale of a window is no smaller than a share of the variate's std. Of a stretch that moves by
far less (the first days of an epidemic, a machine on standby) the network sees a straight line and
fills it up to its own error, which may be many times what moves there.

B windows, T steps, V variates, C cells.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

NEAR = 8
"""Steps to both sides that say how much a variate moves at a cell."""


def movement(values_BTV: Tensor, visible_BTV: Tensor) -> Tensor:
    """(B, T, V) largest minus smallest visible value near each cell; infinite if there is none."""
    pairs = torch.stack([values_BTV, -values_BTV]).masked_fill(~visible_BTV, -torch.inf)
    rows = pairs.movedim(2, -1).flatten(0, 2)  # (2 * B * V, T)
    most = F.max_pool1d(rows[:, None], 2 * NEAR + 1, stride=1, padding=NEAR)[:, 0]
    high, minus_low = most.view(2, *pairs.movedim(2, -1).shape[1:]).movedim(-1, 2)
    span = high + minus_low
    return torch.where(span.isfinite(), span, torch.inf)


def correction(filled: Tensor, linear: Tensor, moves: Tensor, least: float) -> Tensor:
    """(C,) what moves a fill onto the line, where both it and the variate move by too little.

    Parameters
    ----------
    filled, linear : (C,) float64, what the network says, and the line
    moves : (C,) see :func:`movement`
    least : movement that the network can tell apart, in the same units
    """
    away = linear - filled
    trust = (torch.maximum(moves.double(), away.abs()) / least).clamp_max(1.0)
    return (1 - trust) * away
