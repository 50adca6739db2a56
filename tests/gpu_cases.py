"""What tests of GPU code share: fresh interpreters, errors, poison, and a block's definition."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from torch import Tensor

import mdtim
from conftest import tiny_config
from mdtim import layers, mlp, readout
from mdtim.closed_form.guesses import NUM_FEATURES, NUM_GUESSES, Guesses
from mdtim.config import DiffusionConfig, NetworkConfig, Prior
from mdtim.embedding import embed_cells
from mdtim.gpu.dropout import keep_mask
from mdtim.gpu.fused_embedding import fused_embedding
from mdtim.gpu.fused_norm import fused_norm
from mdtim.gpu.fused_readout import fused_probs, fused_terms
from mdtim.gpu.row_passes import GATE_A, GATE_M
from mdtim.layers import AxisBlock
from mdtim.network import FactorizedDiT, Tokens
from mdtim.wanted import Wanted

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def run_python(script: str, **environment: str) -> str:
    """Run a script in a fresh interpreter that finds the package where this one found it."""
    package = str(Path(mdtim.__file__).parents[1])
    path = os.pathsep.join([package, str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def relative_error(value: Tensor, truth: Tensor) -> float:
    """‖value - truth‖ / ‖truth‖, in float64."""
    return ((value.double() - truth).norm() / truth.norm().clamp_min(1e-30)).item()


@contextmanager
def poisoned() -> Iterator[None]:
    """Fill what is allocated with NaN: a position that no program writes shows."""
    new_empty, empty_like = Tensor.new_empty, torch.empty_like

    def poison(tensor: Tensor) -> Tensor:
        return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

    with (
        mock.patch.object(
            Tensor, "new_empty", lambda self, *a, **k: poison(new_empty(self, *a, **k))
        ),
        mock.patch.object(torch, "empty_like", lambda *a, **k: poison(empty_like(*a, **k))),
    ):
        yield


def make_block(width: int, num_heads: int, axis: Any, dropout: float = 0.0) -> AxisBlock:
    """A block of random weights, none of them zero."""
    config = NetworkConfig(width=width, num_heads=num_heads, dropout=dropout)
    block = AxisBlock(config, axis).train()
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    return block


def moderate_modulation(num_windows: int, slots: int, width: int) -> Tensor:
    """Vectors that modulate windows, as a network hands them out: a part of more."""
    return 0.6 * torch.randn(num_windows, slots + 3, width)[:, 1 : slots + 1]


def defined_output(block: AxisBlock, h: Tensor, modulation: Tensor, seed: Tensor) -> Tensor:
    """The block by its definition, with the dropout of a seed."""
    sites = iter((GATE_A, GATE_M))

    def dropout(x: Tensor, probability: float) -> Tensor:
        if not probability:
            return x
        rows = x.numel() // x.shape[-1]
        kept = keep_mask(seed, next(sites), rows, x.shape[-1], probability)
        return x * kept.view(x.shape) / (1 - probability)

    with mock.patch.object(layers.F, "dropout", dropout):
        block.fused, block.attention = False, "reference"
        out: Tensor = block(h, modulation)
        return out


class BlockErrors(NamedTuple):
    """Relative errors of a block's outputs and gradients, against float64."""

    fused: dict[str, float]
    plain: dict[str, float]
    """Of the definition in the same dtype."""

    def beyond(self, limit: float) -> dict[str, tuple[float, float]]:
        """Errors above a limit and above the dtype's own, which few cells do not average out."""
        return {
            name: (error, self.plain[name])
            for name, error in self.fused.items()
            if not error <= max(limit, 1.25 * self.plain[name])
        }


def block_errors(block: AxisBlock, shape: tuple[int, int, int], seed: int) -> BlockErrors:
    """Errors of the fused block on fresh random states (B, T, V), in the dtype of its weights."""
    weight = block.qkv.weight
    kind = {"device": weight.device, "dtype": weight.dtype}
    h = torch.randn(*shape, weight.shape[1]).to(**kind).requires_grad_()
    modulation = moderate_modulation(shape[0], 6, weight.shape[1]).to(**kind).requires_grad_()
    grad = torch.randn(h.shape).to(**kind)
    key = torch.tensor(seed, device=weight.device)
    named = dict(block.named_parameters()) | {"h": h, "modulation": modulation}

    block.fused, block.attention = True, "triton"
    assert block.fits(h)
    with poisoned():
        out = block(h, modulation, key)
        gradients = torch.autograd.grad(out, list(named.values()), grad)
        with torch.no_grad():
            out_without_grad = block(h, modulation, key)

    plain_out = defined_output(block, h, modulation, key)
    plain_gradients = torch.autograd.grad(plain_out, list(named.values()), grad)
    exact = copy.deepcopy(block).double()
    h, modulation = (x.detach().double().requires_grad_() for x in (h, modulation))
    exact_named = dict(exact.named_parameters()) | {"h": h, "modulation": modulation}
    truth = defined_output(exact, h, modulation, key)
    exact_gradients = torch.autograd.grad(truth, list(exact_named.values()), grad.double())
    names = ["out", "out without gradient", *(f"gradient of {name}" for name in named)]
    exact_values = (truth, truth, *exact_gradients)

    def errors(*values: Tensor) -> dict[str, float]:
        assert all(value.dtype == weight.dtype for value in values)
        return dict(zip(names, map(relative_error, values, exact_values), strict=True))

    return BlockErrors(
        errors(out, out_without_grad, *gradients), errors(plain_out, plain_out, *plain_gradients)
    )


def mlp_errors(
    num_rows: int, width: int, inner: int, spread: float = 1.0, **kind: Any
) -> dict[str, float]:
    """Relative errors of an MLP's first product with GELU and of the way back, against float64.

    `spread` is the std of what goes into GELU.
    """

    def random(*shape: int) -> Tensor:
        return (torch.randn(shape) * shape[-1] ** -0.5).to(**kind)

    x, dz = random(num_rows, width) * (spread * width**0.5), random(num_rows, width)
    up, bias, down = random(inner, width), random(inner), random(width, inner)
    with poisoned():
        act, pre = mlp.up_and_gelu(x, up, bias)
        alone = mlp.up_to_gelu(x, up, bias)
        dpre, ddown, dbias = mlp.back_to_gelu(dz, pre, down)
    product = x.double() @ up.double().t() + bias.double()
    exact_pre = pre.double().requires_grad_()
    exact_act = layers.F.gelu(exact_pre, approximate="tanh")
    (exact_dpre,) = torch.autograd.grad(exact_act, exact_pre, dz.double() @ down.double())
    return {
        "pre": relative_error(pre, product),
        "act": relative_error(act, exact_act.detach()),
        "act alone": relative_error(alone, layers.F.gelu(product, approximate="tanh")),
        "gradient of pre": relative_error(dpre, exact_dpre),
        "gradient of down": relative_error(ddown, dz.double().t() @ exact_act.detach()),
        "gradient of the bias": relative_error(dbias, exact_dpre.sum(0)),
    }


def stack_errors(
    shape: tuple[int, int, int], width: int, num_heads: int, **kind: Any
) -> dict[str, float]:
    """Relative errors of three blocks as one operator.

    Alone, with the norm behind them, and with that for some of the cells alone.
    """
    blocks = [make_block(width, num_heads, axis).to(**kind) for axis in ("time", "variate", "time")]
    h = torch.randn(*shape, width).to(**kind)
    modulation = moderate_modulation(shape[0], 3 * 6 + 2, width).to(**kind)
    given = h.clone()
    mask = torch.rand(shape) < 0.4
    wanted = Wanted.find(mask.to(h.device))
    with poisoned(), torch.no_grad():
        some = layers.forward_fused(blocks, h, modulation, wanted)
        single = layers.forward_fused(blocks[:1], h, modulation[:, :6], wanted)
        out = layers.forward_fused(blocks, h, modulation[:, :-2])
        normalized = layers.forward_fused(blocks, h, modulation)
    assert torch.equal(h, given), "the caller's states were written to"
    truth, exact = [given.double()], modulation.double()
    with torch.no_grad():
        for number, block in enumerate(blocks):
            slots = exact[:, 6 * number :][:, :6]
            defined = copy.deepcopy(block).double()
            truth.append(defined_output(defined, truth[-1], slots, torch.tensor(0)))
    norm = layers.normalize(truth[-1], exact[:, -2:], fused=False)
    # In windows of a cell or two nothing is spared, and all cells go on.
    here, there = (mask, mask) if wanted is None else (wanted.own_BN[..., None], mask)
    return {
        "out": relative_error(out, truth[-1]),
        "normalized": relative_error(normalized, norm),
        "wanted": relative_error(some[here], norm[there]),
        "wanted of one block": relative_error(single[here], truth[1][there]),
    }


def norm_errors(shape: tuple[int, int, int, int], **kind: Any) -> dict[str, float]:
    """Relative errors of the fused norm and its gradients on random states (B, T, V, D)."""
    h = torch.randn(shape).to(**kind).requires_grad_()
    modulation = moderate_modulation(shape[0], 2, shape[-1]).to(**kind).requires_grad_()
    grad = torch.randn(shape).to(**kind)
    with poisoned():
        out = fused_norm(h, modulation)
        gradients = torch.autograd.grad(out, (h, modulation), grad)
    exact_h, exact_modulation = (x.detach().double().requires_grad_() for x in (h, modulation))
    shift, scale = exact_modulation.unbind(1)
    truth = layers.modulate(torch.nn.functional.layer_norm(exact_h, shape[-1:]), shift, scale)
    exact = torch.autograd.grad(truth, (exact_h, exact_modulation), grad.double())
    pairs = zip((out, *gradients), (truth, *exact), strict=True)
    return {
        name: relative_error(*pair)
        for name, pair in zip(
            ("out", "gradient of h", "gradient of modulation"), pairs, strict=True
        )
    }


def embedding_errors(
    shape: tuple[int, int, int, int], width: int, num_weights: int, **kind: Any
) -> dict[str, float]:
    """Relative errors of first states and their gradients on random inputs (B, T, V, I)."""
    inputs = torch.randn(shape).to(**kind)
    weights = torch.randn(num_weights, shape[-1], width, device=inputs.device).requires_grad_()
    level = torch.randn(shape[0], shape[2], width).to(**kind).requires_grad_()
    grad = torch.randn(*shape[:3], width).to(**kind)
    with poisoned():
        alone = fused_embedding(inputs, weights, None)
        out = fused_embedding(inputs, weights, level)
        gradients = torch.autograd.grad(out, (weights, level), grad)
    assert out.is_contiguous()
    assert gradients[0].dtype == weights.dtype
    # Weights are multiplied in the dtype of the inputs.
    exact = [x.detach().to(inputs.dtype).double().requires_grad_() for x in (weights, level)]
    product = embed_cells(inputs.double(), exact[0], None, fused=False)
    truth = embed_cells(inputs.double(), *exact, fused=False)
    pairs = {
        "alone": (alone, product),
        "out": (out, truth),
        **dict(
            zip(
                ("gradient of weights", "gradient of level"),
                zip(gradients, torch.autograd.grad(truth, exact, grad.double()), strict=True),
                strict=True,
            )
        ),
    }
    return {name: relative_error(*pair) for name, pair in pairs.items()}


def readout_errors(
    dtype: torch.dtype,
    device: str,
    *,
    shape: tuple[int, int, int] = (2, 5, 3),
    prior: Prior = "relations",
    num_bins: int = 40,
    label_width: int = 2,
    whole: bool = False,
) -> dict[str, float]:
    """Relative errors of the kernels behind the head and of their gradients.

    Parameters
    ----------
    shape : B, T, V
    whole : whether targets are whole numbers
    """
    torch.manual_seed(0)
    config = tiny_config(prior=prior, num_bins=num_bins)
    network = FactorizedDiT(config.network, config.tokenizer, shape[2]).to(device)
    labels = DiffusionConfig(label_width=label_width)
    bins = network.num_outputs
    width = -(-network.head.out_features // 8) * 8
    output = (2 * torch.randn(*shape, width, device=device)).to(dtype).requires_grad_()
    guesses = None
    if prior != "none":
        values = torch.randn(*shape, NUM_GUESSES[prior], device=device)
        features = torch.zeros(*shape, NUM_FEATURES[prior], device=device)
        guesses = Guesses(values, features, torch.randint(9, shape, device=device).float())
    empty = torch.zeros(shape, device=device)
    tokens = Tokens(empty, empty[:, 0, 0], torch.zeros(shape[0], shape[2], 3), guesses)
    target = (bins - 1) * torch.rand(shape, device=device)
    if whole:
        target = target.round()
    weights = torch.randn(2, *shape, device=device)

    def gradients(network: FactorizedDiT, output: Tensor, loss: Tensor) -> dict[str, Tensor]:
        named = {"output": output}
        if guesses is not None:
            named |= {"prior": network.prior, "belief": network.belief}
        return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))

    def loss(entropy: Tensor, estimate: Tensor) -> Tensor:
        return (weights[0] * entropy.view(shape) + weights[1] * estimate.view(shape)).sum()

    rows = readout._rows(network, tokens.guesses, output)
    constants = (bins, network.reach, label_width, labels.label_variance)
    with poisoned():
        terms = fused_terms(*rows, target.flatten(), *constants)
        found = {"entropy": terms[0], "estimate": terms[1]}
        found["probs"] = fused_probs(*rows, bins, network.reach).view(*shape, bins)
        found |= gradients(network, output, loss(*terms))

    exact_output = output.detach().float().requires_grad_()
    logits = network.logits(exact_output, guesses)
    probs = logits.softmax(-1)
    entropy = readout.soft_cross_entropy(logits, target, labels)
    estimate = (probs * network.centers).sum(-1)
    truth = {"entropy": entropy, "estimate": estimate, "probs": probs}
    truth |= gradients(network, exact_output, loss(entropy, estimate))
    return {
        name: relative_error(value.view(truth[name].shape), truth[name].double())
        for name, value in found.items()
    }
