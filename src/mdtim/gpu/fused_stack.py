"""Blocks one behind the other as one operator without gradients, for a GPU that fills.

:class:`mdtim.layers.AxisBlock` defines what a block computes. With all of them in one place, the
end of a block and the norm in front of the next are one pass over memory, nothing is kept for a
backward pass, and the MLP's first product ends with GELU.

Shapes: B windows, T steps, V variates, R = B * T * V rows, D width, E = 3 * D, F = mlp_ratio * D,
L attended length, d head width, S slots of a modulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mdtim.gpu import row_passes
from mdtim.gpu.fused_block import BlockWeights, cast
from mdtim.gpu.row_passes import BLOCK_SLOTS, GATE_A, GATE_M, HEAD_SLOTS, Rows
from mdtim.gpu.triton_attention import attend
from mdtim.mlp import up_to_gelu
from mdtim.wanted import Wanted

NUM_WEIGHTS = len(BlockWeights._fields)


def fused_stack(
    h_BTVD: Tensor,
    modulation_BSD: Tensor,
    weights: Sequence[BlockWeights],
    tables_Ld: Sequence[Tensor | None],
    *,
    num_heads: int,
    over_time: Sequence[bool],
    wanted: Wanted | None = None,
) -> Tensor:
    """Run blocks without dropout, (B, T, V, D) to the same, or to the wanted cells (B, N, 1, D).

    Parameters
    ----------
    h_BTVD : bfloat16, float16 or float32, on a GPU
    modulation_BSD : the six slots of each block, one block behind the other. With two slots more,
        a shift and a scale, the end is normalized and modulated, as the head reads it.
    weights, tables_Ld, over_time : of each block (see :func:`mdtim.gpu.fused_block.fused_block`)
    num_heads : int
    wanted : cells that go on behind the last attention; without: all
    """
    flat = [weight for block in weights for weight in block]
    rows_R = None if wanted is None else wanted.rows(h_BTVD.shape[1] * h_BTVD.shape[2])
    out_BTVD: Tensor = _axis_blocks(
        h_BTVD, modulation_BSD, flat, list(tables_Ld), num_heads, list(over_time), rows_R
    )
    return out_BTVD


@torch.library.custom_op(
    "mdtim::axis_blocks",
    mutates_args=(),
    schema=(
        "(Tensor h, Tensor modulation, Tensor[] weights, Tensor?[] tables, int num_heads, "
        "bool[] over_time, Tensor? wanted) -> Tensor"
    ),
)
def _axis_blocks(
    h_BTVD: Tensor,
    modulation_BSD: Tensor,
    weights: list[Tensor],
    tables_Ld: list[Tensor | None],
    num_heads: int,
    over_time: list[bool],
    wanted_R: Tensor | None,
) -> Tensor:
    num_windows, num_steps, num_variates, width = h_BTVD.shape
    assert modulation_BSD.shape[1] - BLOCK_SLOTS * len(over_time) in (0, HEAD_SLOTS)
    rows = Rows(num_windows, num_steps * num_variates, width, dropout=0.0)
    h_RD = h_BTVD.contiguous().view(-1, width)
    shape: tuple[int, ...] = h_BTVD.shape
    weights = cast(weights, h_BTVD.dtype)
    x_RD = row_passes.normalize(rows, h_RD, modulation_BSD)
    for number, along_time in enumerate(over_time):
        first = number * NUM_WEIGHTS
        block = BlockWeights(*weights[first : first + NUM_WEIGHTS])
        here_BSD = modulation_BSD[:, number * BLOCK_SLOTS :]
        qkv_BTVE = (x_RD @ block.qkv.t()).view(*shape[:3], len(block.qkv))
        x_RD = attend(qkv_BTVE, tables_Ld[number], num_heads, along_time).view(-1, width)
        del qkv_BTVE  # the largest of all but the MLP's
        is_own = number > 0  # the caller's states stay as they are
        if wanted_R is not None and number == len(over_time) - 1:
            x_RD, h_RD = (row_passes.gather(rows_RD, wanted_R) for rows_RD in (x_RD, h_RD))
            shape, is_own = (num_windows, len(wanted_R) // num_windows, 1, width), True
            rows = Rows(num_windows, shape[1], width, dropout=0.0)
        x_RD = x_RD @ block.out.t()
        out_RD = h_RD if is_own else torch.empty_like(h_RD)
        x_RD = row_passes.add_and_normalize(
            rows, h_RD, x_RD, here_BSD, None, gate=GATE_A, out=out_RD
        )
        h_RD = out_RD
        x_RD = up_to_gelu(x_RD, block.up, block.up_bias)
        x_RD = torch.addmm(block.down_bias, x_RD, block.down.t())
        if here_BSD.shape[1] == BLOCK_SLOTS:  # nothing is behind this block
            row_passes.add(rows, h_RD, x_RD, here_BSD, None, out=h_RD)
            return h_RD.view(shape)
        x_RD = row_passes.add_and_normalize(rows, h_RD, x_RD, here_BSD, None, gate=GATE_M, out=h_RD)
    return x_RD.view(shape)


@_axis_blocks.register_fake
def _(h_BTVD: Tensor, *arguments: Any) -> Tensor:
    wanted_R: Tensor | None = arguments[-1]
    if wanted_R is None:
        return h_BTVD.new_empty(h_BTVD.shape)
    num_windows, width = len(h_BTVD), h_BTVD.shape[-1]
    return h_BTVD.new_empty((num_windows, len(wanted_R) // num_windows, 1, width))
