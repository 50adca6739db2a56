"""Muon against its definition: the polar factor of the momentum."""

from __future__ import annotations

import pytest
import torch

from conftest import tiny_config
from mdtim.learning.muon import MOMENTUM, Muon, orthogonalize
from training_cases import trainer


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 8, 40), (1, 1, 5)])
def test_all_directions_come_out_about_equally_strong(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    strong = orthogonalize(torch.randn(shape, generator=generator) * 1e-4)
    values = torch.linalg.svdvals(strong)
    assert values.min() > 0.3
    assert values.max() < 1.3


def test_it_keeps_the_directions() -> None:
    x = torch.randn((1, 12, 20), generator=torch.Generator().manual_seed(1))
    u, _, v = torch.linalg.svd(x[0], full_matrices=False)
    cosine = torch.nn.functional.cosine_similarity(
        orthogonalize(x).flatten(), (u @ v).flatten(), dim=0
    )
    assert cosine > 0.95


def test_a_zero_gradient_moves_nothing() -> None:
    assert torch.equal(orthogonalize(torch.zeros(2, 4, 6)), torch.zeros(2, 4, 6))


@pytest.mark.parametrize(
    ("shape", "parts"), [((24, 8), 3), ((8, 8), 1), ((32, 8), 1), ((8, 32), 1)]
)
def test_a_stack_moves_like_its_matrices_one_by_one(shape: tuple[int, int], parts: int) -> None:
    generator = torch.Generator().manual_seed(2)
    together = [torch.randn(shape, generator=generator) for _ in range(3)]
    alone = [
        weight[rows].clone()
        for weight in together
        for rows in torch.arange(shape[0]).view(parts, -1)
    ]
    optimizers = [Muon([(w, parts) for w in together], 0.1)]
    optimizers += [Muon([(w, 1)], 0.1) for w in alone]
    for _ in range(3):
        for weight in together:
            weight.grad = torch.randn(shape, generator=generator)
        gradients = torch.cat([weight.grad for weight in together if weight.grad is not None])
        for weight, gradient in zip(alone, gradients.split(shape[0] // parts), strict=True):
            weight.grad = gradient.clone()
        for optimizer in optimizers:
            optimizer.step(0.01)
    torch.testing.assert_close(torch.cat(together), torch.cat(alone), rtol=1e-5, atol=1e-6)


def test_the_size_of_a_step_hangs_on_the_rate_and_not_on_the_gradient() -> None:
    moved = []
    for size in (1e-6, 1e3):
        weight = torch.zeros(16, 16)
        weight.grad = size * torch.randn((16, 16), generator=torch.Generator().manual_seed(3))
        Muon([(weight, 1)], 0.0).step(0.01)
        moved.append(weight)
    torch.testing.assert_close(*moved)
    # About as far as AdamW would go.
    assert moved[0].square().mean().sqrt() == pytest.approx(0.2 * 0.01, rel=0.3)


def test_old_gradients_are_remembered() -> None:
    weight = torch.zeros(4, 4)
    optimizer = Muon([(weight, 1)], 0.0)
    weight.grad = torch.eye(4)
    optimizer.step(0.1)
    weight.grad = torch.zeros(4, 4)
    before = weight.clone()
    optimizer.step(0.1)
    assert not torch.equal(weight, before)
    torch.testing.assert_close(optimizer.momentum[weight], MOMENTUM * (1 - MOMENTUM) * torch.eye(4))


def test_training_with_muon_learns() -> None:
    run = trainer(
        tiny_config(
            optimizer="muon", max_steps=200, validate_every=50, learning_rate=5e-3, dropout=0.0
        )
    )
    before = run.data.error(run.predictor())
    run.run()
    assert run.progress.best_mae < 0.8 * before
