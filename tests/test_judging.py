"""What a network's corrections are fitted to."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch

from mdtim.learning.judging import Judge, Shown
from mdtim.learning.lessons import ValidationCells
from mdtim.panel import Panel
from test_stacking import cells, noise


def judge(lengths: list[int]) -> Judge:
    """Of a table with such gaps; nothing else of it is asked for."""
    panel = Panel(np.zeros((4, 1)), np.array([0, 4]), ("x",))
    shown = Shown(panel, np.zeros((4, 1), np.float32), panel.values, np.array(lengths), 0.0)
    return Judge(*cast("list[Any]", [None, None, 0, None]), shown)


@pytest.mark.parametrize(
    ("lengths", "expected"), [([1, 2, 8], 0), ([10, 10], 2_000), ([8, 8, 32], 1_000), ([8, 9], 600)]
)
def test_outages_have_as_much_say_in_intervals_as_in_the_table(
    lengths: list[int], expected: int
) -> None:
    truth = noise(0, 1)
    far = ValidationCells(truth, cells(truth, noise(1, 1.0), noise(2, 1.0), 20))
    some = judge(lengths)._as_many_as_missing(far, 500)
    assert len(some) == pytest.approx(expected, rel=0.1)
    assert torch.isin(some.truth, truth).all()
