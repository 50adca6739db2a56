"""Smoothing by a table's dynamics, against dense Gaussian conditioning and the Kalman smoother."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from mdtim import MDTIMImputer
from mdtim.closed_form.dynamics import (
    MEMORY,
    Precision,
    draw_hidden,
    memories,
    smooth,
    steps_of_memory,
    whitening,
)
from mdtim.closed_form.guesses import Neighbours, Relations, guess_by_relations
from mdtim.datasets import LINEAR_GAUSSIAN
from mdtim.learning.relations import free_of_chance, read_relations, successive
from mdtim.series import DeviceSeries
from mdtim.windows import covering_windows


def moving(seed: int, shape: tuple[int, int, int]) -> Tensor:
    """Variates that follow each other from step to step."""
    generator = torch.Generator().manual_seed(seed)
    num_variates = shape[2]
    turn = torch.linalg.qr(torch.randn((num_variates, num_variates), generator=generator)).Q
    noise = torch.randn(shape, generator=generator)
    values = [noise[:, 0]]
    for step in range(1, shape[1]):
        values.append(0.9 * values[-1] @ turn + 0.45 * noise[:, step])
    return torch.stack(values, 1)


def whiten_of(values_BTV: Tensor) -> Tensor:
    rows = successive(values_BTV, steps_of_memory(values_BTV.shape[2])).flatten(0, 1).double()
    return whitening(rows.mT @ rows / len(rows))


def dense(whiten_SS: Tensor, num_steps: int, num_variates: int) -> Tensor:
    """The precision of a window, column by column."""
    size = num_steps * num_variates
    columns = torch.eye(size, dtype=torch.float64).view(size, num_steps, num_variates)
    return Precision(whiten_SS, num_steps, num_variates).multiply(columns).view(size, size)


def exact(whiten_SS: Tensor, values_BTV: Tensor, visible_BTV: Tensor) -> Tensor:
    """Every window by itself, with a dense solver."""
    precision = dense(whiten_SS, *values_BTV.shape[1:])
    out = values_BTV.double().clone()
    for window, seen in zip(out.view(len(out), -1), visible_BTV.view(len(out), -1), strict=True):
        hidden = ~seen
        known = precision[hidden][:, seen] @ window[seen]
        window[hidden] = torch.linalg.solve(precision[hidden][:, hidden], -known)
    return out.float()


@pytest.mark.parametrize("num_steps", [1, 2, MEMORY, MEMORY + 1, 9])
def test_the_precision_is_symmetric_positive_and_has_the_diagonal_it_says(num_steps: int) -> None:
    whiten = whiten_of(moving(0, (30, 12, 3)))
    matrix = dense(whiten, num_steps, 3)
    torch.testing.assert_close(matrix, matrix.mT)
    assert torch.linalg.eigvalsh(matrix).min() > 0
    diagonal = Precision(whiten, num_steps, 3).diagonal(torch.zeros(1, num_steps, 3).double())
    torch.testing.assert_close(diagonal.flatten(), matrix.diagonal())


def test_the_precision_of_few_steps_is_the_inverse_of_their_covariance() -> None:
    rows = successive(moving(1, (400, 8, 2)), MEMORY).flatten(0, 1).double()
    covariance = rows.mT @ rows / len(rows)
    precision = dense(whitening(covariance), MEMORY + 1, 2)
    expected = torch.linalg.inv(covariance + torch.diag(1e-4 * covariance.diagonal() + 1e-4))
    torch.testing.assert_close(precision, expected, rtol=1e-3, atol=1e-3)


@given(st.integers(0, 50), st.sampled_from([0.3, 0.7]), st.sampled_from([1, 2, 5]))
def test_enough_iterations_find_the_likeliest_hidden_cells(
    seed: int, share: float, num_variates: int
) -> None:
    values = moving(seed, (6, 10, num_variates))
    visible = torch.rand(values.shape, generator=torch.Generator().manual_seed(seed)) < share
    whiten = whiten_of(moving(99, (60, 12, num_variates)))
    start = torch.where(visible, values, 0.0)
    found, spread = smooth(start, visible, whiten, iterations=80)
    torch.testing.assert_close(found, exact(whiten, start, visible), rtol=1e-3, atol=1e-3)
    assert torch.equal(found[visible], values[visible])
    assert (spread > 0).all()


def test_each_window_can_have_the_dynamics_of_its_own_table() -> None:
    values = moving(3, (2, 9, 3))
    visible = torch.rand(values.shape, generator=torch.Generator().manual_seed(4)) < 0.5
    start = torch.where(visible, values, 0.0)
    whitens = torch.stack([whiten_of(moving(seed, (40, 12, 3))) for seed in (5, 6)])
    together, spread = smooth(start, visible, whitens)
    assert spread.shape == values.shape
    for window in range(2):
        part = slice(window, window + 1)
        alone, _ = smooth(start[part], visible[part], whitens[window])
        torch.testing.assert_close(together[part], alone, rtol=1e-5, atol=1e-5)


def test_smoothing_a_linear_gaussian_process_is_nearly_the_kalman_smoother() -> None:
    rng = np.random.default_rng(0)
    table = LINEAR_GAUSSIAN.sample(8_000, rng)
    hidden = rng.random(table.shape) < 0.5
    holey = np.where(hidden, np.nan, table).astype(np.float32)
    device = torch.device("cpu")
    index = covering_windows(np.array([0, len(table)]), 100)
    relations = read_relations(DeviceSeries.put(holey, device), index, "dynamics")
    assert relations.whiten_SS is not None
    values = torch.from_numpy(table.astype(np.float32)).view(80, 100, -1)
    visible = ~torch.from_numpy(hidden).view(values.shape)
    line = Neighbours.find(visible, values.dtype).line(values * visible)
    found, _ = smooth(torch.where(visible, values, line), visible, relations.whiten_SS)
    best, _ = LINEAR_GAUSSIAN.smooth((values * visible).double().numpy(), visible.numpy())
    error, least, straight = (
        (one - values)[~visible].abs().mean() for one in (found, torch.from_numpy(best), line)
    )
    assert error < 1.05 * least
    assert error < 0.5 * straight


def test_where_nothing_is_visible_the_mean_is_likeliest() -> None:
    whiten = whiten_of(moving(7, (40, 12, 2)))
    start = torch.randn((2, 8, 2), generator=torch.Generator().manual_seed(0))
    found, _ = smooth(start, torch.zeros_like(start, dtype=torch.bool), whiten, iterations=60)
    torch.testing.assert_close(found, torch.zeros_like(found), atol=1e-4, rtol=0)


def test_no_dynamics_mean_no_opinion() -> None:
    unknown = Relations.none(3, dynamics=True).whiten_SS
    assert unknown is not None
    found, spread = smooth(torch.ones(1, 6, 3), torch.zeros(1, 6, 3, dtype=torch.bool), unknown)
    assert torch.equal(found, torch.zeros(1, 6, 3))
    assert torch.equal(spread, torch.ones(1, 6, 3))


def test_the_order_of_the_variates_does_not_show() -> None:
    table = moving(8, (50, 24, 4))
    visible = torch.rand((3, 24, 4), generator=torch.Generator().manual_seed(9)) < 0.4
    order = torch.tensor([2, 0, 3, 1])
    answers = []
    for turned in (torch.arange(4), order):
        start = torch.where(visible, table[:3], 0.0)[..., turned]
        answers.append(smooth(start, visible[..., turned], whiten_of(table[..., turned]))[0])
    torch.testing.assert_close(answers[0][..., order], answers[1], rtol=1e-4, atol=1e-4)


def test_a_wide_table_remembers_fewer_steps() -> None:
    assert steps_of_memory(1) == steps_of_memory(200) == MEMORY
    assert steps_of_memory(400) == 1
    assert steps_of_memory(5_000) == 1
    relations = Relations.none(400, dynamics=True)
    assert relations.whiten_SS is not None
    assert relations.whiten_SS.shape == (800, 800)


def test_few_rows_keep_what_a_variate_says_about_itself() -> None:
    covariance = torch.ones(4, 4)
    shrunk = free_of_chance(covariance, 2, num_variates=2)
    assert torch.equal(shrunk[0], torch.tensor([1.0, 0.5, 1.0, 0.5]))


def test_smoothing_is_a_guess_of_its_own() -> None:
    table = moving(10, (40, 24, 3))
    visible = torch.rand((5, 24, 3), generator=torch.Generator().manual_seed(1)) < 0.5
    known = torch.where(visible, table[:5], 0.0)
    relations = Relations(torch.eye(3), torch.eye(3), whiten_of(table))
    zero = torch.zeros(())
    plain = guess_by_relations(known, visible, relations, zero, zero + 1)
    more = guess_by_relations(known, visible, relations, zero, zero + 1, dynamics=True)
    assert torch.equal(more.values_BTVG[..., :4], plain.values_BTVG)
    error = (more.values_BTVG - table[:5, ..., None])[~visible].abs().mean(0)
    assert error.argmin() == 4
    assert more.features_BTVF.shape[-1] == 11
    poisoned = torch.where(visible, table[:5], 1e9)
    said = guess_by_relations(poisoned * visible, visible, relations, zero, zero + 1, dynamics=True)
    assert torch.equal(said.features_BTVF, more.features_BTVF)


def test_drawn_cells_have_the_law_of_the_hidden_given_the_visible() -> None:
    whiten = whiten_of(moving(11, (60, 12, 2)))
    window = moving(12, (1, 6, 2))
    visible = torch.ones_like(window, dtype=torch.bool)
    visible[0, 2:5, 0] = visible[0, 4, 1] = False
    many = (4_000, 6, 2)
    drawn = draw_hidden(
        window.expand(many), visible.expand(many), whiten, torch.Generator().manual_seed(0)
    )
    hidden = drawn[:, ~visible[0]].double()
    likeliest, _ = smooth(window, visible, whiten)
    expected = torch.linalg.inv(dense(whiten, 6, 2)[~visible.flatten()][:, ~visible.flatten()])
    torch.testing.assert_close(
        hidden.mean(0),
        likeliest[~visible].double(),
        atol=4 * float(hidden.std() / 4_000**0.5),
        rtol=0,
    )
    torch.testing.assert_close(torch.cov(hidden.mT), expected, rtol=0.1, atol=0.01)
    assert torch.equal(drawn[0][visible[0]], window[visible])


def lagged(steps: int, lag: int, seed: int = 0) -> np.ndarray:
    """The second follows the first some steps later; both are noise otherwise."""
    generator = np.random.default_rng(seed)
    first = generator.normal(size=steps + lag)
    second = first[:-lag] + 0.3 * generator.normal(size=steps) if lag else first[:steps]
    return np.column_stack([first[lag:], second]).astype(np.float32)


def memory_of(table: np.ndarray, share: float = 0.0, window: int = 128) -> int:
    """That `read_relations` finds where a share is missing."""
    holey = table.copy()
    holey[np.random.default_rng(1).random(table.shape) < share] = np.nan
    index = covering_windows(np.array([0, len(table)]), window)
    relations = read_relations(DeviceSeries.put(holey, torch.device("cpu")), index, "dynamics")
    assert relations.whiten_SS is not None
    return len(relations.whiten_SS) // table.shape[1] - 1


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_a_table_shows_how_far_its_memory_reaches(share: float) -> None:
    assert memory_of(lagged(3_000, 5), share) == 6
    assert memory_of(lagged(3_000, 10), share) == 12
    assert memory_of(lagged(3_000, 2), share) == MEMORY
    noise = np.random.default_rng(0).normal(size=(3_000, 3)).astype(np.float32)
    assert memory_of(noise, share) == MEMORY


def test_no_memory_is_longer_than_windows_or_rows_can_show() -> None:
    assert memory_of(lagged(3_000, 10), window=32) <= 8
    assert memory_of(lagged(150, 5), window=128) == MEMORY
    assert memories(2, 128) == [3, 6, 12, 24]
    assert memories(40, 512) == [3]
    assert memories(400, 512) == [1]


def test_what_came_five_steps_before_fills_a_gap_and_is_kept_in_a_file(tmp_path: Path) -> None:
    truth = lagged(1_500, 5).astype(float)
    seen = truth.copy()
    seen[np.random.default_rng(2).random(len(seen)) < 0.15, 1] = np.nan
    missing = np.isnan(seen)
    imputer = MDTIMImputer(device="cpu", progress=False).fit(seen)
    filled = imputer.transform(seen)
    assert np.abs(filled - truth)[missing].mean() < 0.35  # by the same step alone: .84
    imputer.save(tmp_path / "model")
    again = MDTIMImputer.load(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(again.transform(seen), filled)
    weights = load_file(tmp_path / "model" / "model.safetensors")
    save_file({**weights, "whiten_SS": torch.eye(5)[:4]}, tmp_path / "model" / "model.safetensors")
    with pytest.raises(ValueError, match="whiten_SS has shape"):
        MDTIMImputer.load(tmp_path / "model", device="cpu")
