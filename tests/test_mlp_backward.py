"""Half of an MLP's way back in one kernel, against its definition."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch

from gpu_cases import mlp_errors, needs_cuda, run_python
from mdtim import mlp_backward

INTERPRETED = """
import json
import torch
from triton.runtime import interpreter
from gpu_cases import mlp_errors

patch = interpreter._patch_lang_tensor
def read_bounds(tensor, scope):
    # Triton 3.6 reads the bounds of a loop as int(array), which NumPy 2.4 refuses.
    patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())
interpreter._patch_lang_tensor = read_bounds

torch.manual_seed(0)
print(json.dumps([
    mlp_errors(num_rows, 64, 128, dtype=torch.float16) for num_rows in (1, 64, 333)
]))
"""


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed on this machine"
)
def test_the_kernel_agrees_with_the_definition_when_interpreted() -> None:
    results = json.loads(run_python(INTERPRETED, TRITON_INTERPRET="1"))
    assert len(results) == 3
    for errors in results:
        assert max(errors.values()) < 1e-3, errors


def test_an_older_triton_without_descriptors_takes_products_and_a_pass() -> None:
    script = """
import sys
sys.modules["triton.tools.tensor_descriptor"] = None
from mdtim import fused_block, mlp_backward
print(mlp_backward.TensorDescriptor)
"""
    assert run_python(script).strip() == "None"


def test_a_cpu_and_other_widths_are_not_for_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_for_it(num_rows: int, width: int, inner: int, dtype: torch.dtype) -> bool:
        shapes = (num_rows, width), (num_rows, inner), (width, inner)
        return mlp_backward._is_for_one_kernel(*(torch.zeros(s, dtype=dtype) for s in shapes))

    assert not is_for_it(128, 256, 1024, torch.bfloat16)
    monkeypatch.setattr(mlp_backward, "TensorDescriptor", object)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert is_for_it(128, 256, 1024, torch.bfloat16)
    assert not is_for_it(0, 256, 1024, torch.bfloat16)
    assert not is_for_it(128, 128, 512, torch.bfloat16)
    assert not is_for_it(128, 256, 1000, torch.bfloat16)
    assert not is_for_it(128, 256, 1024, torch.float32)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("num_rows", [1, 63, 64, 5_000, 131_072, 200_001])
@pytest.mark.parametrize("spread", [1.0, 3.0])
def test_the_kernel_agrees_with_the_definition_on_a_gpu(num_rows: int, spread: float) -> None:
    kind = {"device": "cuda", "dtype": torch.bfloat16}
    assert max(mlp_errors(num_rows, 256, 1024, spread, **kind).values()) < 1e-2
