"""The season of a window, above the line through what is visible."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mdtim import MDTIMImputer
from mdtim.closed_form.guesses import Neighbours
from mdtim.closed_form.season import above_the_line

STEPS = torch.arange(160, dtype=torch.float64)


def seasonal(x_BTV: Tensor, visible_BTV: Tensor, season: int) -> Tensor:
    shown = torch.where(visible_BTV, x_BTV, 0.0).float()
    neighbours = Neighbours.find(visible_BTV, torch.float32)
    return neighbours.line(shown).double() + above_the_line(shown, neighbours, season)


def two_days(shift: float = 0.0, slope: float = 0.0) -> Tensor:
    day = 2 * torch.pi * STEPS / 24
    return (0.6 * day.sin() + 0.2 * (2 * day).cos() + slope * (STEPS / 160 - 0.5) + shift)[
        None, :, None
    ]


@given(st.integers(20, 100), st.integers(1, 40), st.floats(-0.2, 0.2), st.floats(-0.2, 0.2))
def test_a_wave_on_a_slope_goes_on_inside_a_gap(
    first: int, length: int, shift: float, slope: float
) -> None:
    truth = two_days(shift, slope)
    visible = ((first > STEPS) | (first + length <= STEPS))[None, :, None]
    found = seasonal(truth, visible, 24)
    torch.testing.assert_close(found, truth, rtol=0, atol=0.05)
    torch.testing.assert_close(found[visible], truth[visible], rtol=0, atol=1e-6)


def test_without_a_wave_it_is_the_line() -> None:
    line = (STEPS / 160)[None, :, None]
    visible = ~((STEPS >= 50) & (STEPS < 90))[None, :, None]
    torch.testing.assert_close(seasonal(line, visible, 24), line, rtol=0, atol=0.01)


def test_where_nothing_is_visible_nothing_is_said() -> None:
    nothing = torch.zeros(2, 160, 3, dtype=torch.bool)
    assert not seasonal(torch.randn(2, 160, 3), nothing, 24).any()


def test_a_faulty_reading_is_no_part_of_the_season() -> None:
    truth = two_days()
    faulty = truth.clone()
    faulty[0, 120] = 1_000.0
    visible = ~((STEPS >= 40) & (STEPS < 80))[None, :, None]
    gap = ~visible
    torch.testing.assert_close(seasonal(faulty, visible, 24)[gap], truth[gap], rtol=0, atol=0.15)


def test_a_window_gets_the_same_bits_in_any_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 160, 3, generator=generator)
    visible = torch.rand(7, 160, 3, generator=generator) < 0.7
    whole = seasonal(x, visible, 24)
    for one in range(7):
        part = slice(one, one + 1)
        assert torch.equal(seasonal(x[part], visible[part], 24), whole[part])


@pytest.mark.filterwarnings("ignore::mdtim.doubts.ImputationWarning")
def test_an_outage_of_days_is_filled_with_days() -> None:
    generator = np.random.default_rng(0)
    step = np.arange(1_200)
    day = 2 * np.pi * step / 24
    truth = np.stack([10 * np.sin(day), 0.05 * step + np.cos(day)], axis=1)
    truth += 0.3 * generator.normal(size=truth.shape)
    gaps = truth.copy()
    gaps[generator.random(truth.shape) < 0.03] = np.nan
    gaps[600:696] = np.nan
    filled = MDTIMImputer(device="cpu", progress=False).fit_transform(gaps)
    line = np.stack(
        [
            np.interp(step, step[known], column[known])
            for column in gaps.T
            for known in [~np.isnan(column)]
        ],
        axis=1,
    )
    errors = np.abs(filled - truth)[600:696].mean(axis=0)
    assert (errors < 0.5 * np.abs(line - truth)[600:696].mean(axis=0)).all()
