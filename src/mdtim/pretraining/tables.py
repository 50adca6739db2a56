"""Made-up tables: signals tied together as the columns of real tables are.

S tables, L steps, V variates, F hidden signals.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mdtim.pretraining.dice import Dice
from mdtim.pretraining.signals import draw_signals, unit_size

MAX_LAG = 8
MAX_HIDDEN = 8


def draw_tables(dice: Dice, count: int, length: int, num_variates: int) -> Tensor:
    """(S, L, V) standardized tables.

    Each mixes hidden signals (not at all, in groups, densely, or near-copies), lets some variates
    lag, bends some, gives each something of its own, and reads all through imperfect sensors.
    """
    num_hidden = min(MAX_HIDDEN, num_variates)
    hidden = draw_signals(dice, count * num_hidden, length + MAX_LAG)
    hidden = hidden.view(count, num_hidden, length + MAX_LAG)
    mixing = _mixing(dice, count, num_hidden, num_variates)
    common = _lagged(dice, torch.einsum("sfl,sfv->svl", hidden, mixing), length)
    own = draw_signals(dice, count * num_variates, length).view(count, num_variates, length)
    share = dice.log_uniform(count, num_variates, 1, low=0.01, high=2.0)
    # Some tables hang together tightly, in some every variate goes its own way.
    share = share * dice.log_uniform(count, 1, 1, low=0.05, high=2.0)
    x = unit_size(common) + share * own
    x = _sensors(dice, _bent(dice, unit_size(x)))
    x = _copies(dice, x)
    return unit_size(_not_flat(dice, x)).clamp(-12, 12).transpose(1, 2).contiguous()


def _mixing(dice: Dice, count: int, num_hidden: int, num_variates: int) -> Tensor:
    """(S, F, V) weights of the hidden signals."""
    shape = (count, num_hidden, num_variates)
    dense = dice.normal(*shape)
    # Low rank: only the first few hidden signals speak.
    rank = dice.choose(count, 1, 1, weights=[4.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0][:num_hidden])
    speaks = torch.arange(num_hidden, device=dice.device)[:, None] <= rank
    group = dice.choose(count, 1, num_variates, weights=[1.0] * num_hidden)
    index = torch.arange(num_hidden, device=dice.device)[:, None]
    grouped = torch.where(index == group, dense.sign() * dense.abs().clamp_min(0.3), 0.0)
    alone = (index == torch.arange(num_variates, device=dice.device) % num_hidden).float()
    sparse = dense * dice.chance(*shape, share=0.4)
    kind = dice.choose(count, 1, 1, weights=[0.4, 0.25, 0.2, 0.15])
    mixed = torch.where(kind == 0, dense * speaks, torch.where(kind == 1, grouped, sparse))
    mixed = torch.where(kind == 3, alone.expand(shape), mixed)
    # A variate must have something to show.
    return torch.where(mixed.abs().sum(1, keepdim=True) > 0, mixed, alone.expand(shape))


def _lagged(dice: Dice, x_SVL: Tensor, length: int) -> Tensor:
    """Let some variates of some tables follow the others by a few steps."""
    count, num_variates, _ = x_SVL.shape
    lag = (dice.uniform(count, num_variates, 1) ** 2 * (MAX_LAG + 1)).long()
    late = dice.chance(count, num_variates, 1, share=0.4) & dice.chance(count, 1, 1, share=0.5)
    step = torch.arange(length, device=dice.device) + torch.where(late, lag, 0)
    return x_SVL.gather(-1, step.expand(count, num_variates, length))


def _bent(dice: Dice, x_SVL: Tensor) -> Tensor:
    """Non-linear scales: saturating, skewed, one-sided with many zeros, folded, capped."""
    shape = (*x_SVL.shape[:2], 1)
    offset = dice.uniform(*shape, low=-1.0, high=1.0)
    bends = [
        x_SVL,
        torch.tanh(x_SVL * (1.2 + offset)),
        torch.exp(0.8 * x_SVL.clamp(-4, 4)),
        torch.relu(x_SVL - offset.abs() * 1.2),
        (x_SVL - offset).abs(),
        torch.minimum(x_SVL, 0.5 + offset.abs()),
    ]
    kind = dice.choose(*shape, weights=[0.64, 0.08, 0.08, 0.08, 0.05, 0.07])
    bent = x_SVL
    for number, candidate in enumerate(bends):
        bent = torch.where(kind == number, candidate, bent)
    return unit_size(bent)


def _sensors(dice: Dice, x_SVL: Tensor) -> Tensor:
    """Noise, some of it heavy-tailed; rounding; a few absurd readings."""
    shape = (*x_SVL.shape[:2], 1)
    size = dice.log_uniform(*shape, low=0.001, high=0.3)
    tail = torch.where(dice.chance(*shape, share=0.2), 1.0, 0.0)
    noise = dice.normal(*x_SVL.shape) * torch.exp(tail * dice.normal(*x_SVL.shape))
    quiet = dice.chance(*shape, share=0.3)
    x = x_SVL + torch.where(quiet, 0.0, size * noise)
    absurd = dice.chance(*x_SVL.shape, share=0.003) & dice.chance(*shape, share=0.05)
    x = torch.where(absurd, 8 * dice.normal(*x_SVL.shape), x)
    grid = dice.log_uniform(*shape, low=0.01, high=0.5)
    rounded = torch.round(x / grid) * grid
    return torch.where(dice.chance(*shape, share=0.2), rounded, x)


def _copies(dice: Dice, x_SVL: Tensor) -> Tensor:
    """Here and there a variate is another in other units, or the mean of its two neighbours."""
    shape = (*x_SVL.shape[:2], 1)
    other = x_SVL.roll(1, dims=1)
    kind = dice.choose(*shape, weights=[0.92, 0.05, 0.03])
    copied = torch.where(kind == 1, other, x_SVL)
    return torch.where(kind == 2, (other + x_SVL.roll(2, dims=1)) / 2, copied)


def _not_flat(dice: Dice, x_SVL: Tensor) -> Tensor:
    """A variate that never moves teaches nothing: give it noise."""
    flat = x_SVL.std(-1, keepdim=True) < 1e-3
    return torch.where(flat, dice.normal(*x_SVL.shape), x_SVL)
