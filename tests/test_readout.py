"""From what the head says to probabilities and the loss: the kernels against the definition."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
import torch

from gpu_cases import needs_cuda, readout_errors, run_python

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed on this machine"
)

INTERPRETED = """
import json
import torch
from gpu_cases import readout_errors
from mdtim.gpu import fused_readout

results = []
def check(limit=1e-5, **case):
    errors = readout_errors(torch.float32 if limit < 1e-3 else torch.float16, "cpu", **case)
    results.append({"case": str(case), "limit": limit, "errors": errors})

check()
check(prior="dynamics", label_width=0)
check(prior="none")
check(prior="line", num_bins=9, label_width=3, whole=True)
check(limit=1e-2)
fused_readout._TILE = 64  # many programs, the last one not full
check()

empty = torch.zeros(0, 72)
probs = fused_readout.fused_probs(empty, None, None, None, 60, 1.5)
assert probs.shape == (0, 60)
print(json.dumps(results))
"""


@needs_triton
def test_the_kernels_agree_with_the_definition_when_interpreted() -> None:
    results = json.loads(run_python(INTERPRETED, TRITON_INTERPRET="1").splitlines()[-1])
    assert len(results) == 6
    for result in results:
        for name, error in result["errors"].items():
            assert error <= result["limit"], (result["case"], name, error)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "case",
    [{}, {"prior": "dynamics"}, {"prior": "none"}, {"prior": "line", "num_bins": 100}],
)
def test_a_gpu_agrees_with_the_definition(case: dict[str, Any], dtype: torch.dtype) -> None:
    errors = readout_errors(dtype, "cuda", shape=(7, 48, 9), **case)
    limit = 1e-5 if dtype == torch.float32 else 1e-2
    assert max(errors.values()) <= limit, errors
