"""Cells that are all but known have no say in how uncertain the others are."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from mdtim import MDTIMImputer
from mdtim.calibration import Calibration, LevelMap, _unevenness
from mdtim.distribution import BinDistribution
from test_distribution import gaussian_bins, normal, places


def holds(distribution: BinDistribution, truth: Tensor, share: float) -> Tensor:
    """Which intervals that should hold a share do."""
    lower, upper = (distribution.quantile(0.5 + side * share / 2) for side in (-1, 1))
    return (truth >= lower) & (truth <= upper)


@pytest.mark.parametrize("count", [150, 2_000])
def test_a_column_that_is_known_leaves_the_others_their_intervals(count: int) -> None:
    said = gaussian_bins(2 * count, 1.0)
    known = torch.arange(2 * count) % 2 == 1
    truth = torch.where(known, 0.01 * normal(2 * count, 1), normal(2 * count))
    at = places(2 * count, variate=known.long())
    right = Calibration.fit(said, truth, at, 0.0, 2).apply(said, at)
    for share in (0.5, 0.9):
        inside = holds(right, truth, share)
        assert float(inside[~known].double().mean()) == pytest.approx(share, abs=0.06)
        assert float(inside[known].double().mean()) > share - 0.06
    # What is known is known better than it was said.
    width = right.quantile(0.95) - right.quantile(0.05)
    assert float(width[known].mean()) < 0.5 * float(width[~known].mean())


def test_hours_at_a_value_that_comes_often_leave_the_others_their_intervals() -> None:
    count = 600
    night = torch.arange(count) % 24 < 13
    sure, unsure = gaussian_bins(count, 0.05), gaussian_bins(count, 1.0)
    said = BinDistribution(
        torch.where(night[:, None], sure.probs, unsure.probs),
        torch.where(night, sure.low, unsure.low + 4),
        sure.step,
    )
    truth = torch.where(night, 0.0, 4 + normal(count))
    at = places(count)
    right = Calibration.fit(said, truth, at, 0.0, 1).apply(said, at)
    for share in (0.5, 0.9):
        inside = holds(right, truth, share).double()
        assert float(inside[~night].mean()) == pytest.approx(share, abs=0.05)
        assert float(inside[night].mean()) >= share


def test_a_map_is_doubted_where_chance_could_have_made_it() -> None:
    even = torch.rand(2_000, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert np.mean([_unevenness(levels) for levels in even]) == pytest.approx(1, abs=0.1)
    narrow = 0.5 + 0.2 * (even - 0.5)
    believed = [np.mean([believes(levels) for levels in rows[:200]]) for rows in (even, narrow)]
    assert believed[0] < 0.4
    assert believed[1] > 0.9


def believes(levels: Tensor) -> float:
    """How much of what levels say their map does."""
    doubting = LevelMap.fit(levels, Calibration.KNOTS, Calibration.DOUBT)
    trusting = LevelMap.fit(levels, Calibration.KNOTS)
    moved, said = (
        np.abs(np.subtract(one.predicted, one.actual)).max() for one in (doubting, trusting)
    )
    return float(moved / said)


@pytest.mark.filterwarnings("ignore:on held-out cells")
@pytest.mark.parametrize("known", ["number", "hour"])
def test_a_row_number_does_not_narrow_the_intervals_of_a_table(known: str) -> None:
    generator, count = np.random.default_rng(1001), 800
    values = np.zeros(count)
    for row in range(1, count):
        values[row] = 0.9 * values[row - 1] + generator.normal()
    index = pd.date_range("2024", periods=count, freq="h")
    table = pd.DataFrame({"x": values}, index=index).mask(generator.random((count, 1)) < 0.15)
    column = np.arange(count) if known == "number" else index.hour
    widths = []
    for one in (table, table.assign(known=column.astype(float))):
        lower, upper = MDTIMImputer(progress=False).fit(one).impute(one).interval(0.5)
        widths.append(float((upper["x"] - lower["x"])[table["x"].isna()].mean()))
    assert widths[1] > 0.75 * widths[0]
