"""A block as one operator: outputs and gradients against the block's definition."""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import tiny_config
from gpu_cases import (
    block_errors,
    embedding_errors,
    make_block,
    moderate_modulation,
    needs_cuda,
    norm_errors,
    run_python,
    stack_errors,
)
from mdtim.diffusion import masked_loss, stratified_times, tokenize
from mdtim.gpu import fused_block, row_passes
from mdtim.gpu.dropout import keep_mask
from mdtim.gpu.row_passes import GATE_A, GATE_M, Rows
from mdtim.layers import AxisBlock
from mdtim.network import FactorizedDiT
from mdtim.tokenizer import Tokenizer

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed on this machine"
)
AXES: list[Any] = ["time", "variate"]

INTERPRETED = """
import json
from unittest import mock
import torch
from conftest import tiny_config
from gpu_cases import block_errors, embedding_errors, make_block, norm_errors, stack_errors
from mdtim.gpu import fused_block, fused_stack, row_passes
from mdtim.kernels import rope_table
from mdtim.layers import forward_fused
from mdtim.network import FactorizedDiT

results = []
def check(shape, heads, width, axis, dropout, dtype=torch.float32, limit=1e-5):
    block = make_block(heads * width, heads, axis, dropout).to(dtype)
    errors = block_errors(block, shape, seed=2**61 - 12345).fused
    results.append({"case": str((shape, heads, width, axis, dropout, dtype)), "limit": limit,
                    "errors": errors})

torch.manual_seed(0)
check((2, 5, 3), 2, 16, "time", 0.0)
check((1, 1, 1), 3, 32, "variate", 0.5)
check((2, 3, 7), 2, 16, "variate", 0.2, torch.float16, 1e-2)
# Several chunks per window, several parts of a batch, the last of each not full.
row_passes._PROGRAMS, row_passes._TILE = 2, 256
row_passes._FORWARD = row_passes._FORWARD._replace(elements=256)
row_passes._BACKWARD = row_passes._BACKWARD._replace(elements=128)
row_passes._GELU_ROWS, fused_block._BACKWARD_ROWS = 16, 30
check((2, 9, 3), 2, 16, "time", 0.3)
results.append({"case": "norm", "limit": 1e-5, "errors": norm_errors((2, 9, 3, 32))})
for count in (1, 3):
    errors = embedding_errors((2, 9, 3, 8), 96, count)
    results.append({"case": f"embedding {count}", "limit": 1e-5, "errors": errors})
x, some = torch.randn(20, 48), torch.tensor([3, 19, 0, 3, 7])
assert torch.equal(row_passes.gather(x, some), x[some])
results.append({"case": "stack", "limit": 1e-5, "errors": stack_errors((2, 9, 3), 32, 2)})
chunks = row_passes.Rows(2, 27, 32, 0.3)
assert chunks.num_chunks > 1 and 27 % chunks.chunk_rows, chunks

block = make_block(32, 2, "time", 0.2)
empty = torch.zeros(0, 5, 3, 32, requires_grad=True)
block.attention = "triton"
out = block(empty, torch.zeros(0, 6, 32), torch.tensor(1))
out.sum().backward()
assert out.shape == empty.grad.shape == empty.shape
assert block.down.weight.grad.abs().sum() == 0

with torch.no_grad():
    assert forward_fused([block], empty.detach(), torch.zeros(0, 6, 32)).shape == empty.shape

# States in half precision leave weights, and gradients that are added up over parts, as they are.
states, modulation = torch.randn(2, 9, 3, 32).half().float(), torch.randn(2, 6, 32).half().float()
gradients = []
for dtype in (torch.float16, torch.float32):
    block.zero_grad()
    out = fused_block.fused_block(
        states.to(dtype), modulation.to(dtype), block.weights, rope_table(9, 16, states), None,
        dropout=0.0, num_heads=2, over_time=True,
    )
    out.float().square().sum().backward()
    gradients.append([weight.grad for weight in block.weights])
assert len(list(fused_block._parts(states))) == 2
for half, whole in zip(*gradients):
    assert half.dtype == torch.float32
    assert (half - whole).norm() <= 1e-2 * whole.norm()

# A network takes all blocks at once where it fills and they fit, and only there.
config = tiny_config(width=32, num_heads=2, dropout=0.2)
network = FactorizedDiT(config.network, config.tokenizer, 3).eval()
for parameter in network.parameters():
    torch.nn.init.normal_(parameter, std=0.1)
for one in network.blocks:
    one.attention = "triton"
states, modulation = torch.randn(2, 9, 3, 32), network._modulation(torch.rand(2)).detach()
with mock.patch("mdtim.network.forward_fused", wraps=forward_fused) as whole:
    one_by_one = network._forward_blocks(states, modulation)
    assert not whole.called, "gradients are wanted"
    with torch.no_grad():
        at_once = network._forward_blocks(states, modulation)
        assert whole.call_count == 1
        network.blocks[1].fused = False
        network._forward_blocks(states, modulation)
        network.blocks[1].fused = True
        network.fused_norm = False
        network._forward_blocks(states, modulation)
        network.fused_norm = True
        network.train()._forward_blocks(states, modulation)
    assert whole.call_count == 1
torch.testing.assert_close(at_once, one_by_one, rtol=1e-4, atol=1e-5)

h = torch.randn(1, 3, 2, 32).transpose(1, 2).requires_grad_()  # strided as no program expects
linear = (block.qkv, block.out, block.up, block.down)
weights = [x.detach() for layer in linear for x in layer.parameters()]
table, seed = rope_table(2, 16, h), torch.tensor(5)
arguments = (h, torch.randn(1, 6, 32), *weights, table, seed, 0.2, 2, True, weights)
checks = ("test_schema", "test_autograd_registration", "test_faketensor")
torch.library.opcheck(fused_block._axis_block, arguments, test_utils=checks)
for rows in (None, torch.tensor([0, 2, 4, 5])):
    stacked = (h.detach(), arguments[1], weights, [table], 2, [True], rows)
    torch.library.opcheck(fused_stack._axis_blocks, stacked, test_utils=checks[::2])

compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
modulation = torch.randn(1, 6, 32)
expected, out = block(h, modulation, seed), compiled(h, modulation, seed)
torch.testing.assert_close(out, expected)
for a, b in zip(*(torch.autograd.grad(y.square().sum(), [h, block.up.weight])
                  for y in (out, expected))):
    torch.testing.assert_close(a, b)
print(json.dumps(results))
"""


@needs_triton
def test_the_operator_agrees_with_the_definition_when_interpreted() -> None:
    # In a process of its own: Triton reads the variable when the kernels are made.
    results = json.loads(run_python(INTERPRETED, TRITON_INTERPRET="1").splitlines()[-1])
    assert len(results) == 8
    for result in results:
        for name, error in result["errors"].items():
            assert error <= result["limit"], (result["case"], name)


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_dropout_keeps_the_share_it_should_and_no_place_knows_of_another(
    probability: float,
) -> None:
    seeds = [torch.tensor(seed) for seed in (0, 1, 2**62 - 1)]
    shape = (4_096, 128)
    masks = [
        keep_mask(seed, site, *shape, probability).float()
        for seed in seeds
        for site in (GATE_A, GATE_M)
    ]
    spread = (probability * (1 - probability)) ** 0.5
    for mask in masks:
        deviations = (mask.mean() - (1 - probability)) / spread * mask.numel() ** 0.5
        assert abs(deviations) < 4
        for dim, size in enumerate(shape):
            shares = (mask.mean(1 - dim) - (1 - probability)) / spread
            assert shares.std() * (mask.numel() / size) ** 0.5 == pytest.approx(1, abs=0.25)
    centred = torch.stack([(mask - mask.mean()).flatten() for mask in masks])
    neighbours = [(centred, centred)] + [
        (centred[:, :-step], centred[:, step:]) for step in (1, 2, 16, 128, 4_096)
    ]
    for first, second in neighbours:
        correlation = first @ second.T / (first.shape[1] * spread**2)
        if first is second:
            correlation = correlation - torch.eye(len(masks)) * correlation.diagonal()
        assert correlation.abs().max() < 5 / first.shape[1] ** 0.5


def test_dropout_depends_on_the_seed_and_the_site_alone() -> None:
    seed = torch.tensor(12345)
    mask = keep_mask(seed, GATE_A, 40, 32, 0.3)
    assert torch.equal(keep_mask(seed, GATE_A, 50, 32, 0.3)[:40], mask)
    assert not torch.equal(keep_mask(seed, GATE_M, 40, 32, 0.3), mask)
    assert not torch.equal(keep_mask(seed + 1, GATE_A, 40, 32, 0.3), mask)
    assert not torch.equal(keep_mask(seed + 2**32, GATE_A, 40, 32, 0.3), mask)


@pytest.mark.parametrize("width", [32, 96, 256, 512])
@pytest.mark.parametrize(("windows", "cells"), [(256, 336), (256, 1_344), (1, 1), (3, 100_000)])
def test_programs_cover_every_row_and_are_many_but_not_too_many(
    windows: int, cells: int, width: int
) -> None:
    rows = Rows(windows, cells, width, 0.0)
    assert rows.chunk_rows * (rows.num_chunks - 1) < cells <= rows.chunk_rows * rows.num_chunks
    assert rows.chunk_rows * rows.block % row_passes._TILE == 0
    programs, tiles = windows * rows.num_chunks, rows.chunk_rows * rows.block / row_passes._TILE
    assert tiles == 1 or row_passes._PROGRAMS / 2 <= programs <= 3 * row_passes._PROGRAMS


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"fused": False}, False),
        ({"attention": "sdpa"}, False),
        ({"attention": "reference"}, False),
        ({"attention": "triton"}, True),
    ],
)
def test_a_gpu_takes_the_operator_unless_told_otherwise(
    change: dict[str, Any], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mdtim.kernels.runs_triton", lambda tensor: tensor.is_cuda)
    block = make_block(64, 4, "time")
    for name, value in change.items():
        setattr(block, name, value)
    assert block.fits(gpu_states(48, 7, 64)) is expected
    assert not block.fits(gpu_states(129, 7, 64)), "too long for the attention"
    assert block.fits(gpu_states(48, 129, 64)) is expected
    assert not block.fits(torch.empty(2, 48, 7, 64)), "not on a GPU"
    assert not make_block(576, 36, "time").fits(gpu_states(48, 7, 576)), "too wide"
    assert not make_block(48, 3, "time").fits(gpu_states(48, 7, 48)), "rows of odd width"


def gpu_states(steps: int, variates: int, width: int) -> Tensor:
    """The shape of states on a GPU, without the GPU."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(2, steps, variates, width, device="cuda")


def test_without_a_seed_a_block_that_drops_takes_pytorchs_dropout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(AxisBlock, "fits", lambda self, h: True)
    monkeypatch.setattr(AxisBlock, "_forward_fused", lambda self, h, *_: "fused")
    block = make_block(32, 2, "time", dropout=0.5)
    h, modulation = torch.randn(1, 4, 2, 32), torch.randn(1, 6, 32)
    assert block(h, modulation, torch.tensor(3)) == "fused"
    assert isinstance(block(h, modulation), Tensor)
    assert block.eval()(h, modulation) == "fused"


# -- on a GPU --------------------------------------------------------------------------------------


def limit(dtype: torch.dtype) -> float:
    return 1e-5 if dtype == torch.float32 else 1e-2


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize(
    ("steps", "variates", "heads", "width"),
    [(48, 7, 16, 16), (48, 28, 16, 16), (1, 1, 2, 16), (9, 17, 3, 32), (48, 21, 8, 64)],
)
def test_a_gpu_agrees_with_the_definition_at_the_sizes_of_models(
    steps: int, variates: int, heads: int, width: int, dropout: float, dtype: torch.dtype
) -> None:
    for axis in AXES:
        block = make_block(heads * width, heads, axis, dropout).to("cuda", dtype)
        errors = block_errors(block, (5, steps, variates), seed=random.getrandbits(62))
        assert not errors.beyond(limit(dtype)), axis


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_gpu_agrees_with_the_definition_at_any_size(dtype: torch.dtype) -> None:
    rng = random.Random()  # other sizes and values every time; a failure names them
    torch.seed()
    for _ in range(8):
        attended, other = rng.randint(1, 128), rng.randint(1, 300)
        heads, axis = rng.choice([2, 4, 6, 10]), rng.choice(AXES)
        steps, variates = (attended, other) if axis == "time" else (other, attended)
        dropout = rng.choice([0.0, 0.3])
        block = make_block(heads * 16, heads, axis, dropout).to("cuda", dtype)
        shape = (rng.randint(1, 4), steps, variates)
        errors = block_errors(block, shape, seed=rng.getrandbits(62))
        assert not errors.beyond(limit(dtype)), (shape, heads, axis, dropout)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", [32, 96, 256, 512])
def test_the_norm_of_a_gpu_agrees_with_its_definition(width: int, dtype: torch.dtype) -> None:
    errors = norm_errors((3, 48, 7, width), device="cuda", dtype=dtype)
    assert max(errors.values()) <= limit(dtype), errors


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("steps", "variates"), [(48, 7), (9, 17), (1, 1)])
def test_blocks_in_one_operator_agree_with_their_definition(
    steps: int, variates: int, dtype: torch.dtype
) -> None:
    errors = stack_errors((5, steps, variates), 64, 4, device="cuda", dtype=dtype)
    assert max(errors.values()) <= limit(dtype), errors


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("num_weights", [1, 5])
def test_first_states_of_a_gpu_agree_with_their_definition(
    num_weights: int, dtype: torch.dtype
) -> None:
    errors = embedding_errors((3, 19, 5, 16), 96, num_weights, device="cuda", dtype=dtype)
    assert max(errors.values()) <= limit(dtype), errors


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", [96, 256])
def test_a_gpu_gathers_rows(width: int, dtype: torch.dtype) -> None:
    x = torch.randn(1_000, width, device="cuda", dtype=dtype)
    for count in (0, 1, 777):
        rows = torch.randint(1_000, (count,), device="cuda")
        assert torch.equal(row_passes.gather(x, rows), x[rows])


@pytest.mark.gpu
@needs_cuda
def test_a_gpu_gives_the_same_in_one_part_and_in_many(monkeypatch: pytest.MonkeyPatch) -> None:
    block = make_block(64, 4, "time", dropout=0.2).to("cuda", torch.bfloat16)
    h = torch.randn(7, 48, 7, 64, device="cuda").bfloat16().requires_grad_()
    modulation = moderate_modulation(7, 6, 64).to("cuda", torch.bfloat16)
    grad, seed = torch.randn_like(h), torch.tensor(9, device="cuda")

    def gradients() -> tuple[Tensor, ...]:
        inputs = [h, *block.parameters()]
        return torch.autograd.grad(block(h, modulation, seed), inputs, grad)

    whole, again = gradients(), gradients()
    assert all(torch.equal(a, b) for a, b in zip(whole, again, strict=True))
    monkeypatch.setattr(fused_block, "_BACKWARD_ROWS", 1_000)
    for a, b in zip(whole, gradients(), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2 * float(a.abs().max()))
    assert torch.equal(whole[0], gradients()[0]), "a row's gradient does not know of other windows"


@pytest.mark.gpu
@needs_cuda
def test_a_gpus_product_with_gelu_is_in_the_tanh_form() -> None:
    x, weight, bias = (torch.randn(s, device="cuda") for s in ((64, 32), (128, 32), (128,)))
    got = torch._addmm_activation(bias, x, weight.t(), use_gelu=True)
    pre = torch.addmm(bias.double(), x.double(), weight.double().t())
    tanh, erf = (torch.nn.functional.gelu(pre, approximate=form) for form in ("tanh", "none"))
    assert (got - tanh).abs().max() < 1e-5 < 1e-4 < (got - erf).abs().max()


@pytest.mark.gpu
@needs_cuda
def test_a_gpu_compiles_network_and_loss_into_one_graph() -> None:
    config = tiny_config(width=64, num_heads=4, dropout=0.2)
    network = FactorizedDiT(config.network, config.tokenizer, 5).cuda().train()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    values = torch.randn(6, 24, 5, device="cuda")
    tokenizer, prior = Tokenizer(config.tokenizer), config.network.prior
    time = stratified_times(6, torch.Generator("cuda").manual_seed(1))
    hidden = values > 0
    tokens, scale = tokenize(tokenizer, values, ~hidden, prior=prior, relations=network.relations)

    def loss() -> Tensor:
        return masked_loss(
            network,
            tokenizer,
            config.diffusion,
            tokens=tokens,
            scale=scale,
            values_BTV=values,
            observed_BTV=torch.ones_like(hidden),
            hidden_BTV=hidden,
            time_B=time,
            target_noise_BTV=None,
        )

    def gradients(run: Callable[[], Tensor]) -> list[Tensor]:
        with torch.autocast("cuda", torch.bfloat16):
            value = run()
        return [value.detach(), *torch.autograd.grad(value, list(network.parameters()))]

    compiled = torch.compile(loss, fullgraph=True)
    network.eval()  # the compiler draws other seeds for the dropout
    for expected, got in zip(gradients(loss), gradients(compiled), strict=True):
        torch.testing.assert_close(
            got, expected, rtol=3e-2, atol=3e-2 * float(expected.abs().max())
        )
    network.train()
    assert all(gradient.isfinite().all() for gradient in gradients(compiled))
