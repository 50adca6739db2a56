from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mdtim.closed_form.guesses import (
    Neighbours,
    Relations,
    guess_by_line,
    guess_by_relations,
    relate,
)
from mdtim.learning.relations import read_relations
from mdtim.series import DeviceSeries
from mdtim.windows import covering_windows


def batch(seed: int, share: float, shape: tuple[int, int, int] = (2, 12, 3)) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator)
    return values, torch.rand(shape, generator=generator) < share


def test_hundreds_of_variates_are_related_rightly_whatever_the_number_of_threads() -> None:
    # In a process of its own: the number of threads is the whole process's.
    code = (
        "import torch\n"
        "from mdtim.closed_form.guesses import _inverse\n"
        "torch.set_num_threads(2)\n"
        "walk = torch.randn((4, 400, 300), generator=torch.Generator().manual_seed(0)).double()\n"
        "covariance = walk.mT @ walk / 400\n"
        "inverse, variance = _inverse(covariance)\n"
        "ridged = covariance.diagonal_scatter(variance, dim1=-2, dim2=-1)\n"
        "torch.testing.assert_close(inverse @ ridged, torch.eye(300).double().expand(4, -1, -1))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def tied(seed: int, num_windows: int = 4, num_steps: int = 48) -> Tensor:
    """One random walk seen three ways, and a fourth variate of its own."""
    generator = torch.Generator().manual_seed(seed)
    walk = torch.randn((num_windows, num_steps, 2), generator=generator).cumsum(1)
    mixing = torch.tensor([[1.0, -0.5, 2.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    noise = 0.05 * torch.randn((num_windows, num_steps, 4), generator=generator)
    return walk @ mixing + noise


@given(st.integers(0, 100), st.sampled_from([0.1, 0.5, 0.9]))
def test_the_line_is_pandas_linear_interpolation(seed: int, share: float) -> None:
    values, visible = batch(seed, share)
    built = Neighbours.find(visible, values.dtype).line(values)
    for window in range(len(values)):
        frame = pd.DataFrame(values[window].numpy()).where(visible[window].numpy())
        expected = frame.interpolate(limit_direction="both").fillna(0.0)
        np.testing.assert_allclose(built[window].numpy(), expected.to_numpy(), atol=1e-5)


@given(st.integers(0, 100), st.sampled_from([0.2, 0.6]))
def test_no_guess_looks_at_what_is_not_visible(seed: int, share: float) -> None:
    values, visible = batch(seed, share)
    unknown, zero = Relations.none(3), torch.zeros(())
    poisoned = torch.where(visible, values, torch.full_like(values, 1e9))
    assert torch.equal(
        guess_by_line(poisoned, visible).features_BTVF, guess_by_line(values, visible).features_BTVF
    )
    said, told = (
        guess_by_relations(given_values, visible, unknown, zero, zero + 1)
        for given_values in (poisoned, values)
    )
    assert torch.equal(said.features_BTVF, told.features_BTVF)
    assert torch.isfinite(said.features_BTVF).all()


def test_a_relation_is_the_ridge_regression_on_the_other_variates() -> None:
    values = tied(0, 1, 200)
    neighbours = Neighbours.find(torch.ones_like(values, dtype=torch.bool), values.dtype)
    related = relate(values, neighbours, Relations.none(4), "level")
    centered = (values - values.mean(1, keepdim=True))[0].double().numpy()
    others, target = centered[:, 1:], centered[:, 0]
    gram = others.T @ others / len(others)
    # The ridge of the covariance, seen from one variate.
    gram += np.diag(0.03 * np.diag(gram))
    coefficients = np.linalg.solve(gram, others.T @ target / len(others))
    expected = others @ coefficients + float(values[0, :, 0].mean())
    np.testing.assert_allclose(related.value_BTV[0, :, 0].numpy(), expected, atol=2e-2)
    assert float(related.fit_B1V[0, 0, 0]) > 0.9
    assert float(related.fit_B1V[0, 0, 3]) < 0.3


@pytest.mark.parametrize("kind", ["level", "change"])
def test_tied_variates_are_read_off_each_other_and_the_free_one_off_its_line(kind: str) -> None:
    values = tied(1)
    hidden = torch.zeros_like(values, dtype=torch.bool)
    hidden[:, 10:30, 0] = hidden[:, 10:30, 3] = True
    known = torch.where(hidden, 0.0, values)
    neighbours = Neighbours.find(~hidden, known.dtype)
    related = relate(known, neighbours, Relations.none(4), kind)  # type: ignore[arg-type]
    error = (related.kriging_BTV - values).abs()
    straight = (neighbours.line(known) - values).abs()
    assert error[:, 10:30, 0].mean() < 0.25 * straight[:, 10:30, 0].mean()
    assert error[:, 10:30, 3].mean() < 1.3 * straight[:, 10:30, 3].mean()
    assert torch.equal(related.kriging_BTV[~hidden], values[~hidden])


def test_relations_of_a_table_are_its_covariances_also_when_it_has_gaps() -> None:
    table = tied(2, 1, 4_000)[0].diff(dim=0).numpy()  # stationary
    index = covering_windows(np.array([0, len(table)]), 40)
    device = torch.device("cpu")
    gaps = np.where(np.random.default_rng(0).random(table.shape) < 0.3, np.nan, table)
    whole = read_relations(DeviceSeries.put(table, device), index, "relations")
    holey = read_relations(DeviceSeries.put(gaps.astype(np.float32), device), index, "relations")
    expected = np.cov(table.T)
    np.testing.assert_allclose(whole.level_VV.numpy(), expected, atol=0.15)
    np.testing.assert_allclose(holey.level_VV.numpy(), expected, atol=0.25)
    change = table[1:-1] - (table[2:] + table[:-2]) / 2
    np.testing.assert_allclose(whole.change_VV.numpy(), np.cov(change.T), atol=0.15)
    np.testing.assert_allclose(holey.change_VV.numpy(), np.cov(change.T), atol=0.3)


def test_relations_are_a_covariance_even_where_no_two_variates_meet() -> None:
    table = tied(3, 1, 600)[0].numpy()
    table[::2, 0] = np.nan
    table[1::2, 1:] = np.nan
    relations = read_relations(
        DeviceSeries.put(table, torch.device("cpu")),
        covering_windows(np.array([0, 600]), 30),
        "dynamics",
    )
    assert relations.whiten_SS is not None
    assert torch.isfinite(relations.whiten_SS).all()
    for matrix in (relations.level_VV, relations.change_VV):
        assert torch.isfinite(matrix).all()
        assert torch.linalg.eigvalsh(matrix.double()).min() > 0


def test_guesses_of_a_window_that_is_empty_or_tiny_are_finite() -> None:
    zero = torch.zeros(())
    for shape in ((1, 1, 1), (1, 2, 3), (2, 5, 4)):
        values, visible = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
        guesses = guess_by_relations(values, visible, Relations.none(shape[2]), zero, zero + 1)
        assert torch.isfinite(guesses.features_BTVF).all()
        assert torch.isfinite(guesses.values_BTVG).all()
