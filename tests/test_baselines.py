from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from mdtim.baselines.simple import BASELINES, linear, locf, mean

OFFSETS = np.array([0, 30, 50])


@pytest.fixture
def values() -> np.ndarray:
    generator = np.random.default_rng(0)
    table = generator.normal(size=(50, 3))
    table[generator.random(table.shape) < 0.4] = np.nan
    return table


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_fills_everything_and_keeps_what_is_known(name: str, values: np.ndarray) -> None:
    filled = BASELINES[name](values, OFFSETS)
    assert not np.isnan(filled).any()
    known = ~np.isnan(values)
    assert (filled[known] == values[known]).all()


def test_linear_and_locf_equal_pandas_within_each_series(values: np.ndarray) -> None:
    for start, end in pairwise(OFFSETS):
        frame = pd.DataFrame(values[start:end])
        np.testing.assert_allclose(
            linear(values, OFFSETS)[start:end], frame.interpolate(limit_direction="both")
        )
        np.testing.assert_allclose(locf(values, OFFSETS)[start:end], frame.ffill().bfill())
    np.testing.assert_allclose(
        mean(values, OFFSETS), pd.DataFrame(values).fillna(pd.DataFrame(values).mean())
    )


@pytest.mark.parametrize("name", BASELINES)
def test_a_series_without_a_variate_gets_its_mean_and_nothing_at_all_gets_zero(name: str) -> None:
    table = np.full((4, 2), np.nan)
    table[0, 0] = 3.0
    filled = BASELINES[name](table, np.array([0, 2, 4]))
    assert filled[:, 0].tolist() == [3.0] * 4
    assert filled[:, 1].tolist() == [0.0] * 4
