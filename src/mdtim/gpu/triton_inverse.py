"""Inverses of many small positive definite matrices on a GPU, in a form that graphs can capture.

The libraries behind :func:`torch.linalg.inv` may wait for the device, which a captured step must
not. One program holds one matrix in float64 and sweeps its pivots (Gauss and Jordan, in place).
"""

from __future__ import annotations

import torch
from torch import Tensor

from mdtim.gpu.triton_compiler import HAS_TRITON, jit, on_device_of, runs_triton

if HAS_TRITON:
    import triton
    import triton.language as tl

MAX_SIZE = 64
"""Largest matrix that fits the registers of a program."""


def fits_inverse(matrix: Tensor) -> bool:
    """Whether :func:`inverse` takes (..., V, V) matrices like these."""
    return runs_triton(matrix) and matrix.shape[-1] <= MAX_SIZE


@torch.library.custom_op("mdtim::inverse", mutates_args=(), schema="(Tensor matrix) -> Tensor")
def inverse(matrix_BVV: Tensor) -> Tensor:
    """(B, V, V) float64 inverses; the matrices must be positive definite."""
    matrix_BVV = matrix_BVV.contiguous()
    out_BVV = torch.empty_like(matrix_BVV)
    count, size, _ = matrix_BVV.shape
    if count and size:
        rows = max(16, triton.next_power_of_2(size))
        with on_device_of(matrix_BVV):
            _inverse_kernel[(count,)](
                matrix_BVV, out_BVV, SIZE=size, ROWS=rows, num_warps=max(1, rows * rows // 1024)
            )
    return out_BVV


@inverse.register_fake
def _(matrix_BVV: Tensor) -> Tensor:
    return torch.empty_like(matrix_BVV)


@jit
def _inverse_kernel(
    matrix: tl.tensor, out: tl.tensor, SIZE: tl.constexpr, ROWS: tl.constexpr
) -> None:
    i = tl.arange(0, ROWS)[:, None]
    j = tl.arange(0, ROWS)[None, :]
    inside = (i < SIZE) & (j < SIZE)
    place = tl.program_id(0).to(tl.int64) * SIZE * SIZE + i * SIZE + j
    a = tl.load(matrix + place, mask=inside, other=0.0)
    for k in range(0, SIZE):
        row = tl.sum(tl.where(i == k, a, 0.0), axis=0)[None, :]
        column = tl.sum(tl.where(j == k, a, 0.0), axis=1)[:, None]
        pivot = 1.0 / tl.sum(tl.where(j == k, row, 0.0))
        swept = tl.where(i == k, row * pivot, a - column * row * pivot)
        swept = tl.where(j == k, -column * pivot, swept)
        a = tl.where((i == k) & (j == k), pivot, swept)
    tl.store(out + place, a, mask=inside)
