"""Single made-up signals: N at once, each of its own kind, all about unit size.

N signals, L steps.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mdtim.pretraining.dice import Dice

USUAL_PERIODS = (7, 12, 24, 48, 52, 60, 96, 144, 168, 288)
"""Steps of the days, weeks and years that people sample."""


def draw_signals(dice: Dice, count: int, length: int) -> Tensor:
    """(N, L) signals: plain, sums, products, and switches between two."""
    first, second, slow = (draw_plain(dice, count, length) for _ in range(3))
    share = dice.log_uniform(count, 1, low=0.1, high=1.5)
    ways = [
        first,
        first + share * second,
        first * (1 + share * second),
        torch.where(slow > dice.uniform(count, 1, low=-1.0, high=1.0), first, second),
    ]
    way = dice.choose(count, weights=[0.5, 0.25, 0.1, 0.15])
    return unit_size(_pick(ways, way))


def draw_plain(dice: Dice, count: int, length: int) -> Tensor:
    """(N, L) signals of one kind each."""
    kinds = [
        colored_noise(dice, count, length),
        seasons(dice, count, length),
        random_walk(dice, count, length),
        levels(dice, count, length),
        trends(dice, count, length),
        switches(dice, count, length),
        bursts(dice, count, length),
    ]
    kind = dice.choose(count, weights=[0.38, 0.27, 0.12, 0.06, 0.05, 0.05, 0.07])
    return unit_size(_pick(kinds, kind))


def _pick(options: list[Tensor], choice_N: Tensor) -> Tensor:
    stacked = torch.stack(options)
    return stacked[choice_N, torch.arange(stacked.shape[1], device=stacked.device)]


def unit_size(x_NL: Tensor) -> Tensor:
    """Centre and scale along the last axis; a constant stays zero."""
    centered = x_NL - x_NL.mean(-1, keepdim=True)
    return centered / centered.std(-1, keepdim=True).clamp_min(1e-6)


def colored_noise(dice: Dice, count: int, length: int) -> Tensor:
    """Gaussian processes by their spectra: a slope, a corner and, in a third, a peak.

    White noise, Ornstein-Uhlenbeck, Matérn-like, autoregressive and damped oscillations alike.
    """
    frequency = torch.arange(length // 2 + 1, device=dice.device) / length
    corner = dice.log_uniform(count, 1, low=1 / length, high=0.15)
    slope = dice.uniform(count, 1, low=0.0, high=6.0)
    power = (1 + (frequency / corner) ** 2) ** (-slope / 2)
    peak = dice.log_uniform(count, 1, low=4 / length, high=0.4)
    width = peak * dice.log_uniform(count, 1, low=0.01, high=0.5)
    height = dice.log_uniform(count, 1, low=1.0, high=100.0)
    bump = power.mean(-1, keepdim=True) * height / (1 + ((frequency - peak) / width) ** 2)
    power = torch.where(dice.chance(count, 1, share=0.33), power + bump, power)
    shape = (count, length // 2 + 1)
    noise = torch.complex(dice.normal(*shape), dice.normal(*shape))
    noise[:, 0] = 0
    return unit_size(torch.fft.irfft(noise * power.sqrt(), length))


def seasons(dice: Dice, count: int, length: int) -> Tensor:
    """Repeating shapes whose phase and height drift."""
    usual = torch.tensor([float(p) for p in USUAL_PERIODS if p <= length / 3], device=dice.device)
    place = (dice.uniform(count, 1) * len(usual)).long().clamp_max(max(len(usual) - 1, 0))
    period = dice.log_uniform(count, 1, low=4.0, high=max(length / 3, 5.0))
    if len(usual):
        period = torch.where(dice.chance(count, 1, share=0.6), usual[place], period)
    step = torch.arange(length, device=dice.device)
    wobble = _slow(dice, count, length) * dice.log_uniform(count, 1, low=0.01, high=0.3)
    phase = 2 * math.pi * (step / period + dice.uniform(count, 1) + wobble)
    decay = dice.uniform(count, 1, low=0.3, high=2.0)
    signal = torch.zeros(count, length, device=dice.device)
    for harmonic in range(1, 6):
        height = dice.normal(count, 1) * harmonic**-decay
        signal = signal + height * torch.sin(
            harmonic * phase + 2 * math.pi * dice.uniform(count, 1)
        )
    swell = dice.uniform(count, 1, low=0.0, high=0.6) * _slow(dice, count, length)
    return signal * (1 + swell)


def _slow(dice: Dice, count: int, length: int) -> Tensor:
    """Smooth noise that varies over a third of the length or so."""
    shape = (count, min(length // 2 + 1, 6))
    noise = torch.complex(dice.normal(*shape), dice.normal(*shape))
    noise[:, 0] = 0
    spectrum = torch.nn.functional.pad(noise, (0, length // 2 + 1 - shape[1]))
    return unit_size(torch.fft.irfft(spectrum, length))


def random_walk(dice: Dice, count: int, length: int) -> Tensor:
    """Sums of increments, some of them heavy-tailed, some pulled back to the middle."""
    tail = dice.uniform(count, 1, low=0.0, high=1.2)
    increments = dice.normal(count, length) * torch.exp(tail * dice.normal(count, length))
    return increments.cumsum(-1)


def levels(dice: Dice, count: int, length: int) -> Tensor:
    """Constant between jumps."""
    rate = dice.log_uniform(count, 1, low=2.0, high=40.0) / length
    jumps = (dice.uniform(count, length) < rate) * dice.normal(count, length)
    held = jumps.cumsum(-1)
    # In half of them a jump leads to a new level instead of adding to the old.
    index = torch.where(jumps != 0, torch.arange(length, device=dice.device), 0).cummax(-1).values
    fresh = dice.normal(count, length).gather(-1, index)
    return torch.where(dice.chance(count, 1, share=0.5), held, fresh)


def trends(dice: Dice, count: int, length: int) -> Tensor:
    """Straight pieces that bend at change points."""
    rate = dice.log_uniform(count, 1, low=1.0, high=12.0) / length
    bends = (dice.uniform(count, length) < rate) * dice.normal(count, length)
    return (bends.cumsum(-1) + dice.normal(count, 1)).cumsum(-1)


def switches(dice: Dice, count: int, length: int) -> Tensor:
    """On and off, at random or with the seasons."""
    driver = torch.where(
        dice.chance(count, 1, share=0.5),
        colored_noise(dice, count, length),
        unit_size(seasons(dice, count, length)),
    )
    return (driver > dice.uniform(count, 1, low=-1.2, high=1.2)).float()


def bursts(dice: Dice, count: int, length: int) -> Tensor:
    """Rare events that decay: rain, calls, spikes of load."""
    rate = dice.log_uniform(count, 1, low=3.0, high=60.0) / length
    height = -torch.log1p(-dice.uniform(count, length))
    events = (dice.uniform(count, length) < rate) * height
    memory = dice.uniform(count, 1, low=0.0, high=0.95)
    frequency = torch.arange(length + 1, device=dice.device) / (2 * length)
    turn = torch.polar(torch.ones_like(frequency), -2 * math.pi * frequency)
    response = 1 / (1 - memory * turn)
    # Padded to twice the length, so that the end does not run into the beginning.
    spectrum = torch.fft.rfft(events, 2 * length) * response
    decaying: Tensor = torch.fft.irfft(spectrum, 2 * length)[:, :length]
    return decaying
