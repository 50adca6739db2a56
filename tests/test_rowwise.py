"""The law of a table's rows, and what it says of cells in long gaps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mdtim import MDTIMImputer
from mdtim.closed_form.guesses import Neighbours
from mdtim.closed_form.rowwise import FAR, MAX_ASKED, RowModel

MIXING = np.array([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [-0.5, 0.3, 0.8], [0.2, 0.1, 0.1]])
WHOLE = np.array([0, 600])


def rows(count: int = 600, seed: int = 0) -> np.ndarray:
    """Four variates made of three and some noise, in units of their std."""
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(count, 3)) @ MIXING.T
    values += 0.3 * generator.normal(size=values.shape)
    return values / values.std(axis=0)


def share(visible: torch.Tensor) -> torch.Tensor:
    return visible.double().mean(1, keepdim=True)


def say(model: RowModel, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Value and spread of all missing cells of one window, and where they are."""
    shown = torch.from_numpy(values)[None]
    visible = ~shown.isnan()
    shown = torch.where(visible, shown, 1e9)  # must not be looked at
    neighbours = Neighbours.find(visible, torch.float64)
    value, spread = model.say(shown, neighbours, ~visible, share(visible))
    return value.numpy(), spread.numpy(), np.isnan(values)


def test_a_dead_variate_is_the_regression_on_the_others() -> None:
    values = rows()
    model = RowModel.fit(values, WHOLE)
    dead = values[:100].copy()
    dead[:, 1] = np.nan
    value, spread, _ = say(model, dead)
    others = np.delete(values, 1, axis=1)
    design = np.column_stack([np.ones(len(others)), others])
    slopes, *_ = np.linalg.lstsq(design, values[:, 1], rcond=None)
    regression = design @ slopes
    left = (values[:, 1] - regression).std()
    assert np.abs(value - regression[:100]).mean() < 0.15 * left
    np.testing.assert_allclose(spread, left, rtol=0.1)


def test_what_is_known_in_a_row_decides_what_is_asked() -> None:
    values = rows(2_000)
    model = RowModel.fit(values, np.array([0, 2_000]))
    dead = values[:60].copy()
    dead[:, 0] = np.nan
    dead[20:40, 1:3] = np.nan
    value, spread, where = say(model, dead)
    error = np.full(dead.shape, np.nan)
    error[where] = np.abs(value - values[:60][where])
    width = np.full(dead.shape, np.nan)
    width[where] = spread
    assert width[20:40, 0].min() > width[:20, 0].max(), "less is known there"
    inside = error < 1.645 * width
    assert 0.8 < inside[where].mean() < 0.99


def test_only_cells_of_long_gaps_are_asked_about() -> None:
    model = RowModel.fit(rows(), WHOLE)
    gaps = rows()[:60]
    gaps[10 : 10 + FAR, 0] = np.nan
    gaps[30 : 31 + FAR, 1] = np.nan
    gaps[55:, 2] = np.nan  # open
    value, spread, where = say(model, gaps)
    far = np.zeros(gaps.shape, dtype=bool)
    far[where] = ~np.isnan(value)
    assert not far[:, 0].any()
    assert far[30 : 31 + FAR, 1].all()
    assert far[55:, 2].all()
    assert (np.isnan(value) == np.isnan(spread)).all()


def test_a_seldom_variate_is_found_from_the_few_rows_that_know_it() -> None:
    truth = rows(3_000)
    seen = truth.copy()
    seen[np.random.default_rng(1).random(len(seen)) > 0.03, 1] = np.nan
    model = RowModel.fit(seen, np.array([0, 3_000]))
    value, _, where = say(model, seen)
    far = ~np.isnan(value)
    error = np.abs(value - truth[where])[far].mean()
    assert error < 0.7 * np.abs(truth[where][far]).mean()


def test_what_is_unexplained_goes_on_for_as_long_as_it_does_elsewhere() -> None:
    generator = np.random.default_rng(0)
    noise = generator.normal(size=(4_000, 2))
    lasting = noise[:, 0].copy()
    for step in range(1, len(lasting)):
        lasting[step] += 0.95 * lasting[step - 1]
    values = np.column_stack([lasting / lasting.std(), noise[:, 1]])
    model = RowModel.fit(values, np.array([0, 4_000]))
    correlation = model.lasting_VL.numpy()
    np.testing.assert_allclose(correlation[0, [0, 1]], [0.95, 0.9], atol=0.03)
    assert correlation[0, -1] < 0.1
    assert correlation[1].max() < 0.1
    gap = values[1_000:1_100].copy()
    gap[40:60] = np.nan
    value, spread, where = say(model, gap)
    filled, width = (np.full(gap.shape, np.nan) for _ in range(2))
    filled[where], width[where] = value, spread
    assert abs(filled[40, 0] - gap[39, 0]) < 0.2
    assert abs(filled[50, 0]) < max(abs(gap[39, 0]), abs(gap[60, 0]))
    assert np.abs(filled[40:60, 1]).max() < 0.3
    assert 0.2 < width[40, 0] < 0.5 < width[50, 0] < 1
    assert width[40:60, 1].min() > 0.9


@given(seed=st.integers(0, 99))
def test_a_window_is_answered_by_itself_and_in_any_order_of_the_variates(seed: int) -> None:
    generator = np.random.default_rng(seed)
    values = rows(200, seed)
    values[generator.random(values.shape) < 0.1] = np.nan
    values[50:120, generator.integers(4)] = np.nan
    order = generator.permutation(4)
    offsets = np.array([0, 200])
    value, spread, where = say(RowModel.fit(values, offsets), values)
    turned = say(RowModel.fit(values[:, order], offsets), values[:, order])
    for own, other in zip((value, spread), turned[:2], strict=True):
        full, back = (np.full(values.shape, np.nan) for _ in range(2))
        full[where] = own
        back[turned[2]] = other
        np.testing.assert_allclose(back, full[:, order], atol=1e-8)


def test_several_windows_at_once_say_what_each_says_alone() -> None:
    values = rows(300)
    values[20:60, 0] = np.nan
    values[130:190, 2] = np.nan
    model = RowModel.fit(values, np.array([0, 300]))
    parts = torch.from_numpy(values).view(3, 100, 4)
    visible = ~parts.isnan()
    shown = torch.where(visible, parts, 0.0)
    neighbours = Neighbours.find(visible, torch.float64)
    together, _ = model.say(shown, neighbours, ~visible, share(visible))
    alone = [say(model, values[begin : begin + 100])[0] for begin in (0, 100, 200)]
    np.testing.assert_array_equal(together.numpy(), np.concatenate(alone))


@pytest.mark.parametrize("num_variates", [1, 2, MAX_ASKED + 1, 80])
def test_tables_of_any_width_are_read(num_variates: int) -> None:
    generator = np.random.default_rng(0)
    common = generator.normal(size=(400, 1))
    truth = common + 0.3 * generator.normal(size=(400, num_variates))
    truth /= truth.std(axis=0)
    values = truth.copy()
    values[generator.random(values.shape) < 0.05] = np.nan
    values[100:200, 0] = np.nan
    value, spread, where = say(RowModel.fit(values, np.array([0, 400])), values)
    inside = ~np.isnan(value)
    assert np.isfinite(spread[inside]).all()
    error = np.abs(value - truth[where])[inside].mean()
    assert error < (0.9 if num_variates == 1 else 0.4)


def test_a_variate_that_is_never_or_once_known_is_no_fault() -> None:
    values = rows(100)
    values[:, 0] = np.nan
    values[1:, 1] = np.nan
    value, _, _ = say(RowModel.fit(values, np.array([0, 100])), values)
    assert np.isfinite(value).all()
    nothing = np.full((50, 2), np.nan)
    value, spread, _ = say(RowModel.fit(nothing, np.array([0, 50])), nothing)
    assert np.isfinite(value).all()
    assert np.isfinite(spread).all()


def test_a_model_survives_being_kept() -> None:
    model = RowModel.fit(rows(), WHOLE)
    again = RowModel.from_tensors(model.to_tensors())
    gap = rows()[:50]
    gap[10:40, 1] = np.nan
    np.testing.assert_array_equal(say(model, gap)[0], say(again, gap)[0])


@pytest.mark.filterwarnings("ignore::mdtim.doubts.ImputationWarning")
def test_a_sensor_that_is_dead_for_months_is_filled_by_the_others_and_its_intervals_hold() -> None:
    generator = np.random.default_rng(0)
    step = np.arange(3_000)
    slow = 3 * np.sin(step / 500) + np.cumsum(generator.normal(0, 0.03, 3_000))
    truth = np.column_stack(
        [
            slow + 0.2 * np.sin(step / 4),
            2 * slow + 0.5 * generator.normal(size=3_000),
            generator.normal(size=3_000).cumsum() / 20,
        ]
    )
    gaps = truth.copy()
    gaps[1_000:1_900, 1] = np.nan
    imputer = MDTIMImputer(device="cpu", progress=False, seed=0).fit(gaps)
    result = imputer.impute(gaps)
    hidden = np.isnan(gaps)
    error = np.abs(result.values - truth)[hidden].mean()
    line = np.interp(np.arange(1_000, 1_900), [999, 1_900], truth[[999, 1_900], 1])
    # Its own noise alone is a quarter of what the line is off by.
    assert error < 0.4 * np.abs(line - truth[1_000:1_900, 1]).mean()
    lower, upper = result.interval(0.9)
    assert ((truth >= lower) & (truth <= upper))[hidden].mean() > 0.8
