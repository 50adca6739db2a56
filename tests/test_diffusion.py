from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import tiny_config
from mdtim.config import DiffusionConfig
from mdtim.diffusion import (
    loss_weight,
    masked_loss,
    reverse_step,
    spectral_distance,
    stratified_times,
    tokenize,
    total_noise,
)
from mdtim.distribution import BinDistribution
from mdtim.network import FactorizedDiT
from mdtim.readout import soft_cross_entropy
from mdtim.tokenizer import Tokenizer


def soft_label(target: int, num_bins: int, config: DiffusionConfig) -> torch.Tensor:
    """Equation 2 of the paper, written out."""
    index = torch.arange(num_bins, dtype=torch.float64)
    label = torch.exp(-((index - target) ** 2) / config.label_variance)
    label[(index - target).abs() > config.label_width] = 0
    return label / label.sum()


@given(st.integers(0, 59), st.integers(0, 50), st.sampled_from([0, 1, 2, 4]))
def test_the_loss_is_the_cross_entropy_to_the_soft_label(
    target: int, seed: int, width: int
) -> None:
    config = DiffusionConfig(label_width=width)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(60, generator=generator, dtype=torch.float64)
    label = soft_label(target, 60, config)
    expected = -(label * logits.log_softmax(-1)).sum()
    found = soft_cross_entropy(logits, torch.tensor(float(target), dtype=torch.float64), config)
    assert float(found) == pytest.approx(float(expected), abs=1e-9)


@given(st.integers(0, 59), st.integers(0, 50))
def test_soft_label_loss_decomposes_into_nelbo_and_divergence(target: int, seed: int) -> None:
    config = DiffusionConfig()
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(60, generator=generator, dtype=torch.float64)
    log_p = logits.log_softmax(-1)
    label = soft_label(target, 60, config)
    epsilon = 1 - label[target]
    rest = label.clone()
    rest[target] = 0
    rest = rest / epsilon
    near = rest > 0
    divergence = (rest[near] * (rest[near].log() - log_p[near])).sum()
    entropy = -(rest[near] * rest[near].log()).sum()
    expected = (1 - epsilon) * -log_p[target] + epsilon * divergence + epsilon * entropy
    found = soft_cross_entropy(logits, torch.tensor(float(target), dtype=torch.float64), config)
    assert float(found) == pytest.approx(float(expected), abs=1e-9)


@given(st.floats(0, 59), st.integers(0, 20))
def test_a_target_between_two_bins_is_the_expectation_over_draws(target: float, seed: int) -> None:
    config = DiffusionConfig()
    logits = torch.randn(60, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    whole = [
        torch.tensor(float(n), dtype=torch.float64) for n in (math.floor(target), math.ceil(target))
    ]
    share = target - math.floor(target)
    parts = [float(soft_cross_entropy(logits, one, config)) for one in whole]
    found = soft_cross_entropy(logits, torch.tensor(target, dtype=torch.float64), config)
    assert float(found) == pytest.approx((1 - share) * parts[0] + share * parts[1], abs=1e-9)


def test_the_schedule_masks_a_share_t_and_weighs_it_with_one_over_t() -> None:
    time = torch.linspace(0.01, 1, 50, dtype=torch.float64)
    masked = 1 - torch.exp(-total_noise(time))
    assert torch.allclose(masked, 0.999 * time)
    assert torch.allclose(loss_weight(time), 1 / time)


@given(st.integers(1, 300), st.integers(0, 20))
def test_times_of_a_batch_lie_one_in_each_slice(count: int, seed: int) -> None:
    times = stratified_times(count, torch.Generator().manual_seed(seed))
    slices = ((times - 1e-3) / (1 - 1e-3) * count).floor().clamp_max(count - 1)
    assert (slices - torch.arange(count)).abs().max() <= 1  # rounding at a slice's edge
    assert times.min() >= 1e-3
    assert times.max() <= 1


@given(st.integers(1, 40), st.integers(0, 20))
def test_the_spectral_term_is_the_l1_norm_of_the_fourier_transform(steps: int, seed: int) -> None:
    difference = torch.randn(
        (2, steps, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    full = torch.fft.fft(difference, dim=1, norm="ortho")
    expected = full.real.abs().mean(1) + full.imag.abs().mean(1)
    assert torch.allclose(spectral_distance(difference), expected, atol=1e-9)


def test_both_ways_to_the_spectral_term_agree() -> None:
    difference = torch.randn((1, 513, 2), dtype=torch.float64)
    full = torch.fft.fft(difference, dim=1, norm="ortho")
    expected = full.real.abs().mean(1) + full.imag.abs().mean(1)
    assert torch.allclose(spectral_distance(difference), expected, atol=1e-9)


def loss_of(
    values: torch.Tensor, observed: torch.Tensor, hidden: torch.Tensor, **changes: object
) -> torch.Tensor:
    config = tiny_config(dropout=0.0, **changes)
    torch.manual_seed(0)
    network = FactorizedDiT(config.network, config.tokenizer, values.shape[2])
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    tokenizer = Tokenizer(config.tokenizer)
    tokens, scale = tokenize(
        tokenizer,
        values,
        observed & ~hidden,
        prior=config.network.prior,
        relations=network.relations,
    )
    return masked_loss(
        network,
        tokenizer,
        config.diffusion,
        tokens=tokens,
        scale=scale,
        values_BTV=values,
        observed_BTV=observed,
        hidden_BTV=hidden,
        time_B=torch.full((len(values),), 0.4),
        target_noise_BTV=None,
    )


def test_missing_cells_reach_neither_the_input_nor_the_loss() -> None:
    values = torch.randn((3, 12, 2))
    observed = torch.rand(values.shape) < 0.7
    hidden = torch.rand(values.shape) < 0.4
    poisoned = torch.where(observed, values, torch.full_like(values, 1e6))
    assert torch.equal(loss_of(values, observed, hidden), loss_of(poisoned, observed, hidden))


@pytest.mark.parametrize(
    "changes", [{}, {"spectral_weight": 0.0}, {"continuous": True, "prior": "none"}]
)
def test_every_objective_is_finite_and_has_gradients(changes: dict[str, object]) -> None:
    values = torch.randn((3, 12, 2))
    observed = torch.ones_like(values, dtype=torch.bool)
    loss = loss_of(values, observed, torch.rand(values.shape) < 0.4, **changes)
    assert torch.isfinite(loss)
    assert loss.requires_grad


def test_the_reverse_step_unmasks_the_share_of_the_kernel_and_never_touches_the_rest() -> None:
    shape = (200, 30, 2)
    generator = torch.Generator().manual_seed(0)
    masked = torch.rand(shape, generator=generator) < 0.5
    distribution = BinDistribution(
        torch.full((*shape, 4), 0.25), torch.zeros(shape).double(), torch.ones(shape).double()
    )
    revealed, drawn = reverse_step(
        distribution,
        masked,
        time=0.8,
        next_time=0.6,
        reveal_BTV=torch.rand(shape, generator=generator),
        pick_BTV=torch.rand(shape, generator=generator),
    )
    assert not (revealed & ~masked).any()
    assert float(revealed.sum() / masked.sum()) == pytest.approx(0.2 / 0.8, abs=0.02)
    np.testing.assert_allclose(float(drawn.mean()), 1.5, atol=0.05)


def test_the_last_reverse_step_leaves_no_mask() -> None:
    shape = (2, 3, 1)
    masked = torch.ones(shape, dtype=torch.bool)
    distribution = BinDistribution(
        torch.full((*shape, 4), 0.25), torch.zeros(shape).double(), torch.ones(shape).double()
    )
    ones = torch.full(shape, 0.999999)
    revealed, _ = reverse_step(
        distribution, masked, time=0.1, next_time=0.0, reveal_BTV=ones, pick_BTV=ones
    )
    assert revealed.all()
