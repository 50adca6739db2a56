from __future__ import annotations

import warnings

import numpy as np
import pytest

from mdtim.autowindow import LARGEST, choose_window, season_length
from mdtim.panel import Panel


def panel(values: np.ndarray, offsets: list[int] | None = None) -> Panel:
    ends = np.array([0, len(values)]) if offsets is None else np.array(offsets)
    return Panel(values, ends, tuple(f"x{i}" for i in range(values.shape[1])))


def season(period: float, noise: float = 0.3, num_steps: int = 3_000) -> np.ndarray:
    generator = np.random.default_rng(0)
    wave = np.sin(np.arange(num_steps) * 2 * np.pi / period)
    return (wave + noise * generator.normal(size=num_steps))[:, None]


@pytest.mark.parametrize("period", [7, 24, 48, 60])
def test_a_season_is_found_through_noise_and_gaps(period: int) -> None:
    values = season(period)
    values[np.random.default_rng(1).random(values.shape) < 0.3] = np.nan
    found = season_length(panel(values))
    assert found is not None
    assert found % period <= 1 or period - found % period <= 1


@pytest.mark.parametrize("scale", [2.0**-600, 1.0, 2.0**500])
def test_neither_units_nor_a_faulty_reading_change_the_window(scale: float) -> None:
    values = np.hstack([season(96), season(96, noise=0.5)])
    faulty = values.copy()
    faulty[100], faulty[2_000] = -9999.0, 9999.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        windows = {choose_window(panel(scale * one), long=True) for one in (values, faulty)}
    assert windows == {384}


def test_noise_has_no_season() -> None:
    assert season_length(panel(np.random.default_rng(0).normal(size=(3_000, 2)))) is None


def test_the_window_spans_two_seasons() -> None:
    assert choose_window(panel(season(60, noise=0.05))) >= 120


def test_long_gaps_ask_for_a_longer_window() -> None:
    values = np.random.default_rng(0).normal(size=(3_000, 1))
    assert choose_window(panel(values)) == 48
    for start in range(0, 3_000, 150):
        values[start : start + 40] = np.nan
    assert choose_window(panel(values)) == 120
    values[500:1_500] = np.nan
    assert choose_window(panel(values)) <= LARGEST


def test_one_outage_among_many_single_gaps_asks_for_a_longer_window() -> None:
    values = season(24, noise=0.05)
    values[5::50] = np.nan
    values[200:260] = np.nan
    assert choose_window(panel(values)) == 184
    assert choose_window(panel(values), long=True) == 240


def test_no_window_is_longer_than_the_longest_series() -> None:
    values = np.random.default_rng(0).normal(size=(60, 2))
    assert choose_window(panel(values, [0, 20, 60])) == 40
    assert choose_window(panel(values[:1])) == 1


def test_a_column_without_a_single_value_is_no_obstacle() -> None:
    values = np.full((400, 2), np.nan)
    values[:, 0] = 1.0
    assert choose_window(panel(values)) > 0
