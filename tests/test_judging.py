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


def judge(gaps: tuple[list[int], list[int]]) -> Judge:
    """Of a table with such gaps in its two columns; nothing else of it is asked for."""
    values = np.zeros((200, 2))
    for column, lengths in enumerate(gaps):
        begin = 1
        for length in lengths:
            values[begin : begin + length, column] = np.nan
            begin += length + 1
    panel = Panel(values, np.array([0, 200]), ("x", "y"))
    shown = Shown(panel, values.astype(np.float32), values, np.concatenate(gaps), 0.0)
    return Judge(*cast("list[Any]", [None, None, 0, None]), shown)


@pytest.mark.parametrize(
    ("lengths", "expected"), [([1, 2, 8], 0), ([20, 20], 500), ([8, 8, 32], 500), ([8, 9], 281)]
)
def test_outages_have_as_much_say_in_intervals_as_in_their_column(
    lengths: list[int], expected: int
) -> None:
    truth = noise(0, 1)  # of two columns in turn
    far, near = (
        ValidationCells(truth, cells(truth, noise(1, 1.0), noise(2, 1.0), gap)) for gap in (20, 2)
    )
    asked = judge((lengths, [1, 1]))
    assert len(asked._as_many_as_missing(far, far)) == 0, "there are enough"
    some = asked._as_many_as_missing(far, near.take(torch.arange(500)))
    assert len(some) == expected
    assert (some.said.at.variate == 0).all()
    assert torch.isin(some.truth, truth).all()
