from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mdtim.distribution import BinDistribution, Calibration, mix
from mdtim.metrics import sample_crps


def random_distribution(seed: int, cells: int = 5, bins: int = 12) -> BinDistribution:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn((cells, bins), generator=generator, dtype=torch.float64)
    low = torch.randn(cells, generator=generator, dtype=torch.float64)
    step = torch.rand(cells, generator=generator, dtype=torch.float64) + 0.1
    return BinDistribution(logits.softmax(-1), low, step)


def drawn(distribution: BinDistribution, count: int) -> np.ndarray:
    """Evenly spaced quantiles: a sample without noise."""
    levels = (np.arange(count) + 0.5) / count
    return np.stack([distribution.quantile(float(level)).numpy() for level in levels])


@given(st.integers(0, 200))
def test_mean_and_std_are_those_of_its_samples(seed: int) -> None:
    distribution = random_distribution(seed)
    samples = drawn(distribution, 4_000)
    np.testing.assert_allclose(distribution.mean().numpy(), samples.mean(0), atol=2e-3)
    np.testing.assert_allclose(distribution.std().numpy(), samples.std(0), atol=5e-3)


@given(st.integers(0, 200), st.floats(0.01, 0.99))
def test_quantile_and_cdf_are_inverse(seed: int, level: float) -> None:
    distribution = random_distribution(seed)
    back = distribution.cdf(distribution.quantile(level))
    np.testing.assert_allclose(back.numpy(), level, atol=1e-9)


@given(st.integers(0, 200), st.floats(-4, 8))
def test_exact_crps_is_the_limit_of_the_sample_formula(seed: int, truth: float) -> None:
    distribution = random_distribution(seed)
    known = torch.full((5,), truth, dtype=torch.float64)
    exact = distribution.crps(known).numpy()
    samples = drawn(distribution, 2_000)
    for cell in range(5):
        estimate = sample_crps([truth], samples[:, cell : cell + 1], np.array([True]))
        assert exact[cell] == pytest.approx(estimate, abs=5e-3)


def test_a_constant_is_certain() -> None:
    probs = torch.zeros(1, 4)
    probs[0, 0] = 1
    constant = BinDistribution(probs, torch.tensor([5.0]).double(), torch.tensor([0.0]).double())
    assert float(constant.mean()) == 5.0
    assert float(constant.std()) == 0.0
    assert float(constant.quantile(0.9)) == 5.0
    assert float(constant.crps(torch.tensor([7.0]))) == 2.0


@given(st.integers(0, 200))
def test_a_mixture_keeps_the_mean_and_has_the_quantiles_of_its_parts(seed: int) -> None:
    one, two = random_distribution(seed), random_distribution(seed + 1_000)
    weight = torch.tensor([[0.25, 0.75]], dtype=torch.float64).expand(5, 2)
    mixed = mix(
        weight,
        torch.stack([one.probs, two.probs], 1),
        torch.stack([one.low, two.low], 1),
        torch.stack([one.step, two.step], 1),
    )
    expected = 0.25 * one.mean() + 0.75 * two.mean()
    np.testing.assert_allclose(mixed.mean().numpy(), expected.numpy(), atol=1e-9)
    np.testing.assert_allclose(mixed.probs.sum(-1).numpy(), 1.0)
    middle = mixed.quantile(0.5)
    level = 0.25 * one.cdf(middle) + 0.75 * two.cdf(middle)
    # Putting both on one grid smears a mass by at most a bin to each side.
    edges = [
        0.25 * one.cdf(middle + s * 2 * mixed.step) + 0.75 * two.cdf(middle + s * 2 * mixed.step)
        for s in (-1, 1)
    ]
    assert ((edges[0] <= 0.5 + 1e-9) & (edges[1] >= 0.5 - 1e-9)).all(), level


def test_a_mixture_of_one_part_is_that_part() -> None:
    one = random_distribution(3)
    weight = torch.tensor([[2.0, 0.0]], dtype=torch.float64).expand(5, 2)
    mixed = mix(
        weight,
        torch.stack([one.probs, torch.zeros_like(one.probs)], 1),
        torch.stack([one.low, torch.zeros_like(one.low)], 1),
        torch.stack([one.step, torch.zeros_like(one.step)], 1),
    )
    np.testing.assert_allclose(mixed.probs.numpy(), one.probs.numpy(), atol=1e-12)
    assert torch.equal(mixed.low, one.low)


def test_calibration_makes_intervals_cover_what_they_promise() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(20_000, generator=generator, dtype=torch.float64)
    centers = torch.linspace(-6, 6, 60, dtype=torch.float64)
    # Twice too wide.
    probs = torch.exp(-0.5 * (centers / 2) ** 2)
    probs = (probs / probs.sum()).expand(len(truth), 60)
    low, step = torch.full_like(truth, -6), torch.full_like(truth, 12 / 59)
    wide = BinDistribution(probs, low, step)
    seen = BinDistribution(probs[:10_000], low[:10_000], step[:10_000])
    calibration = Calibration.fit(seen.cdf(truth[:10_000]), torch.zeros(10_000))
    right = wide.recalibrated(calibration, torch.zeros(len(truth)))
    for coverage in (0.5, 0.8, 0.9, 0.95):
        lower, upper = right.quantile((1 - coverage) / 2), right.quantile((1 + coverage) / 2)
        inside = ((truth >= lower) & (truth <= upper)).double()[10_000:].mean()
        assert float(inside) == pytest.approx(coverage, abs=0.02)
    assert right.crps(truth).mean() < wide.crps(truth).mean()


def test_uniform_levels_give_the_identity() -> None:
    levels = torch.linspace(0, 1, 5_001, dtype=torch.float64)
    calibration = Calibration.fit(levels, torch.zeros_like(levels))
    np.testing.assert_allclose(
        calibration.apply(levels, torch.zeros_like(levels)).numpy(), levels.numpy(), atol=1e-3
    )


@given(st.lists(st.floats(0, 1), min_size=1, max_size=200))
def test_a_calibration_is_monotone_and_keeps_the_ends(seen: list[float]) -> None:
    calibration = Calibration.fit(torch.tensor(seen, dtype=torch.float64), torch.zeros(len(seen)))
    grid = torch.linspace(0, 1, 101, dtype=torch.float64)
    mapped = calibration.apply(grid, torch.full_like(grid, 0.3))
    assert (mapped.diff() >= -1e-12).all()
    assert float(mapped[0]) == pytest.approx(0, abs=1e-5)
    assert float(mapped[-1]) == pytest.approx(1, abs=1e-5)


def test_calibration_follows_the_masked_share_of_the_window() -> None:
    generator = torch.Generator().manual_seed(0)
    share = torch.rand(30_000, generator=generator, dtype=torch.float64)
    # Too wide where little is masked, too narrow where much is.
    level = torch.rand(30_000, generator=generator, dtype=torch.float64)
    seen = 0.5 + (level - 0.5) * (0.5 + share)
    calibration = Calibration.fit(seen.clamp(0, 1), share)
    mapped = calibration.apply(seen.clamp(0, 1), share)
    for low, high in ((0.1, 0.25), (0.4, 0.6), (0.75, 0.9)):
        inside = (mapped >= 0.05) & (mapped <= 0.95) & (share >= low) & (share < high)
        covered = inside.sum() / ((share >= low) & (share < high)).sum()
        assert float(covered) == pytest.approx(0.9, abs=0.05)


def test_a_calibration_survives_json() -> None:
    levels = torch.rand(2_000, dtype=torch.float64)
    calibration = Calibration.fit(levels, levels)
    assert Calibration.from_dict(json.loads(json.dumps(asdict(calibration)))) == calibration
    assert Calibration.from_dict(None) is None
