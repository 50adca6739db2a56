from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mdtim.panel import Panel
from mdtim.scaling import Standardizer
from mdtim.series_scales import PanelScales

numbers = np.random.default_rng(0).normal(size=(500, 2))


@given(st.sampled_from([1e-9, 0.37, -3.0, 1e12]), st.sampled_from([0.0, 1e6, -12.5]))
def test_the_same_data_in_other_units_are_the_same_numbers(scale: float, offset: float) -> None:
    plain = Standardizer.fit(numbers).forward(numbers)
    offset = offset if abs(scale) > 1e-3 else offset * 1e-9
    other = Standardizer.fit(scale * numbers + offset).forward(scale * numbers + offset)
    np.testing.assert_allclose(np.sign(scale) * other, plain, atol=2**-15)
    assert (np.sign(scale) * other == plain).mean() > 0.99


@given(st.integers(-1060, 1020))
def test_units_may_be_as_small_or_large_as_numbers_get(exponent: int) -> None:
    unit = 2.0**exponent
    coarse = np.round(np.clip(numbers, -4, 4) * 8) / 8  # keeps its digits in the smallest units
    plain, other = Standardizer.fit(coarse), Standardizer.fit(unit * coarse)
    np.testing.assert_allclose(other.std / unit, plain.std, rtol=0.01)
    np.testing.assert_allclose(other.forward(unit * coarse), plain.forward(coarse), atol=0.05)


def test_one_absurd_reading_does_not_decide_the_scale() -> None:
    spoiled = numbers.copy()
    spoiled[7, 0] = 1e12
    assert Standardizer.fit(spoiled).std[0] < 2 * Standardizer.fit(numbers).std[0]


def test_a_fill_value_beyond_float32_stays_a_number() -> None:
    values = np.full((100, 1), 9.96921e36)  # netCDF's mark for a missing cell
    values[:90, 0] = 0.01 + 0.003 * np.sin(np.arange(90))
    standardized = Standardizer.fit(values).forward(values)
    assert np.isfinite(standardized).all()
    assert np.isfinite(np.square(standardized)).all()


def test_constant_and_unseen_columns_are_told_apart() -> None:
    values = np.column_stack([np.full(9, 5.0), np.full(9, np.nan), np.arange(9.0)])
    values[3, 0] = np.nan
    scaler = Standardizer.fit(values)
    assert scaler.varies.tolist() == [False, False, True]
    assert scaler.seen.tolist() == [True, False, True]
    assert scaler.mean[0] == 5.0


def test_rare_events_still_count_as_variation() -> None:
    values = np.zeros((5_000, 1))
    values[17] = 1.0
    scaler = Standardizer.fit(values)
    assert scaler.varies[0]
    assert scaler.std[0] > 0


def test_a_value_that_a_column_often_ends_at_is_its_bound() -> None:
    rain = np.maximum(numbers, 0.0)
    rain[0] = np.nan
    values = np.column_stack([rain, np.minimum(numbers[:, 0], 1.0)])
    panel = Panel(values, np.array([0, len(values)]), ("rain", "snow", "sun"))
    scales = PanelScales.fit(panel)
    scaler = scales.columns
    assert scaler.least.tolist()[:2] == [0.0, 0.0]
    assert scaler.most[2] == 1.0
    every, variates = np.zeros(3, dtype=np.int64), np.arange(3)
    below = scales.back(np.full(3, -9.0), every, variates)
    above = scales.back(np.full(3, 9.0), every, variates)
    assert (below[:2] == 0).all()
    assert below[2] < -5
    assert (above[:2] > 5).all()
    assert above[2] == 1.0


def test_the_least_of_measured_values_is_no_bound() -> None:
    rounded = np.round(np.vstack([numbers, numbers + 0.01]), 1)
    scaler = Standardizer.fit(rounded)
    assert (scaler.least < -1e300).all()
    assert (scaler.most > 1e300).all()


def test_a_few_faulty_readings_do_not_decide_the_scale() -> None:
    wave = np.sin(np.arange(600.0))[:, None]
    faulty = wave.copy()
    faulty[[3, 100, 101, 350, 480, 481, 482, 590]] = 65_535.0
    sane, robust = Standardizer.fit(wave), Standardizer.fit(faulty)
    np.testing.assert_allclose(robust.std, sane.std, rtol=0.05)
    np.testing.assert_allclose(robust.mean, sane.mean, atol=0.05)


def test_a_column_that_is_mostly_one_value_keeps_its_rare_ones() -> None:
    rain = np.zeros((1_000, 1))
    rain[::40] = 10.0
    assert Standardizer.fit(rain).std[0] > 1
