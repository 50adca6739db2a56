"""Triton kernel of an MLP's way back: through its second product and GELU, and that weight.

:mod:`mdtim.mlp_backward` launches it. Tiles come and go through tensor descriptors, which read
zeros and write nothing beyond the last row. Products are of 16 bits with sums in float32.

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
    """GELU(x) / x, by the chip's own tanh: right to 2^-11, a product's input has 2^-9.

    The slope made of it is right to .002 up to 2 and to .005 up to 4, beyond which few inputs lie.
    """
    if _HAS_TANH:
        inner = x * (0.7978845608028654 + 0.035677408136300125 * x * x)
        tanh = tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [inner], dtype=tl.float32, is_pure=True, pack=1
        )
        return 0.5 + 0.5 * tanh
    else:
        return gelu_factor(x)


@_jit
def back_to_gelu_kernel(
    dz: tl.tensor, down: tl.tensor, pre: tl.tensor,
    dpre: tl.tensor, weight: tl.tensor, bias: tl.tensor,
    num_tiles: tl.tensor,
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
