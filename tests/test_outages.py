"""Long gaps hidden in windows, one in each."""

from __future__ import annotations

import numpy as np
import pytest

from mdtim import MDTIMImputer
from mdtim.baselines.simple import interpolate
from mdtim.learning.outages import MAX_WINDOWS, MIN_WINDOWS, hide_outages
from mdtim.windows import WindowIndex, every_window

OFFSETS = np.array([0, 300, 340])
GAPS = np.array([1, 1, 1, 20])


def table(seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(340, 3)).astype(np.float32)
    values[generator.random(values.shape) < 0.05] = np.nan
    return values


def windows(length: int = 64) -> WindowIndex:
    return every_window(OFFSETS, length)


@pytest.mark.parametrize("joint", [0.0, 1.0])
def test_every_window_has_one_gap_of_known_cells_and_its_line_does_not_know_them(
    joint: float,
) -> None:
    values = table()
    found = hide_outages(values, OFFSETS, windows(), GAPS, joint, np.random.default_rng(1))
    assert found is not None
    length = found.windows.length
    assert len(found.windows) == MAX_WINDOWS
    assert (np.diff(found.windows.starts) == length).all()
    poisoned = found.values_NV.astype(np.float64)
    poisoned[found.hidden_WTV.reshape(poisoned.shape)] = np.nan
    num_dead = 0
    for number, hidden in enumerate(found.hidden_WTV):
        rows = slice(number * length, (number + 1) * length)
        assert hidden.any()
        assert not np.isnan(found.values_NV[rows][hidden]).any()
        columns = hidden.any(axis=0)
        if np.isnan(poisoned[rows][:, columns]).all():
            num_dead += 1  # a window that shows nothing of them
            continue
        steps = np.flatnonzero(hidden.any(axis=1))
        assert steps[-1] - steps[0] < 20
        assert columns.all() or not joint
        inside = int(found.windows.ends[number] - found.windows.starts[number])
        assert steps[0] > 0
        assert steps[-1] < inside - 1
        # Both ends of the run are in the window, so the line there is the window's own.
        own = interpolate(poisoned[rows], np.array([0, length]))
        both = hidden & (np.cumsum(~np.isnan(poisoned[rows]), axis=0) > 0)
        both &= np.cumsum(~np.isnan(poisoned[rows])[::-1], axis=0)[::-1] > 0
        np.testing.assert_allclose(found.line_NV[rows][both], own[both], atol=1e-6)
    assert 0.1 < num_dead / len(found.hidden_WTV) < 0.45


def test_a_table_without_long_gaps_has_columns_that_its_windows_do_not_show() -> None:
    generator = np.random.default_rng(0)
    found = hide_outages(table(), OFFSETS, windows(), np.array([1, 8]), 0.0, generator)
    assert found is not None
    values = np.where(found.hidden_WTV, np.nan, found.values_NV.reshape(found.hidden_WTV.shape))
    hides = found.hidden_WTV.any(axis=1)
    assert np.isnan(values).all(axis=1)[hides].all()
    nothing = windows().take([])
    assert hide_outages(table(), OFFSETS, nothing, GAPS, 0.0, generator) is None


def test_a_gap_may_reach_beyond_its_window() -> None:
    found = hide_outages(
        table(), OFFSETS, windows(), np.array([100]), 1.0, np.random.default_rng(2)
    )
    assert found is not None
    shows_one_end = found.hidden_WTV.any(axis=(1, 2)) & (
        found.hidden_WTV[:, 0].any(axis=1) != found.hidden_WTV[:, -1].any(axis=1)
    )
    assert shows_one_end.any()


def test_wide_tables_have_fewer_and_series_shorter_than_a_window_their_own_length() -> None:
    wide = np.random.default_rng(0).normal(size=(340, 400)).astype(np.float32)
    found = hide_outages(wide, OFFSETS, windows(), GAPS, 0.0, np.random.default_rng(0))
    assert found is not None
    assert len(found.windows) == MIN_WINDOWS
    short = every_window(np.array([0, 40]), 64)
    found = hide_outages(
        table()[:40], np.array([0, 40]), short, GAPS, 0.0, np.random.default_rng(0)
    )
    assert found is not None
    assert len(found.windows) == 1, "each window once"
    assert (found.windows.ends - found.windows.starts == 40).all()
    assert np.isnan(found.values_NV.reshape(-1, 64, 3)[:, 40:]).all()


@pytest.mark.filterwarnings("ignore::mdtim.doubts.ImputationWarning")
def test_an_outage_of_a_column_that_only_rises_is_no_worse_than_a_line() -> None:
    generator = np.random.default_rng(0)
    step = np.arange(1_000)
    truth = np.stack([np.cumsum(generator.gamma(2, 0.5, 1_000)), np.sin(step / 9)], axis=1)
    gaps = truth.copy()
    gaps[generator.random(truth.shape) < 0.02] = np.nan
    gaps[500:640, 0] = np.nan
    known = ~np.isnan(gaps[:, 0])
    line = np.interp(step, step[known], gaps[known, 0])
    filled = MDTIMImputer(device="cpu", progress=False).fit_transform(gaps)
    hidden = slice(500, 640)
    error, of_line = (np.abs(one - truth[:, 0])[hidden].mean() for one in (filled[:, 0], line))
    assert error < 1.5 * of_line
