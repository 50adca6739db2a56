"""Variates that are seldom known: how they follow the others, and how that is found out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mdtim import MDTIMImputer
from mdtim.baselines.simple import interpolate
from mdtim.closed_form.rowwise import RowModel
from mdtim.closed_form.seldom import learn_seldom
from mdtim.learning.judging import inner_steps
from mdtim.learning.readings import FOLDS, hide_readings
from mdtim.windows import covering_windows

STEPS = 2_000
OFFSETS = np.array([0, STEPS])


def sensors(count: int = 12, seed: int = 0) -> np.ndarray:
    """Sensors of which the first alone tells the last; all in units of their std."""
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(STEPS, count))
    values[:, -1] = 2 * values[:, 0] + 0.1 * generator.normal(size=STEPS)
    return values / values.std(axis=0)


def seldom(values: np.ndarray, share: float = 0.03, seed: int = 1) -> np.ndarray:
    """The same, the last known at few rows."""
    seen = values.copy()
    seen[np.random.default_rng(seed).random(len(seen)) > share, -1] = np.nan
    return seen


def ordinary_law(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.nanmean(values, axis=0), np.eye(values.shape[1])


def test_the_one_sensor_that_tells_is_found_among_many() -> None:
    truth = sensors()
    mean, covariance = learn_seldom(seldom(truth), OFFSETS, *ordinary_law(seldom(truth)))
    slopes = np.linalg.solve(covariance[:-1, :-1], covariance[:-1, -1])
    assert slopes[0] == pytest.approx(1.0, abs=0.05)
    assert np.abs(slopes[1:]).max() < 0.05
    left = covariance[-1, -1] - covariance[-1, :-1] @ slopes
    assert left < 0.02
    assert abs(mean[-1]) < 0.1


def test_readings_of_noise_are_not_explained_by_any_sensor() -> None:
    values = sensors()
    values[:, -1] = np.random.default_rng(9).normal(size=STEPS)
    _, covariance = learn_seldom(seldom(values), OFFSETS, *ordinary_law(seldom(values)))
    explained = covariance[-1, :-1] @ np.linalg.solve(covariance[:-1, :-1], covariance[:-1, -1])
    assert explained < 0.1
    assert covariance[-1, -1] == pytest.approx(1.0, abs=0.4)


def test_a_law_stays_one_and_what_is_often_known_keeps_its_part() -> None:
    values = sensors(8)
    values[np.random.default_rng(2).random(values.shape[0]) > 0.1, 5:] = np.nan
    values[12:, 5] = np.nan  # two readings: too few
    mean, covariance = np.zeros(8), 0.5 * np.eye(8) + 0.5
    found_mean, found = learn_seldom(values, OFFSETS, mean, covariance)
    np.testing.assert_array_equal(found[:5, :5], covariance[:5, :5])
    np.testing.assert_array_equal(found_mean[:5], mean[:5])
    np.testing.assert_allclose(found, found.T)
    assert np.linalg.eigvalsh(found).min() > 0


def test_what_is_measured_together_tells_of_each_other() -> None:
    truth = sensors(6)
    truth[:, -2] = 0.5 * truth[:, -1] + np.sqrt(0.75) * np.random.default_rng(3).normal(size=STEPS)
    seen = truth.copy()
    seen[np.random.default_rng(4).random(STEPS) > 0.1, -2:] = np.nan
    _, covariance = learn_seldom(seen, OFFSETS, *ordinary_law(seen))
    assert covariance[-1, -2] == pytest.approx(0.5, abs=0.15)


def test_a_table_without_seldom_variates_is_left_alone() -> None:
    law = ordinary_law(sensors())
    assert learn_seldom(sensors(), OFFSETS, *law) == law
    nothing_else = seldom(sensors(1), 0.1)
    law = ordinary_law(nothing_else)
    assert learn_seldom(nothing_else, OFFSETS, *law) == law


def test_every_reading_is_hidden_once_and_nothing_else() -> None:
    truth = sensors()
    seen = seldom(truth, 0.05).astype(np.float32)
    windows = covering_windows(OFFSETS, 64)
    inner = inner_steps(windows, OFFSETS)
    folds = list(hide_readings(seen, OFFSETS, windows, inner, np.random.default_rng(0)))
    assert len(folds) == FOLDS
    hidden = [np.isnan(rest) & ~np.isnan(seen) for _, rest in folds]
    assert not np.any([part[:, :-1] for part in hidden])
    np.testing.assert_array_equal(np.sum(hidden, axis=0), ~np.isnan(seen) * [*[0] * 11, 1])
    for found, rest in folds:
        shown = found.values_NV.reshape(found.hidden_WTV.shape)
        assert not np.isnan(shown[found.hidden_WTV]).any()
        line = interpolate(rest, OFFSETS)
        told = found.line_NV.reshape(found.hidden_WTV.shape)[found.hidden_WTV]
        assert np.isin(told, line[:, -1]).all(), "the line knows no hidden reading"
    cells = sum(int(found.hidden_WTV.sum()) for found, _ in folds)
    assert cells > 0.3 * np.count_nonzero(~np.isnan(seen[:, -1]))


def test_tables_whose_columns_are_known_alike_have_no_such_readings() -> None:
    windows = covering_windows(OFFSETS, 64)
    inner = inner_steps(windows, OFFSETS)
    nothing_else = seldom(sensors(1), 0.1).astype(np.float32)
    assert not list(hide_readings(nothing_else, OFFSETS, windows, inner, np.random.default_rng(0)))
    values = sensors().astype(np.float32)
    assert not list(hide_readings(values, OFFSETS, windows, inner, np.random.default_rng(0)))


@pytest.mark.parametrize("share", [0.04, 0.14])
def test_a_seldom_column_is_filled_about_as_well_as_by_regression(share: float) -> None:
    truth = sensors(4)
    seen = seldom(truth, share)
    missing = np.isnan(seen)
    result = MDTIMImputer(device="cpu", progress=False).fit(seen).impute(seen)
    error = np.abs(result.values - truth)[missing].mean()
    assert error < 0.12  # of a std; a regression on all rows leaves 0.04
    low, high = result.interval(0.9)
    assert 0.8 < ((truth >= low) & (truth <= high))[missing].mean() < 0.99


def test_a_gap_beside_is_bridged_where_it_is_short_and_its_variate_lasts() -> None:
    generator = np.random.default_rng(0)
    smooth = np.cumsum(generator.normal(size=STEPS))
    smooth = (smooth - smooth.mean()) / smooth.std()
    rough = generator.normal(size=STEPS)
    table = np.column_stack([smooth, rough, (smooth + rough) / np.sqrt(2)])
    model = RowModel.fit(table, OFFSETS)
    lasting = model.lasting_alone_VL.numpy()
    assert lasting[0, 2] > 0.8 > lasting[1, 2]


def test_a_short_table_is_filled_as_the_network_would() -> None:
    """Steps beyond its end are none that a window does not show."""
    generator = np.random.default_rng(0)
    steps = np.arange(1_500)[:, None] + 50 * generator.random(4)
    values = np.sin(steps / 9) + 0.3 * generator.normal(size=(1_500, 4)).cumsum(0) / 20
    long, short = values[:1_400].copy(), values[1_460:1_480].copy()
    for table in (long, short):
        table[generator.random(table.shape) < 0.2] = np.nan
    imputer = MDTIMImputer(window=128, device="cpu", progress=False).fit(long)
    model = imputer.model_
    assert model.corrections.rows is not None, "nothing would be seen of a rows' answer"
    filled = imputer.impute(short).values
    # The rows answer for no cell that the network knows better.
    imputer.model_ = replace(model, corrections=replace(model.corrections, rows=None))
    np.testing.assert_array_equal(imputer.impute(short).values, filled)
