"""Muon: momentum made orthogonal, so that all directions of a weight matrix learn alike.

AdamW scales every number of a gradient by itself; the gradient of a matrix is then still ruled by
its few strongest directions. Muon keeps the directions and makes their strengths equal, by a few
matrix products instead of a decomposition (Jordan and others, 2024).

Matrices of one shape are stacked and go through the products together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

MOMENTUM = 0.95
_ROUNDS = 5
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the odd polynomial that takes singular values in (0, 1] close to 1 within the rounds."""
_ADAM_LIKE = 0.2
"""Root mean square of an update of AdamW with the same learning rate (Liu and others, 2025)."""


def orthogonalize(x_NRC: Tensor) -> Tensor:
    """Bring all singular values of a stack of matrices close to 1 (R ≤ C).

    Five rounds bring all but the very small ones near 1, which is enough to learn alike.
    """
    a, b, c = _COEFFICIENTS
    x: Tensor = x_NRC / x_NRC.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-7)
    if x.is_cuda:
        x = x.bfloat16()
    for _ in range(_ROUNDS):
        gram = x @ x.mT
        x = a * x + torch.baddbmm(gram, gram, gram, beta=b, alpha=c) @ x
    return x.to(x_NRC.dtype)


class _Stack:
    """Matrices of one shape: parts of weights, turned so that they are not higher than wide."""

    def __init__(self, weights: list[Tensor], parts: int) -> None:
        self.weights = weights
        self.parts = parts
        rows, columns = weights[0].shape[0] // parts, weights[0].shape[1]
        self.turned = rows > columns
        self.step_size = _ADAM_LIKE * max(rows, columns) ** 0.5

    def update(self, momenta: list[Tensor], decay: float, rate: float | Tensor) -> None:
        gradients = [weight.grad for weight in self.weights if weight.grad is not None]
        assert len(gradients) == len(self.weights), "every matrix is used in every step"
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        ahead = torch._foreach_lerp(gradients, momenta, MOMENTUM)
        stacked = torch.cat([x.view(self.parts, -1, x.shape[1]) for x in ahead])
        update = orthogonalize(stacked.mT if self.turned else stacked)
        update = (update.mT if self.turned else update) * (self.step_size * rate)
        if decay:
            torch._foreach_mul_(self.weights, 1 - rate * decay)
        split = update.reshape(len(self.weights), *self.weights[0].shape)
        torch._foreach_sub_(self.weights, split.unbind())


class Muon:
    """Muon for weight matrices.

    Parameters
    ----------
    weights : pairs of a weight and the number of matrices that lie in its rows (3 for q, k and v)
    weight_decay : decoupled, as in AdamW
    """

    def __init__(self, weights: Iterable[tuple[Tensor, int]], weight_decay: float) -> None:
        self.weight_decay = weight_decay
        self.momentum: dict[Tensor, Tensor] = {}
        by_shape: dict[tuple[torch.Size, int], list[Tensor]] = defaultdict(list)
        for weight, parts in weights:
            self.momentum[weight] = torch.zeros_like(weight)
            by_shape[weight.shape, parts].append(weight)
        self.stacks = [_Stack(same, parts) for (_, parts), same in by_shape.items()]

    @torch.no_grad()
    def step(self, rate: float | Tensor) -> None:
        """Follow the gradients of the weights."""
        for stack in self.stacks:
            momenta = [self.momentum[weight] for weight in stack.weights]
            stack.update(momenta, self.weight_decay, rate)
