"""The products of an MLP around its GELU, against their definition."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
import torch

from gpu_cases import mlp_errors, needs_cuda, run_python
from mdtim.gpu import cuda_mlp

INTERPRETED = """
import json
import torch
from gpu_cases import mlp_errors

torch.manual_seed(0)
print(json.dumps([
    mlp_errors(num_rows, 64, 128, dtype=torch.float16) for num_rows in (1, 64, 333)
]))
"""


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed on this machine"
)
def test_products_and_passes_agree_with_the_definition_when_interpreted() -> None:
    results = json.loads(run_python(INTERPRETED, TRITON_INTERPRET="1"))
    assert len(results) == 3
    for errors in results:
        assert max(errors.values()) < 2e-3, errors


def test_only_a_hopper_gpu_and_widths_of_whole_boxes_are_for_the_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fits(num_rows: int, width: int, inner: int, dtype: torch.dtype = torch.bfloat16) -> bool:
        shapes = (num_rows, width), (width, inner), (num_rows, inner)
        return cuda_mlp.fits(*(torch.zeros(shape, dtype=dtype) for shape in shapes))

    assert not fits(128, 256, 1024), "on a CPU"
    pretend_a_gpu(monkeypatch, (9, 0))
    assert fits(128, 256, 1024)
    assert fits(1, 128, 384, torch.float16)
    assert not fits(0, 256, 1024)
    assert not fits(128, 192, 768)
    assert not fits(128, 320, 1280)
    assert not fits(128, 256, 1000)
    assert not fits(128, 256, 1024, torch.float32)
    pretend_a_gpu(monkeypatch, (10, 0))
    assert not fits(128, 256, 1024), "instructions of one generation"


def pretend_a_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(cuda_mlp, "has_compiler", lambda: True)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("num_rows", [1, 63, 64, 5_000, 131_072, 200_001])
@pytest.mark.parametrize("spread", [1.0, 3.0])
def test_the_kernels_agree_with_the_definition_on_a_gpu(num_rows: int, spread: float) -> None:
    kind: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    assert max(mlp_errors(num_rows, 256, 1024, spread, **kind).values()) < 1e-2


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize(("width", "inner"), [(64, 256), (128, 128), (192, 768), (96, 288)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_networks_of_other_widths_agree_on_a_gpu(
    width: int, inner: int, dtype: torch.dtype
) -> None:
    assert max(mlp_errors(777, width, inner, device="cuda", dtype=dtype).values()) < 1e-2
