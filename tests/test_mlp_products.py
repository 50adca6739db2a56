"""An MLP in one kernel, and half of its way back in another, against their definition."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch

from gpu_cases import mlp_errors, needs_cuda, run_python
from mdtim.bench import mlp_products
from mdtim.bench.mlp_products import BACKWARD_TILES, FORWARD_TILES, Tiles

INTERPRETED = """
import json
import torch
from triton.runtime import interpreter
from gpu_cases import mlp_errors
from mdtim.bench.mlp_products import Tiles

patch = interpreter._patch_lang_tensor
def read_bounds(tensor, scope):
    # Triton 3.6 reads the bounds of a loop as int(array), which NumPy 2.4 refuses.
    patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())
interpreter._patch_lang_tensor = read_bounds

torch.manual_seed(0)
forward, backward = Tiles(32, 32, 4, 2), Tiles(16, 64, 4, 2)
print(json.dumps([
    mlp_errors(num_rows, 64, 128, forward, backward, dtype=torch.float16)
    for num_rows in (1, 32, 333)
]))
"""


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed on this machine"
)
def test_the_kernels_agree_with_the_definition_when_interpreted() -> None:
    results = json.loads(run_python(INTERPRETED, TRITON_INTERPRET="1"))
    assert len(results) == 3
    for errors in results:
        assert max(errors.values()) < 1e-3, errors


def test_a_cpu_and_odd_widths_are_not_for_these_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.zeros(3, 256, dtype=torch.bfloat16)
    assert not mlp_products.fits(rows, 1024)
    monkeypatch.setattr(mlp_products, "HAS_TRITON", True)
    monkeypatch.setattr(mlp_products, "_has_tensor_descriptors", lambda device: True)
    assert mlp_products.fits(rows, 1024)
    assert not mlp_products.fits(rows[:, :96], 384)
    assert not mlp_products.fits(rows, 1000)
    assert not mlp_products.fits(rows.float(), 1024)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("num_rows", [1, 127, 5_000, 200_001])
@pytest.mark.parametrize("forward", FORWARD_TILES)
@pytest.mark.parametrize("backward", BACKWARD_TILES)
def test_the_kernels_agree_with_the_definition_on_a_gpu(
    num_rows: int, forward: Tiles, backward: Tiles
) -> None:
    kind = {"device": "cuda", "dtype": torch.bfloat16}
    assert max(mlp_errors(num_rows, 256, 1024, forward, backward, **kind).values()) < 1e-2
