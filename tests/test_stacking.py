from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch

from mdtim.calibration import Places
from mdtim.closed_form.sides import Sides
from mdtim.distribution import BinDistribution
from mdtim.learning.lessons import _of_tensors, _one_after_the_other
from mdtim.stacking import NETWORK, NUM_GROUPS, ROWS, Stack, StackCells


def cells(
    truth: torch.Tensor,
    network_error: torch.Tensor,
    linear_error: torch.Tensor,
    nearest: float,
    seasonal_error: torch.Tensor | None = None,
    rows_error: torch.Tensor | None = None,
    shown: float = 0.7,
) -> StackCells:
    """Two variates in turn, 100 cells of a window; all are off by the given errors."""
    probs = torch.zeros((len(truth), 3), dtype=torch.float64)
    probs[:, 1] = 1
    one = torch.ones_like(truth)
    said = BinDistribution(probs, truth + network_error - one, one)
    variate, window = torch.arange(len(truth)) % 2, torch.arange(len(truth)) // 100
    sides = Sides(
        linear=truth + linear_error,
        seasonal=truth + (linear_error if seasonal_error is None else seasonal_error),
        rowwise=truth + (linear_error if rows_error is None else rows_error),
        spread=(torch.nan if rows_error is None else 0.1) * one,
        nearest=nearest * one,
        shown=shown * one,
    )
    at = Places(0.3 * one, one, nearest * one, variate)
    return StackCells(said, said.mean(), sides, at, window)


INFINITE = float("inf")
ALONE = (NETWORK,) * (NUM_GROUPS - 2)
"""Of the groups that the network is believed in unless others are better."""


def noise(seed: int, size: float, count: int = 2_000) -> torch.Tensor:
    return size * torch.randn(
        count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def test_a_better_network_is_left_alone() -> None:
    truth = noise(0, 1)
    made = cells(truth, noise(1, 0.1), noise(2, 2.0), nearest=1)
    stack = Stack.fit(made, truth, 2)
    assert all(sum(row[0]) <= 0.1 for row in stack.weights)


def test_a_better_interpolation_is_believed() -> None:
    truth = noise(0, 1)
    made = cells(truth, noise(1, 2.0), noise(2, 0.05), nearest=1)
    stack = Stack.fit(made, truth, 2)
    assert all(sum(row[0]) >= 0.9 for row in stack.weights)
    assert not stack.is_seasonal


@pytest.mark.parametrize("sizes", [(1.0, 1.0), (0.5, 1.0), (1.0, 0.3)])
def test_both_together_are_never_behind_either_on_the_cells_they_were_fitted_to(
    sizes: tuple[float, float],
) -> None:
    truth = noise(0, 1)
    made = cells(truth, noise(1, sizes[0]), noise(2, sizes[1]), nearest=2)
    moved = Stack.fit(made, truth, 2).apply(made)
    error = float((moved.mean() - truth).abs().mean())
    assert error <= float((made.distribution.mean() - truth).abs().mean())
    assert error <= float((made.sides.linear - truth).abs().mean())
    assert torch.equal(moved.step, made.distribution.step)


def test_each_variate_and_distance_is_judged_by_itself() -> None:
    truth = noise(0, 1)
    errors = noise(1, 1.0)
    even = torch.arange(len(truth)) % 2 == 0
    made = cells(truth, torch.where(even, 3 * errors, 0.0), torch.where(even, 0.0, 3 * errors), 1)
    stack = Stack.fit(made, truth, 2)
    assert stack.weights[0][0] == (1.0, 0.0, 0.0)
    assert stack.weights[1][0] == NETWORK
    # No such cells: what holds nearer by.
    assert set(stack.weights[0][1:-2]) == {(1.0, 0.0, 0.0)}


def test_cells_far_from_all_that_is_visible_are_judged_by_themselves() -> None:
    truth = noise(0, 1)
    near = cells(truth, noise(1, 0.1), noise(2, 1.0), nearest=1)
    far = cells(truth, noise(1, 1.0), noise(2, 0.1), nearest=48)
    made = _of_tensors(_one_after_the_other, near, far)
    stack = Stack.fit(made, truth.repeat(2), 2)
    for row in stack.weights:
        assert sum(row[0]) <= 0.1
        assert sum(row[-3]) >= 0.9


def test_the_season_is_believed_where_it_is_better_than_both() -> None:
    truth = noise(0, 1)
    made = cells(truth, noise(1, 1.0), noise(2, 1.0), 30, noise(3, 0.05))
    stack = Stack.fit(made, truth, 2)
    assert stack.is_seasonal
    assert all(row[-3][1] >= 0.9 for row in stack.weights)
    moved = stack.apply(made)
    assert float((moved.mean() - truth).abs().mean()) < 0.1


def test_rows_are_believed_where_a_window_shows_nothing_unless_the_network_is_better() -> None:
    truth = noise(0, 1)
    blind = cells(truth, noise(1, 1.0), noise(2, 1.0), INFINITE, rows_error=noise(3, 0.1), shown=0)
    few = _of_tensors(lambda part: part[:30], blind)
    for made, told in ((blind, truth), (few, truth[:30])):
        stack = Stack.fit(made, told, 2)
        assert stack.is_rowwise
        assert all(row[-1][-1] >= 0.9 for row in stack.weights)
    made = cells(truth, noise(1, 0.1), noise(2, 1.0), INFINITE, rows_error=noise(3, 1.0), shown=0)
    assert all(row[-1][-1] <= 0.1 for row in Stack.fit(made, truth, 2).weights)


def test_far_cells_of_a_variate_that_is_hardly_seen_are_a_group_of_their_own() -> None:
    truth = noise(0, 1)
    seldom = cells(truth, noise(1, 1.0), noise(2, 1.0), 9, rows_error=noise(3, 0.1), shown=0.05)
    often = cells(truth, noise(1, 0.1), noise(2, 1.0), 9, rows_error=noise(3, 1.0))
    stack = Stack.fit(_of_tensors(_one_after_the_other, seldom, often), truth.repeat(2), 2)
    for row in stack.weights:
        assert row[-2][-1] >= 0.9
        assert sum(row[3]) <= 0.1


def test_a_variate_that_is_hardly_seen_is_judged_by_its_own_few_cells() -> None:
    truth = noise(0, 1)
    by_rows = cells(truth, noise(1, 1.0), noise(2, 1.0), 2, rows_error=noise(3, 0.1), shown=0.1)
    by_network = cells(truth, noise(1, 0.1), noise(2, 1.0), 2, rows_error=noise(3, 1.0), shown=0.1)
    many = by_rows.at.variate == 0
    few = torch.isin(torch.arange(len(truth)), (by_network.at.variate == 1).nonzero()[::50])
    assert few.sum() == 20
    made = _of_tensors(
        _one_after_the_other,
        _of_tensors(lambda part: part[many], by_rows),
        _of_tensors(lambda part: part[few], by_network),
    )
    told = torch.cat([truth[many], truth[few]])
    stack = Stack.fit(made, told, 2, (True, True))
    assert stack.weights[0][-2][-1] >= 0.9
    assert sum(stack.weights[1][-2]) <= 0.1
    one_window = replace(made, window=torch.zeros_like(made.window))
    one_window.window[: int(many.sum())] = made.window[: int(many.sum())]
    common = Stack.fit(one_window, told, 2, (True, True)).weights
    assert common[1] == common[0], "twenty cells of one window may err together"


def test_near_cells_of_a_window_that_shows_little_are_judged_like_all_that_are_near() -> None:
    truth = noise(0, 1)
    near = cells(truth, noise(1, 1.0), noise(2, 1.0), 2, rows_error=noise(3, 0.1))
    group = near.groups(())[0]
    little = replace(near, sides=replace(near.sides, shown=torch.full_like(truth, 0.1)))
    assert (little.groups(()) == group).all()
    of_seldom = little.groups((False, True))
    assert (of_seldom[little.at.variate == 0] == group).all()
    assert (of_seldom[little.at.variate == 1] == NUM_GROUPS - 2).all()


def test_distributions_are_as_wide_as_the_rows_say_where_these_are_believed() -> None:
    truth = noise(0, 1)
    made = cells(truth, noise(1, 1.0), noise(2, 1.0), INFINITE, rows_error=noise(3, 0.1), shown=0)
    moved = Stack(((ROWS,) * NUM_GROUPS,) * 2).apply(made)
    torch.testing.assert_close(moved.std(), made.sides.spread)
    torch.testing.assert_close(moved.mean(), made.sides.rowwise)


def test_where_nothing_says_anything_the_network_is_left_alone() -> None:
    truth = noise(0, 1)
    made = cells(truth, noise(1, 2.0), torch.full_like(truth, torch.nan), INFINITE, shown=0)
    stack = Stack((((0.3, 0.3, 0.4),) * NUM_GROUPS,) * 2)
    torch.testing.assert_close(stack.apply(made).low, made.distribution.low)


def test_what_all_variates_say_together_holds_for_one_that_has_little_to_say() -> None:
    truth = noise(0, 1)
    made = cells(truth, noise(1, 1.0), noise(2, 0.05), nearest=1)
    # The second variate has cells in but three windows.
    kept = (made.at.variate == 0) | (made.window < 3)
    told = _of_tensors(lambda part: part[kept], made)
    stack = Stack.fit(told, truth[kept], 2)
    assert sum(stack.weights[1][0]) >= 0.9


def test_a_stack_survives_json() -> None:
    stack = Stack((((0.1, 0.0, 0.2), (0.5, 0.5, 0.0)), ((1.0, 0.0, 0.0), NETWORK)))
    assert Stack.from_dict(json.loads(json.dumps(asdict(stack)))) == stack
    assert Stack.from_dict(None) is None


def test_one_gap_that_errs_together_does_not_speak_for_the_table() -> None:
    truth, linear_error = noise(0, 1), noise(2, 0.5)
    gap = torch.arange(len(truth)) // 100 == 3
    network_error = torch.where(gap, 5.0, noise(1, 0.3))
    made = cells(truth, network_error, linear_error, nearest=1)
    assert float(made.filled.sub(truth).abs().mean()) > float(linear_error.abs().mean())
    assert all(row[:-2] == ALONE for row in Stack.fit(made, truth, 2).weights)
