from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdtim import missingness

SHAPE = (200, 48, 7)


@given(st.sampled_from([0.3, 0.5, 0.7]), st.integers(0, 5))
def test_uniform_hides_exactly_the_share(rate: float, seed: int) -> None:
    hidden = missingness.uniform((20, 48, 7), rate, np.random.default_rng(seed))
    assert hidden.sum() == int(rate * 20 * 48 * 7)


@pytest.mark.parametrize(
    ("num_windows", "num_variates", "counts"),
    [(1_695, 7, (170_856, 284_760, 398_664)), (1_000, 5, (72_000, 120_000, 168_000))],
)
def test_uniform_hides_the_counts_of_the_protocol(
    num_windows: int, num_variates: int, counts: tuple[int, ...]
) -> None:
    for rate, count in zip((0.3, 0.5, 0.7), counts, strict=True):
        shape = (num_windows, 48, num_variates)
        assert missingness.uniform(shape, rate, np.random.default_rng(0)).sum() == count


@pytest.mark.parametrize("rate", [0.3, 0.5, 0.7])
def test_geometric_has_the_rate_and_mean_run_it_promises(rate: float) -> None:
    hidden = missingness.geometric((4_000, 48, 3), rate, np.random.default_rng(0))
    per_row = hidden.mean(axis=1).ravel()
    error = per_row.std() / np.sqrt(per_row.size)
    assert abs(hidden.mean() - rate) < 3 * error
    # A run that starts after step 0 and ends before the last step is complete; its length is
    # geometric, so the chance to end is seen at every hidden step that has a next one.
    now, later = hidden[:, :-1], hidden[:, 1:]
    ends = (now & ~later).sum()
    chance = ends / now.sum()
    assert abs(chance - 1 / 3) < 3 * np.sqrt(1 / 3 * 2 / 3 / now.sum())


def test_the_same_seed_gives_the_same_mask() -> None:
    for pattern in (missingness.uniform, missingness.geometric, missingness.block):
        one = pattern(SHAPE, 0.4, np.random.default_rng(3))
        two = pattern(SHAPE, 0.4, np.random.default_rng(3))
        assert (one == two).all()


def test_known_masks_do_not_change_between_machines() -> None:
    hidden = missingness.uniform((2, 4, 3), 0.5, np.random.default_rng(0))
    runs = missingness.geometric((2, 6, 2), 0.5, np.random.default_rng(0))
    assert np.flatnonzero(hidden).tolist() == [0, 1, 3, 4, 5, 7, 8, 11, 14, 17, 19, 21]
    assert np.flatnonzero(runs).tolist() == [1, 3, 5, 10, 11, 12, 13, 14, 15, 16, 18, 19, 21, 23]


def test_a_block_takes_every_variate_and_a_whole_variate_every_step() -> None:
    rows = missingness.block(SHAPE, 0.3, np.random.default_rng(0))
    assert (rows == rows[:, :, :1]).all()
    assert abs(rows.mean() - 0.3) < 0.05
    variates = missingness.whole_variate(SHAPE, 0.3, np.random.default_rng(0))
    assert (variates == variates[:, :1]).all()


def test_value_dependent_hides_large_values_more_often() -> None:
    values = np.random.default_rng(0).normal(size=(50, 48, 2))
    values[0, 0, 0] = np.nan
    hidden = missingness.value_dependent(values, 0.3, np.random.default_rng(1))
    assert hidden.sum() == int(0.3 * (values.size - 1))
    assert not hidden[0, 0, 0]
    assert np.nanmean(values[hidden]) > np.nanmean(values[~hidden]) + 0.5


@given(st.floats(0.01, 0.6), st.integers(0, 5))
def test_points_and_runs_hide_the_asked_share_of_known_cells_only(rate: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    observed = generator.random((120, 3)) < 0.8
    hidden = missingness.points_and_runs(observed, np.array([0, 50, 120]), rate, generator)
    assert hidden.sum() == int(rate * observed.sum())
    assert not (hidden & ~observed).any()


@given(st.floats(0.1, 0.3), st.integers(0, 5), st.sampled_from([0.3, 0.8, 1.0]))
def test_runs_of_a_table_of_outages_are_outages(rate: float, seed: int, joint: float) -> None:
    generator = np.random.default_rng(seed)
    observed = np.ones((5_000, 4), dtype=bool)
    lengths, offsets = np.full(3, 12), np.array([0, 5_000])
    hidden = missingness.points_and_runs(observed, offsets, rate, generator, lengths, joint)
    assert hidden.sum() == int(rate * observed.sum())
    together = 4 * hidden.all(axis=1).sum() / hidden.sum()
    assert abs(together - 0.5 * joint) < 0.15
    outage = observed.copy()
    outage[100:200] = False
    outage[300:310, 1] = False
    assert missingness.joint_share(outage) == pytest.approx(400 / 410)


def test_points_and_runs_are_soon_found_in_a_table_of_almost_nothing() -> None:
    generator = np.random.default_rng(0)
    observed = np.zeros((100_000, 10), dtype=bool)
    observed.flat[generator.choice(observed.size, size=30, replace=False)] = True
    began = time.monotonic()
    hidden = missingness.points_and_runs(observed, np.array([0, 100_000]), 0.5, generator)
    assert time.monotonic() - began < 5  # it was a minute
    assert hidden.sum() == 15
    assert not (hidden & ~observed).any()


def test_an_impossible_rate_is_refused() -> None:
    with pytest.raises(ValueError, match=r"between 0 and 1, got 1\.5"):
        missingness.uniform(SHAPE, 1.5, np.random.default_rng(0))
    with pytest.raises(ValueError, match="mean_run of at least 9"):
        missingness.geometric(SHAPE, 0.9, np.random.default_rng(0))
