from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mdtim.config import TokenizerConfig
from mdtim.tokenizer import ABSURD, Tokenizer, believable, window_scale


def batch(seed: int, visible_share: float = 0.6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn((4, 12, 3), generator=generator)
    return values, torch.rand(values.shape, generator=generator) < visible_share


@given(st.integers(0, 100), st.sampled_from([0.0, 0.3, 1.0]), st.floats(-1e4, 1e4))
def test_a_reading_far_from_the_rest_of_its_window_is_pulled_in(
    seed: int, share: float, level: float
) -> None:
    values, visible = batch(seed, share)
    values = values + level
    assert torch.equal(believable(values, visible)[visible], values[visible])  # none of them is far
    values[:, 5, 1] += 1e6
    values = torch.where(visible, values, 1e9)
    said = believable(values, visible)
    calm = visible.clone()
    calm[:, 5, 1] = False
    alone = visible.sum(1)[:, 1] < 3  # two cannot tell which of them is absurd
    assert torch.equal(said[~alone][calm[~alone]], values[~alone][calm[~alone]])
    pulled = said[~alone][:, 5, 1][visible[~alone][:, 5, 1]]
    assert ((pulled - level).abs() < ABSURD + 6).all()
    assert torch.isfinite(said).all()


@given(st.integers(0, 100))
def test_visible_values_land_in_minus_one_to_one(seed: int) -> None:
    values, visible = batch(seed)
    x = window_scale(values, visible, 0.05).normalize(values)
    assert x[visible].abs().max() <= 1 + 1e-5


@given(st.integers(0, 100), st.sampled_from([None, 1.5]), st.sampled_from([0.1, 0.6]))
def test_the_scale_never_looks_at_what_is_not_visible(
    seed: int, reach: float | None, share: float
) -> None:
    values, visible = batch(seed, share)
    poisoned = torch.where(visible, values, torch.full_like(values, 1e9))
    one, two = (window_scale(x, visible, 0.05, reach=reach) for x in (values, poisoned))
    assert torch.equal(one.center_B1V, two.center_B1V)
    assert torch.equal(one.half_B1V, two.half_B1V)
    assert torch.equal(one.level_BV3(), two.level_BV3())


def test_a_flat_window_gets_the_smallest_range_and_an_empty_one_the_training_data() -> None:
    values = torch.full((1, 5, 2), 3.0)
    visible = torch.tensor([True, False]).expand(1, 5, 2)
    scale = window_scale(values, visible, 0.05)
    assert scale.half_B1V.flatten().tolist() == [np.float32(0.025), 1.0]
    assert scale.center_B1V.flatten().tolist() == [3.0, 0.0]
    assert scale.empty_B1V.flatten().tolist() == [False, True]


def test_few_visible_cells_do_not_make_a_narrow_window() -> None:
    values = torch.zeros(1, 6, 3)
    visible = torch.tensor([[1, 1, 1], [0, 1, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1]]) > 0
    half = window_scale(values, visible[None], 0.05, scarcity=1.0).half_B1V.flatten()
    assert half.tolist() == [1.0, 0.25, pytest.approx(1 / 36)]
    wide = window_scale(torch.randn(1, 6, 3) * 50, visible[None], 0.05, scarcity=1.0).half_B1V
    assert wide[0, 0, 2] > 1


@given(st.integers(0, 12), st.integers(0, 12), st.sampled_from([-3.0, 0.2]))
def test_the_hidden_ends_of_a_slope_fit_the_output_grid(
    left: int, right: int, slope: float
) -> None:
    steps = torch.arange(24.0)
    values = (slope * steps)[None, :, None]
    visible = ((steps >= left) & (steps < 24 - right))[None, :, None]
    if int(visible.sum()) < 4:
        return
    x = window_scale(values, visible, 0.05, reach=1.5).normalize(values)
    # Both ends together may ask for more than the widest that is allowed.
    span = int(visible.sum()) - 1
    asked = 1 + 2 * max(left, right) / span
    assert float(x.abs().max()) <= max(1.3, asked / 4) + 1e-4
    if asked < 1.3:
        whole = window_scale(values, visible, 0.05)
        torch.testing.assert_close(x, whole.normalize(values))


def test_noise_is_not_continued() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn((200, 48, 1), generator=generator)
    visible = (torch.arange(48) < 40)[None, :, None].expand(values.shape)
    plain, extended = (window_scale(values, visible, 0.05, reach=r).half_B1V for r in (None, 1.5))
    assert float((extended / plain).mean()) < 1.15
    visible = torch.rand(values.shape, generator=generator) < 0.5
    visible[:, [0, -1]] = True
    plain, extended = (window_scale(values, visible, 0.05, reach=r).half_B1V for r in (None, 1.5))
    assert torch.equal(plain, extended)


@given(st.floats(-1, 1), st.integers(0, 10))
def test_stochastic_discretization_is_unbiased(value: float, seed: int) -> None:
    tokenizer = Tokenizer(TokenizerConfig())
    count = 20_000
    x = torch.full((1, count, 1), value, dtype=torch.float64)
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    tokens = tokenizer.encode(x, torch.ones_like(x, dtype=torch.bool), noise - 0.5)
    exact = (value + 1) / 2 * 39 + 1
    assert abs(float(tokens.mean()) - exact) < 5 * 0.5 / count**0.5
    assert set(tokens.unique().tolist()) <= {np.floor(exact), np.floor(exact) + 1}


def test_a_coordinate_of_3_6_is_token_4_six_times_in_ten() -> None:
    tokenizer = Tokenizer(TokenizerConfig())
    x = torch.full((1, 10, 1), (3.6 - 1) / 39 * 2 - 1, dtype=torch.float64)
    noise = (torch.arange(10).view(1, 10, 1) + 0.5) / 10 - 0.5
    tokens = tokenizer.encode(x, torch.ones_like(x, dtype=torch.bool), noise)
    assert sorted(tokens.flatten().tolist()) == [3.0] * 4 + [4.0] * 6


@given(st.integers(0, 100))
def test_mask_is_apart_from_every_value(seed: int) -> None:
    values, visible = batch(seed)
    coordinates = Tokenizer(TokenizerConfig()).encode(values.clamp(-1, 1), visible, None)
    assert (coordinates[~visible] == 0).all()
    assert (coordinates[visible] >= 1).all()
    assert (coordinates[visible] <= 40).all()


@given(st.floats(-1.5, 1.5))
def test_targets_decode_to_the_value_they_encode(value: float) -> None:
    tokenizer = Tokenizer(TokenizerConfig())
    position = float(tokenizer.target(torch.tensor([[[value]]], dtype=torch.float64), None))
    decoded = np.interp(position, np.arange(60), tokenizer.centers().double().numpy())
    assert abs(decoded - value) < 1e-6
