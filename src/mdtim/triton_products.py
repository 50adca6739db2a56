"""Matrix products of the MLP that end with GELU, so that its input is not read again.

The products are short (D columns) and their results wide (F columns): traffic bounds them, and
what a product's end reads and writes is most of it.

Shapes: R rows, D width, F width inside the MLP.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mdtim.triton_compiler import HAS_TRITON, on_device_of
from mdtim.triton_compiler import jit as _jit
from mdtim.triton_rows import gelu_factor, gelu_slope

if HAS_TRITON:
    import triton
    import triton.language as tl

# Size of a tile of the result, by the registers of the code compiled for compute capability 9.0:
# two programs fit a multiprocessor, so that one ends while another begins.
_ROWS = 128
_COLUMNS = 128
_BACKWARD_COLUMNS = 64


def up_and_gelu(x_RD: Tensor, up_FD: Tensor, bias_F: Tensor) -> tuple[Tensor, Tensor]:
    """Multiply and add, x @ up.T + bias; also GELU of it."""
    pre_RF = x_RD.new_empty((len(x_RD), len(up_FD)))
    act_RF = torch.empty_like(pre_RF)
    _launch(x_RD, up_FD, bias_F, pre_RF, pre_RF, act_RF, None)
    return pre_RF, act_RF


def down_and_gelu_backward(
    dz_RD: Tensor, down_DF: Tensor, pre_RF: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient of GELU's input from that of the MLP's output: through `down`, then GELU.

    Returns
    -------
    dpre_RF
    act_RF : GELU's output once more
    sum_F : float32, the sum of the gradient over the rows
    """
    dpre_RF, act_RF = torch.empty_like(pre_RF), torch.empty_like(pre_RF)
    num_tiles = -(-len(pre_RF) // _ROWS)
    sums_CF = pre_RF.new_empty((num_tiles, pre_RF.shape[1]), dtype=torch.float32)
    _launch(dz_RD, down_DF, None, pre_RF, dpre_RF, act_RF, sums_CF)
    return dpre_RF, act_RF, sums_CF.sum(0)


def _launch(
    a_RD: Tensor,
    weight: Tensor,
    bias_F: Tensor | None,
    pre_RF: Tensor,
    out_RF: Tensor,
    act_RF: Tensor,
    sums_CF: Tensor | None,
) -> None:
    """Run the kernel, forward with a weight (F, D) or, with sums, backward with one (D, F)."""
    (num_rows, depth), columns = a_RD.shape, pre_RF.shape[1]
    if num_rows == 0:
        return
    tile = _COLUMNS if sums_CF is None else _BACKWARD_COLUMNS
    grid = (triton.cdiv(num_rows, _ROWS) * triton.cdiv(columns, tile),)
    with on_device_of(a_RD):
        product_with_gelu_kernel[grid](
            a_RD,
            weight,
            bias_F,
            pre_RF,
            out_RF,
            act_RF,
            sums_CF,
            num_rows,
            D=depth,
            F=columns,
            STRIDE_D=1 if sums_CF is None else columns,
            STRIDE_F=depth if sums_CF is None else 1,
            ROWS=_ROWS,
            COLUMNS=tile,
            DEPTH=64 if depth % 64 == 0 else 32,
            num_warps=8,
            num_stages=3 if a_RD.itemsize == 2 else 1,
        )


@_jit
def product_with_gelu_kernel(
    a: tl.tensor, weight: tl.tensor, bias: tl.tensor, pre: tl.tensor, out: tl.tensor,
    act: tl.tensor, sums: tl.tensor, num_rows: tl.tensor,
    D: tl.constexpr, F: tl.constexpr, STRIDE_D: tl.constexpr, STRIDE_F: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
) -> None:  # fmt: skip
    """One tile of a product; forward where there are no sums, backward where there are."""
    num_column_tiles: tl.constexpr = (F + COLUMNS - 1) // COLUMNS
    # Neighbouring programs take the columns of the same rows, which then come from the cache.
    row_tile = tl.program_id(0) // num_column_tiles
    column = tl.program_id(0) % num_column_tiles * COLUMNS + tl.arange(0, COLUMNS)
    row = row_tile * ROWS + tl.arange(0, ROWS)
    depth = tl.arange(0, DEPTH)
    inside_row = (row < num_rows)[:, None]
    inside_column = (column < F)[None, :]
    a_at = a + row.to(tl.int64)[:, None] * D + depth[None, :]
    weight_at = weight + depth[:, None] * STRIDE_D + column[None, :] * STRIDE_F
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, D, DEPTH):
        x = tl.load(a_at + start, mask=inside_row, other=0.0)
        w = tl.load(weight_at + start * STRIDE_D, mask=inside_column, other=0.0)
        total = tl.dot(x, w, total, input_precision="ieee")
    at = row.to(tl.int64)[:, None] * F + column[None, :]
    inside = inside_row & inside_column
    if sums is None:
        offset = tl.load(bias + column, mask=column < F, other=0.0).to(tl.float32)
        # GELU of the stored value, as the backward pass will take it again.
        stored = (total + offset[None, :]).to(out.dtype.element_ty)
        tl.store(out + at, stored, mask=inside)
        x = stored.to(tl.float32)
        tl.store(act + at, (x * gelu_factor(x)).to(act.dtype.element_ty), mask=inside)
    else:
        x = tl.load(pre + at, mask=inside, other=0.0).to(tl.float32)
        s = gelu_factor(x)
        tl.store(act + at, (x * s).to(act.dtype.element_ty), mask=inside)
        total *= gelu_slope(x, s)
        tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)
        tl.store(sums + row_tile.to(tl.int64) * F + column, tl.sum(total, 0), mask=column < F)
