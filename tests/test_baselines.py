from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdtim.baselines.simple import BASELINES, linear, linear_between, locf, mean

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


@given(st.integers(2, 40), st.integers(0, 50), st.data())
def test_a_cut_series_is_interpolated_like_the_whole(
    num_steps: int, seed: int, data: st.DataObject
) -> None:
    begin = data.draw(st.integers(0, num_steps - 1))
    end = data.draw(st.integers(begin + 1, num_steps))
    generator = np.random.default_rng(seed)
    whole = generator.normal(size=(num_steps, 2))
    whole[generator.random(whole.shape) < 0.7] = np.nan
    steps = np.zeros((2, 1, 2), dtype=np.int64)
    values = np.full((2, 1, 2), np.nan)
    for variate in range(2):
        known = np.flatnonzero(~np.isnan(whole[:, variate]))
        beyond = (known[known < begin][-1:], known[known >= end][:1])
        for side, found in enumerate(beyond):
            if found.size:
                steps[side, 0, variate] = found[0] - begin
                values[side, 0, variate] = whole[found[0], variate]
    cut = linear_between(
        whole[begin:end], np.array([0, end - begin]), (steps[0], values[0]), (steps[1], values[1])
    )
    expected = linear(whole, np.array([0, num_steps]))[begin:end]
    seen = ~np.isnan(whole).all(axis=0)  # a column that is never observed has no line
    assert np.array_equal(cut[:, seen], expected[:, seen])
