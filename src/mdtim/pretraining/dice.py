"""Random numbers that are the same on every machine."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mdtim.runtime import keyed_uniform


class Dice:
    """A stream of random tensors, a pure function of the seed and of what was drawn before.

    PyTorch's own generators give other numbers on a GPU than on a CPU; these do not (normal
    numbers agree to rounding).
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self.seed = seed
        self.device = device
        self.stream = 0

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Even numbers in [low, high)."""
        self.stream += 1
        keys = torch.arange(math.prod(shape), device=self.device)
        return low + (high - low) * keyed_uniform(self.seed, self.stream, keys).view(shape)

    def log_uniform(self, *shape: int, low: float, high: float) -> Tensor:
        """Numbers in [low, high) whose logarithms are even."""
        return self.uniform(*shape, low=math.log(low), high=math.log(high)).exp()

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers (Box and Muller)."""
        radius = (-2 * torch.log1p(-self.uniform(*shape))).sqrt()
        return radius * torch.cos(2 * math.pi * self.uniform(*shape))

    def chance(self, *shape: int, share: float) -> Tensor:
        """True in about `share` of the places."""
        return self.uniform(*shape) < share

    def choose(self, *shape: int, weights: list[float]) -> Tensor:
        """Integers 0, 1, … in proportion to the weights."""
        edges = torch.tensor(weights, device=self.device).cumsum(0)
        picked = torch.bucketize(self.uniform(*shape) * edges[-1], edges, right=True)
        return picked.clamp_max(len(weights) - 1)
