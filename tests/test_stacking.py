from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch

from mdtim.calibration import Places
from mdtim.distribution import BinDistribution
from mdtim.stacking import Stack, StackCells


def cells(
    truth: torch.Tensor, network_error: torch.Tensor, linear_error: torch.Tensor, nearest: float
) -> StackCells:
    """Two variates in turn; both sides off by the given errors."""
    probs = torch.zeros((len(truth), 3), dtype=torch.float64)
    probs[:, 1] = 1
    one = torch.ones_like(truth)
    said = BinDistribution(probs, truth + network_error - one, one)
    variate = torch.arange(len(truth)) % 2
    at = Places(0.3 * one, one, nearest * one, variate)
    return StackCells(said, said.mean(), truth + linear_error, nearest * one, at)


def noise(seed: int, size: float, count: int = 2_000) -> torch.Tensor:
    return size * torch.randn(
        count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def test_a_better_network_is_left_alone() -> None:
    truth = noise(0, 1)
    made = cells(truth, noise(1, 0.1), noise(2, 2.0), nearest=1)
    stack = Stack.fit(made, truth, 2)
    assert all(row[0] >= 0.9 for row in stack.weights)


def test_a_better_interpolation_is_believed() -> None:
    truth = noise(0, 1)
    made = cells(truth, noise(1, 2.0), noise(2, 0.05), nearest=1)
    stack = Stack.fit(made, truth, 2)
    assert all(row[0] <= 0.1 for row in stack.weights)


@pytest.mark.parametrize("sizes", [(1.0, 1.0), (0.5, 1.0), (1.0, 0.3)])
def test_both_together_are_never_behind_either_on_the_cells_they_were_fitted_to(
    sizes: tuple[float, float],
) -> None:
    truth = noise(0, 1)
    made = cells(truth, noise(1, sizes[0]), noise(2, sizes[1]), nearest=2)
    moved = Stack.fit(made, truth, 2).apply(made)
    error = float((moved.mean() - truth).abs().mean())
    assert error <= float((made.distribution.mean() - truth).abs().mean())
    assert error <= float((made.linear - truth).abs().mean())
    assert torch.equal(moved.step, made.distribution.step)


def test_each_variate_and_distance_is_judged_by_itself() -> None:
    truth = noise(0, 1)
    errors = noise(1, 1.0)
    even = torch.arange(len(truth)) % 2 == 0
    made = cells(truth, torch.where(even, 3 * errors, 0.0), torch.where(even, 0.0, 3 * errors), 1)
    stack = Stack.fit(made, truth, 2)
    assert stack.weights[0][0] == 0.0
    assert stack.weights[1][0] == 1.0
    assert stack.weights[0][1:] == (1.0, 1.0)  # no such cells: the network


def test_where_nothing_is_visible_there_is_nothing_to_interpolate() -> None:
    truth = noise(0, 1)
    made = cells(truth, noise(1, 2.0), noise(2, 0.05), nearest=float("inf"))
    stack = Stack(((0.0, 0.0, 0.0), (0.0, 0.0, 0.0)))
    assert torch.equal(stack.apply(made).low, made.distribution.low)
    assert Stack.fit(made, truth, 2).weights == ((1.0,) * 3, (1.0,) * 3)


def test_a_stack_survives_json() -> None:
    stack = Stack(((0.1, 0.5, 1.0), (1.0, 1.0, 0.0)))
    assert Stack.from_dict(json.loads(json.dumps(asdict(stack)))) == stack
    assert Stack.from_dict(None) is None


def test_one_gap_that_errs_together_does_not_speak_for_the_table() -> None:
    truth, linear_error = noise(0, 1), noise(2, 0.5)
    gap = (torch.arange(len(truth)) // 200) == 3
    network_error = torch.where(gap, 3.0, noise(1, 0.3))
    made = cells(truth, network_error, linear_error, nearest=1)
    assert float(made.filled.sub(truth).abs().mean()) > float(linear_error.abs().mean())
    assert Stack.fit(made, truth, 2).weights == ((1.0,) * 3, (1.0,) * 3)
