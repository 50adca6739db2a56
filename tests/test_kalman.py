from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdtim.baselines.kalman import StateSpace
from mdtim.datasets import LINEAR_GAUSSIAN


def process(seed: int, num_variates: int = 3) -> StateSpace:
    generator = np.random.default_rng(seed)
    return StateSpace.rotations((9.0, 4.0), (0.95, 0.8), num_variates, 0.1, generator)


def joint_covariance(model: StateSpace, num_steps: int) -> np.ndarray:
    """(T·V, T·V) of a window's cells, from the powers of the transition, without a filter."""
    num_variates = len(model.emission)
    cov = np.zeros((num_steps, num_variates, num_steps, num_variates))
    for later in range(num_steps):
        for earlier in range(later + 1):
            power = np.linalg.matrix_power(model.transition, later - earlier)
            block = model.emission @ power @ model.prior @ model.emission.T
            cov[later, :, earlier] = block
            cov[earlier, :, later] = block.T
        cov[later, :, later] += np.diag(model.noise)
    return cov.reshape(num_steps * num_variates, -1)


@given(st.integers(0, 50), st.sampled_from([0.1, 0.5, 0.9, 1.0]))
def test_smoothing_equals_conditioning_by_brute_force(seed: int, rate: float) -> None:
    model = process(seed)
    generator = np.random.default_rng(seed)
    values = np.stack([model.sample(7, generator) for _ in range(4)])
    visible = generator.random(values.shape) >= rate
    # What is not visible must not matter.
    mean, variance = model.smooth(np.where(visible, values, 1e9), visible)
    covariance = joint_covariance(model, 7)
    for window in range(4):
        seen = visible[window].ravel()
        to_hidden = covariance[np.ix_(~seen, seen)]
        gain = to_hidden @ np.linalg.inv(covariance[np.ix_(seen, seen)])
        expected = gain @ values[window].ravel()[seen]
        left = covariance[np.ix_(~seen, ~seen)] - gain @ to_hidden.T
        hidden = ~visible[window]
        np.testing.assert_allclose(mean[window][hidden], expected, atol=1e-8)
        np.testing.assert_allclose(variance[window][hidden], np.diag(left), atol=1e-8)


def test_the_process_is_stationary_with_unit_variance() -> None:
    for model in (LINEAR_GAUSSIAN, process(1)):
        moved = model.transition @ model.prior @ model.transition.T + model.state_noise
        np.testing.assert_allclose(moved, model.prior, atol=1e-12)
        law = model.emission @ model.prior @ model.emission.T
        np.testing.assert_allclose(np.diag(law) + model.noise, 1.0)
        assert np.abs(law - np.diag(np.diag(law))).max() > 0.3  # coupled
    series = process(1).sample(40_000, np.random.default_rng(0))
    lagged = (series[5:, :, None] * series[:-5, None]).mean(axis=0)
    model = process(1)
    power = np.linalg.matrix_power(model.transition, 5)
    np.testing.assert_allclose(lagged, model.emission @ power @ model.emission.T, atol=0.05)


def test_the_optimum_is_calibrated_and_cannot_be_beaten_by_a_shifted_fill() -> None:
    model = process(2)
    generator = np.random.default_rng(3)
    values = np.stack([model.sample(12, generator) for _ in range(400)])
    hidden = generator.random(values.shape) < 0.5
    mean, variance = model.smooth(values, ~hidden)
    error = (values - mean)[hidden]
    assert np.mean(error**2 / variance[hidden]) == pytest.approx(1, abs=0.05)
    assert np.mean(error**2) < np.mean((error + 0.05) ** 2)
    assert np.mean(error**2) < np.mean((values - 0.95 * mean)[hidden] ** 2)
