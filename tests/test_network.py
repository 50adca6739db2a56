from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conftest import tiny_config
from mdtim.closed_form.guesses import Relations
from mdtim.config import Prior, preset
from mdtim.diffusion import tokenize
from mdtim.layers import gelu
from mdtim.network import FactorizedDiT, Tokens
from mdtim.tokenizer import Tokenizer


def build(num_variates: int = 3, **changes: object) -> tuple[FactorizedDiT, Tokenizer]:
    config = tiny_config(dropout=0.0, **changes)
    torch.manual_seed(0)
    network = FactorizedDiT(config.network, config.tokenizer, num_variates).eval()
    # Away from the zero initialization, so that everything can be seen to matter.
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network, Tokenizer(config.tokenizer)


def tokens_of(
    tokenizer: Tokenizer, seed: int = 0, num_variates: int = 3, prior: Prior = "relations"
) -> Tokens:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn((2, 10, num_variates), generator=generator)
    visible = torch.rand(values.shape, generator=generator) < 0.6
    return read(tokenizer, values, visible, prior)


def read(
    tokenizer: Tokenizer, values: torch.Tensor, visible: torch.Tensor, prior: Prior = "relations"
) -> Tokens:
    unknown = Relations.none(values.shape[2])
    return tokenize(tokenizer, values, visible, prior=prior, relations=unknown)[0]


def count(name: str, num_variates: int) -> int:
    config = preset(name)
    network = FactorizedDiT(config.network, config.tokenizer, num_variates)
    return sum(parameter.numel() for parameter in network.parameters())


def test_sizes_are_those_of_the_paper() -> None:
    assert count("paper-large", 28) == pytest.approx(8.3e6, rel=0.02)
    assert count("paper-small", 28) == pytest.approx(0.65e6, rel=0.05)


@pytest.mark.parametrize("prior", ["line", "relations"])
def test_an_untrained_network_says_what_the_guesses_say(prior: Prior) -> None:
    config = tiny_config(prior=prior)
    network = FactorizedDiT(config.network, config.tokenizer, 3).eval()
    tokens = tokens_of(Tokenizer(config.tokenizer), prior=prior)
    mean = network(tokens).softmax(-1) @ network.centers
    assert tokens.guesses is not None
    guess = (tokens.guesses.values_BTVG * network.belief.softmax(0)).sum(-1)
    # Truncation of the output range moves the mean a little near its ends.
    inner = (guess.abs() < 0.8) & (tokens.guesses.nearest_BTV == 1)
    assert inner.sum() > 5
    assert torch.allclose(mean[inner], guess[inner], atol=5e-3)


def test_without_the_prior_an_untrained_network_knows_nothing() -> None:
    config = tiny_config(prior="none")
    network = FactorizedDiT(config.network, config.tokenizer, 3).eval()
    assert (network(tokens_of(Tokenizer(config.tokenizer), prior="none")) == 0).all()


def test_shared_tables_without_variate_positions_are_permutation_equivariant() -> None:
    network, tokenizer = build(4, shared_embedding=True, variate_rope=False)
    values = torch.randn((2, 10, 4))
    visible = torch.rand(values.shape) < 0.6
    order = torch.tensor([2, 0, 3, 1])
    plain = network(read(tokenizer, values, visible))
    moved = network(read(tokenizer, values[..., order], visible[..., order]))
    assert torch.allclose(plain[:, :, order], moved, atol=1e-4)


def test_one_set_of_weights_reads_any_number_of_variates_when_tables_are_shared() -> None:
    network, tokenizer = build(1, shared_embedding=True, variate_rope=False)
    for num_variates in (1, 2, 9):
        assert network(tokens_of(tokenizer, 0, num_variates)).shape[2] == num_variates


def test_an_interpolated_token_is_the_expectation_over_draws() -> None:
    network, _ = build()
    lower, between, upper = (embedded(network, coordinate) for coordinate in (7.0, 7.25, 8.0))
    assert torch.allclose(between, 0.75 * lower + 0.25 * upper, atol=1e-5)


def embedded(network: FactorizedDiT, coordinate: float) -> Tensor:
    """A step of three variates with this coordinate, before the first block."""
    coordinates = torch.full((1, 1, 3), coordinate)
    return network.embed(Tokens(coordinates, torch.zeros(1), torch.zeros(1, 3, 3), None))


def test_mask_has_an_embedding_of_its_own() -> None:
    network, _ = build()
    with torch.no_grad():
        before = embedded(network, 1.0)
        network.tables[:, 0] += 1.0
        after = embedded(network, 1.0)
    assert torch.equal(before, after)


@pytest.mark.parametrize("option", ["level_conditioning", "variate_rope"])
def test_each_part_can_be_switched_off_and_matters(option: str) -> None:
    with_it, tokenizer = build(**{option: True})
    without_it, _ = build(**{option: False})
    tokens = tokens_of(tokenizer)
    assert with_it(tokens).shape == without_it(tokens).shape
    assert not torch.allclose(with_it(tokens), without_it(tokens))


def test_the_continuous_ablation_gives_one_number_per_cell() -> None:
    network, tokenizer = build(continuous=True, prior="none")
    assert network(tokens_of(tokenizer, prior="none")).shape == (2, 10, 3, 1)


def test_a_network_sees_its_whole_window_and_all_variates() -> None:
    network, tokenizer = build()
    values = torch.randn((1, 10, 3))
    visible = torch.ones_like(values, dtype=torch.bool)
    visible[0, 9, 2] = False
    plain = network(read(tokenizer, values, visible))[0, 9, 2]
    values[0, 4, 0] = values[0, :, 0].mean()  # inside the range: the scale does not change
    moved = network(read(tokenizer, values, visible))[0, 9, 2]
    assert not torch.allclose(plain, moved)


def test_gelu_has_one_form_with_and_without_gradients() -> None:
    x = torch.linspace(-40, 40, 4_001, dtype=torch.float64)
    expected = torch.nn.functional.gelu(x, approximate="tanh")
    given = x.clone()
    torch.testing.assert_close(gelu(given), expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(given, x), "its input was written to"
    learning = x.clone().requires_grad_()
    torch.testing.assert_close(gelu(learning), expected)
    half = x.clamp(-3, 3).bfloat16()
    assert torch.equal(gelu(half), torch.nn.functional.gelu(half, approximate="tanh"))
    (slope,) = torch.autograd.grad(gelu(learning).sum(), learning)
    assert slope.isfinite().all()
