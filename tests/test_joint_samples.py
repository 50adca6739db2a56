"""Joint samples of a fitted model: whole gaps that hang together, each cell as it is said to be."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from conftest import waves
from mdtim import Imputation, MDTIMImputer

pytestmark = pytest.mark.filterwarnings("ignore::mdtim.doubts.ImputationWarning")
GAP = slice(90, 120)
NUM_DRAWS = 24


def table() -> np.ndarray:
    """Two series that wander, one of them dead for a while, and a constant."""
    wandering = waves(200, 2).cumsum(axis=0) / 8
    values = np.column_stack([wandering, np.full(200, 7.0)])
    values[np.random.default_rng(1).random(values.shape) < 0.1] = np.nan
    values[GAP, 1] = np.nan
    return values


@pytest.fixture(scope="module")
def filled() -> tuple[MDTIMImputer, Imputation]:
    imputer = MDTIMImputer(preset="zero-mini", window=64, progress=False, device="cpu")
    return imputer, imputer.fit(table()).impute(table())


@pytest.fixture(scope="module")
def draws(filled: tuple[MDTIMImputer, Imputation]) -> np.ndarray:
    """(draws, N, V)"""
    return np.stack(filled[1].samples(NUM_DRAWS, joint=True))


def test_they_keep_to_what_is_said_of_each_cell(
    filled: tuple[MDTIMImputer, Imputation], draws: np.ndarray
) -> None:
    result = filled[1]
    varied = result.missing.copy()
    varied[:, 2] = False
    for level in (0.05, 0.25, 0.5, 0.75, 0.95):
        below = (draws <= result.quantile(level))[:, varied]
        # The cells of a gap move together: how far, the draws tell.
        error = below.mean(axis=1).std() / NUM_DRAWS**0.5
        assert abs(below.mean() - level) < 3 * error + 0.03
    width = draws[:, varied].std(axis=0).mean() / result.std[varied].mean()
    assert 0.7 < width < 1.3


def test_corrections_keep_the_order_of_what_the_network_draws(
    filled: tuple[MDTIMImputer, Imputation], draws: np.ndarray
) -> None:
    imputer, result = filled
    own = np.stack([imputer.model_.sample(result.table.panel, number) for number in range(4)])
    missing = result.missing[:, :2]
    one, two = (np.argsort(part[:, :, :2], axis=0)[:, missing] for part in (own, draws[:4]))
    assert (one == two).mean() > 0.95  # those beyond what is said at all are alike


def test_what_is_known_and_what_never_varies_stays(draws: np.ndarray) -> None:
    known = ~np.isnan(table())
    assert (draws[:, known] == table()[known]).all()
    assert (draws[:, :, 2] == 7.0).all()


def test_neighbours_in_a_gap_are_drawn_together(
    filled: tuple[MDTIMImputer, Imputation], draws: np.ndarray
) -> None:
    alone = np.stack(filled[1].samples(NUM_DRAWS))

    def together(samples: np.ndarray) -> float:
        """Mean correlation over draws, of steps of the gap with the steps behind them."""
        gap = samples[:, GAP, 1] - samples[:, GAP, 1].mean(axis=0)
        gap /= gap.std(axis=0)
        return float((gap[:, 1:] * gap[:, :-1]).mean())

    assert abs(together(alone)) < 0.2
    assert together(draws) > 0.5


def test_what_soft_labels_blur_is_not_drawn(filled: tuple[MDTIMImputer, Imputation]) -> None:
    """Each draw would take the blur of those before for noise, and paths would drift away."""
    imputer, result = filled
    generator = torch.Generator().manual_seed(0)
    model, panel = imputer.model_, result.table.panel
    rough = [
        np.abs(np.diff(model.sample(panel, int(number))[GAP, 1])).mean()
        for number in torch.randint(100, 200, (4,), generator=generator)
    ]
    known = table()[:, 1]
    steps = np.abs(np.diff(known))
    assert np.mean(rough) < 2 * np.nanmean(steps)
