"""Cells that are asked about: found in order, and said the same of with or without the others."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conftest import tiny_config
from mdtim.config import ModelConfig
from mdtim.inference import Predictor
from mdtim.network import FactorizedDiT
from mdtim.wanted import Wanted


def mask_of(num_windows: int, num_steps: int, num_variates: int, share: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand((num_windows, num_steps, num_variates), generator=generator) < share


@given(
    num_windows=st.integers(1, 5),
    num_steps=st.integers(1, 24),
    num_variates=st.integers(1, 4),
    share=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_what_is_picked_is_what_a_mask_picks(
    num_windows: int, num_steps: int, num_variates: int, share: float, seed: int
) -> None:
    mask = mask_of(num_windows, num_steps, num_variates, share, seed)
    wanted = Wanted.find(mask)
    if wanted is None:
        assert mask.flatten(1).sum(1).max() > num_steps * num_variates - 8
        return
    x = torch.arange(2.0 * mask.numel()).view(*mask.shape, 2)
    picked = wanted.pick(x)
    assert picked.shape == (num_windows, wanted.place_BN.shape[1], 1, 2)
    assert picked.shape[1] % 8 == 0
    assert torch.equal(picked.squeeze(2)[wanted.own_BN], x[mask])
    twice = wanted.repeat(2)
    assert torch.equal(
        twice.pick(torch.cat([x, -x])).squeeze(2)[twice.own_BN], torch.cat([x[mask], -x[mask]])
    )


def test_nothing_is_wanted_of_nothing() -> None:
    assert Wanted.find(torch.zeros((0, 8, 2), dtype=torch.bool)) is None
    nowhere = Wanted.find(torch.zeros((2, 8, 2), dtype=torch.bool))
    assert nowhere is not None
    assert nowhere.pick(torch.ones(2, 8, 2, 3)).shape == (2, 0, 1, 3)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"prior": "none"},
        {"prior": "line"},
        {"num_draws": 3, "interpolated": False},
        {"continuous": True, "prior": "none"},
    ],
    ids=["plain", "no guesses", "line", "draws", "continuous"],
)
def test_cells_are_said_the_same_of_alone(changes: dict[str, object]) -> None:
    config = tiny_config(**changes)
    predictor, values, visible, keys = predictor_of(config)
    wanted = Wanted.find(~visible)
    assert wanted is not None
    everywhere, _ = predictor.probs(values, visible, keys)
    there, _ = predictor.probs(values, visible, keys, wanted)
    # To the last bit: the other cells have no part in the products of a row.
    assert torch.equal(there.squeeze(2)[wanted.own_BN], everywhere[~visible])


def predictor_of(config: ModelConfig) -> tuple[Predictor, Tensor, Tensor, Tensor]:
    """A network with random weights, and windows for it."""
    torch.manual_seed(0)
    network = FactorizedDiT(config.network, config.tokenizer, 3).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.2)
    values = torch.randn(4, 16, 3).cumsum(1)
    visible = ~mask_of(4, 16, 3, 0.4, seed=1)
    keys = torch.arange(values.numel()).view(values.shape)
    return Predictor(network, config), values, visible, keys
