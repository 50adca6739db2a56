from __future__ import annotations

import os

# Two cores shared by many small matrix products: waiting threads must not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, settings

from mdtim.config import ModelConfig, preset

settings.register_profile(
    "suite",
    deadline=None,
    max_examples=25,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("suite")


def tiny_config(**changes: object) -> ModelConfig:
    """Every part of the method, at a size that trains in a second."""
    return (
        preset("small")
        .change(
            width=16,
            num_heads=2,
            num_layers=1,
            embedding_width=8,
            condition_width=4,
            dropout=0.1,
            batch_size=8,
            max_steps=6,
            warmup_steps=2,
            validate_every=3,
            reveal_steps=3,
        )
        .change(**changes)
    )


def waves(num_steps: int, num_variates: int, seed: int = 0) -> np.ndarray:
    """Noisy related waves, (steps, variates), nothing missing."""
    generator = np.random.default_rng(seed)
    step = np.arange(num_steps)[:, None]
    phase = generator.uniform(0, 3, num_variates)
    return np.sin(step / 5 + phase) + 0.05 * generator.normal(size=(num_steps, num_variates))


@pytest.fixture
def gappy() -> np.ndarray:
    """(240, 3) waves with single gaps, a run and a blackout."""
    values = waves(240, 3)
    values[np.random.default_rng(1).random(values.shape) < 0.1] = np.nan
    values[60:75, 1] = np.nan
    values[120:124] = np.nan
    return values


@pytest.fixture(scope="session")
def nyc() -> pd.DataFrame:
    from mdtim.weather import nyc_weather

    return nyc_weather()
