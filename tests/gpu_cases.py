"""What tests of GPU code share: fresh interpreters, errors, poison, and a block's definition."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

import mdtim
from mdtim import layers
from mdtim.config import NetworkConfig
from mdtim.dropout import keep_mask
from mdtim.fused_norm import fused_norm
from mdtim.layers import AxisBlock
from mdtim.row_passes import GATE_A, GATE_M

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


def block_errors(block: AxisBlock, shape: tuple[int, int, int], seed: int) -> dict[str, float]:
    """Relative errors of the fused block's outputs and gradients, against float64.

    On fresh random states of a shape (B, T, V), in the dtype of the block's weights.
    """
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

    exact = copy.deepcopy(block).double()
    h, modulation = (x.detach().double().requires_grad_() for x in (h, modulation))
    exact_named = dict(exact.named_parameters()) | {"h": h, "modulation": modulation}
    truth = defined_output(exact, h, modulation, key)
    exact_gradients = torch.autograd.grad(truth, list(exact_named.values()), grad.double())
    errors = {
        "out": relative_error(out, truth),
        "out without gradient": relative_error(out_without_grad, truth),
    }
    for name, value, exact_value in zip(named, gradients, exact_gradients, strict=True):
        assert value.dtype == weight.dtype
        errors[f"gradient of {name}"] = relative_error(value, exact_value)
    return errors


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
