from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_absolute_error, mean_squared_error

from mdtim import metrics
from mdtim.distribution import BinDistribution, GaussianDistribution


@pytest.fixture
def case() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    return (
        generator.normal(size=(40, 3)),
        generator.normal(size=(40, 3)),
        generator.random((40, 3)) < 0.5,
    )


def test_errors_equal_those_of_scikit_learn(case: tuple[np.ndarray, ...]) -> None:
    truth, estimate, scored = case
    picked = truth[scored], estimate[scored]
    assert metrics.mae(truth, estimate, scored) == pytest.approx(mean_absolute_error(*picked))
    assert metrics.mse(truth, estimate, scored) == pytest.approx(mean_squared_error(*picked))
    assert metrics.rmse(truth, estimate, scored) ** 2 == pytest.approx(mean_squared_error(*picked))
    relative = np.abs(picked[0] - picked[1]).sum() / np.abs(picked[0]).sum()
    assert metrics.mre(truth, estimate, scored) == pytest.approx(relative)


def test_sample_crps_equals_the_double_sum_of_the_paper(case: tuple[np.ndarray, ...]) -> None:
    truth, _, scored = case
    samples = np.random.default_rng(1).normal(size=(7, 40, 3))
    first = np.abs(samples - truth).mean(axis=0)
    second = np.abs(samples[:, None] - samples[None]).sum(axis=(0, 1)) / (2 * 7**2)
    assert metrics.sample_crps(truth, samples, scored) == pytest.approx(
        (first - second)[scored].mean()
    )


def test_crps_equals_that_of_scoringrules(case: tuple[np.ndarray, ...]) -> None:
    rules = pytest.importorskip("scoringrules")
    truth, center, scored = case
    samples = np.random.default_rng(2).normal(size=(11, 40, 3))
    theirs = rules.crps_ensemble(truth, samples, m_axis=0, estimator="nrg")
    assert metrics.sample_crps(truth, samples, scored) == pytest.approx(theirs[scored].mean())

    spread = 0.1 + np.abs(samples[0])
    gaussian = GaussianDistribution(torch.from_numpy(center), torch.from_numpy(spread))
    np.testing.assert_allclose(
        gaussian.crps(torch.from_numpy(truth)), rules.crps_normal(truth, center, spread), rtol=1e-9
    )
    # One bin is a uniform law.
    bin_of_one = BinDistribution(
        torch.ones(40, 3, 1), torch.from_numpy(center), torch.from_numpy(spread)
    )
    np.testing.assert_allclose(
        bin_of_one.crps(torch.from_numpy(truth)),
        rules.crps_uniform(truth, center - spread / 2, center + spread / 2),
        rtol=1e-9,
    )


def test_coverage_and_width_count_what_they_say(case: tuple[np.ndarray, ...]) -> None:
    truth, _, scored = case
    assert metrics.coverage(truth, truth - 1, truth + 1, scored) == 1.0
    assert metrics.coverage(truth, truth + 1, truth + 2, scored) == 0.0
    assert metrics.width(truth - 1, truth + 1, scored) == pytest.approx(2.0)


def test_nan_among_the_scored_cells_is_an_error_and_elsewhere_is_not(
    case: tuple[np.ndarray, ...],
) -> None:
    truth, estimate, scored = case
    broken = np.where(scored, np.nan, estimate)
    with pytest.raises(ValueError, match="estimate is NaN in"):
        metrics.mae(truth, broken, scored)
    outside = np.where(scored, estimate, np.nan)
    assert metrics.mae(truth, outside, scored) == metrics.mae(truth, estimate, scored)


def test_an_empty_or_misshapen_mask_is_an_error(case: tuple[np.ndarray, ...]) -> None:
    truth, estimate, scored = case
    with pytest.raises(ValueError, match="mask is empty"):
        metrics.mae(truth, estimate, np.zeros_like(scored))
    with pytest.raises(ValueError, match="shape"):
        metrics.mae(truth, estimate[:1], scored)
    with pytest.raises(ValueError, match="zero everywhere"):
        metrics.mre(np.zeros_like(truth), estimate, scored)
