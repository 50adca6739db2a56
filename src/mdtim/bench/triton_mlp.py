"""Triton kernels for an MLP as a whole: both of its products, and half of their gradients.

Hidden states are written once, for the backward pass, and never read again on the way forward.
:mod:`mdtim.bench.mlp_products` launches them. Tiles come and go through tensor descriptors, which
read zeros and write nothing beyond the last row. Products are of 16 bits with sums in float32.

Shapes: R rows of a tile, D width, F width inside the MLP, I columns of it at a time.
"""

from __future__ import annotations

from mdtim.triton_compiler import HAS_TRITON, INTERPRETED
from mdtim.triton_compiler import jit as _jit
from mdtim.triton_rows import gelu_factor, gelu_slope

if HAS_TRITON:
    import triton.language as tl

    _HAS_TANH = tl.constexpr(not INTERPRETED)


@_jit
def _gelu_factor(x: tl.tensor) -> tl.tensor:
    """GELU(x) / x, by the chip's own tanh: right to 2^-11, a product's input has 2^-9."""
    if _HAS_TANH:
        inner = x * (0.7978845608028654 + 0.035677408136300125 * x * x)
        tanh = tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [inner], dtype=tl.float32, is_pure=True, pack=1
        )
        return 0.5 + 0.5 * tanh
    else:
        return gelu_factor(x)


@_jit
def mlp_kernel(
    x: tl.tensor, up: tl.tensor, up_bias: tl.tensor, down: tl.tensor, down_bias: tl.tensor,
    z: tl.tensor, pre: tl.tensor, num_tiles: tl.tensor, num_programs: tl.tensor,
    D: tl.constexpr, F: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """(R, D) down(GELU(up(x))), tile by tile, and the input of GELU, which is kept."""
    half = tl.arange(0, D // 2)
    for tile in tl.range(tl.program_id(0), num_tiles, num_programs, num_stages=1):
        row = tile * ROWS
        x_RD = x.load([row, 0])
        z_RD = tl.zeros((ROWS, D), tl.float32)
        for first in tl.range(0, F, INNER, num_stages=STAGES):
            value = tl.dot(x_RD, up.load([first, 0]).T)
            value += tl.load(up_bias + first + tl.arange(0, INNER)).to(tl.float32)[None, :]
            stored = value.to(x_RD.dtype)
            pre.store([row, first], stored)
            value = stored.to(tl.float32)  # as the backward pass will read it
            value *= _gelu_factor(value)
            z_RD = tl.dot(value.to(x_RD.dtype), down.load([0, first]).T, z_RD)
        # In halves, for there is no room for all of it beside the tiles in flight.
        left, right = tl.split(tl.permute(tl.reshape(z_RD, (ROWS, 2, D // 2)), (0, 2, 1)))
        left += tl.load(down_bias + half).to(tl.float32)[None, :]
        z.store([row, 0], left.to(x_RD.dtype))
        right += tl.load(down_bias + D // 2 + half).to(tl.float32)[None, :]
        z.store([row, D // 2], right.to(x_RD.dtype))


@_jit
def down_backward_kernel(
    dz: tl.tensor, down: tl.tensor, pre: tl.tensor,
    dpre: tl.tensor, weight: tl.tensor, bias: tl.tensor, num_tiles: tl.tensor,
    D: tl.constexpr, F: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr,
    CHUNKS: tl.constexpr, STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """Back through the second product and GELU, with the gradient of that product's weight.

    A program keeps I columns of the weight and of its gradient, and takes every CHUNKS-th tile of
    rows. It leaves its sums, the gradient and the first bias's, as float32 parts.
    """
    columns: tl.constexpr = F // INNER
    first = tl.program_id(0) % columns * INNER
    chunk = tl.program_id(0) // columns
    down_DI = down.load([0, first])
    sum_DI = tl.zeros((D, INNER), tl.float32)
    sum_I = tl.zeros((INNER,), tl.float32)
    for tile in tl.range(chunk, num_tiles, CHUNKS, num_stages=STAGES):
        row = tile * ROWS
        dz_RD = dz.load([row, 0])
        value = pre.load([row, first]).to(tl.float32)
        d = tl.dot(dz_RD, down_DI)
        factor = _gelu_factor(value)
        sum_DI = tl.dot(dz_RD.T, (value * factor).to(dz_RD.dtype), sum_DI)
        d *= gelu_slope(value, factor)
        dpre.store([row, first], d.to(dz_RD.dtype))
        sum_I += tl.sum(d, 0)
    inner = first + tl.arange(0, INNER)
    width = tl.arange(0, D)
    tl.store(weight + (chunk * D + width)[:, None] * F + inner[None, :], sum_DI)
    tl.store(bias + chunk * F + inner, sum_I)
