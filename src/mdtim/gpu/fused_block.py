"""A whole block along one axis as one operator with its gradients, for a GPU that trains.

:class:`mdtim.layers.AxisBlock` defines what it computes. Matrix products are cuBLAS's, but for
those of :mod:`mdtim.mlp`; all between them are passes of :mod:`mdtim.gpu.row_passes` and the
attention of :mod:`mdtim.gpu.triton_attention`, each over memory once. The backward pass keeps the
block's input and the outputs of four products (q, k and v; attention; both of the MLP) and makes
everything else again where it is read.

Shapes: B windows, T steps, V variates, R = B * T * V rows, D width, F = mlp_ratio * D, L attended
length, d head width. Tensors of rows share one dtype, which weights are cast to; sums are in
float32, and gradients of weights come back in the weights' own dtype.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mdtim.gpu import row_passes
from mdtim.gpu.row_passes import GATE_A, Rows
from mdtim.gpu.triton_attention import attend, attend_backward
from mdtim.mlp import back_to_gelu, up_and_gelu

MAX_WIDTH = 512
"""Widest row that the kernels hold in the registers of a program."""

_BACKWARD_ROWS = 2**18
"""The backward pass takes windows of at most so many rows at a time, for its memory."""


class BlockWeights(NamedTuple):
    """Weights of a block, in the dtype of its rows or in one of their own."""

    qkv: Tensor
    """(3 * D, D)"""
    out: Tensor
    """(D, D)"""
    up: Tensor
    """(F, D)"""
    up_bias: Tensor
    """(F,)"""
    down: Tensor
    """(D, F)"""
    down_bias: Tensor
    """(D,)"""


def fused_block(
    h_BTVD: Tensor,
    modulation_B6D: Tensor,
    weights: BlockWeights,
    table_Ld: Tensor | None,
    seed: Tensor | None,
    *,
    dropout: float,
    num_heads: int,
    over_time: bool,
    cast_weights: BlockWeights | None = None,
) -> Tensor:
    """Attend along an axis, then the MLP, each gated and added, (B, T, V, D) to the same.

    Parameters
    ----------
    h_BTVD : bfloat16, float16 or float32, on a GPU
    modulation_B6D : shift, scale and gate of the attention, then of the MLP; the numbers of a
        window lie side by side, its windows may lie apart
    weights : BlockWeights
    table_Ld : rotations (see :func:`mdtim.kernels.rope_table`); None for none
    seed : int64 scalar of the dropout, on the device; None needs `dropout` 0
    dropout : probability; 0 costs nothing
    num_heads : int
    over_time : attend over the steps of each variate, else over the variates of each step
    cast_weights : the weights in the dtype of `h_BTVD`, by whoever casts those of many blocks at
        once; gradients are those of `weights` all the same
    """
    arguments = (h_BTVD, modulation_B6D, *weights, table_Ld, seed, dropout, num_heads, over_time)
    out_BTVD: Tensor
    out_BTVD, *_ = _axis_block(*arguments, cast_weights or cast(weights, h_BTVD.dtype))
    return out_BTVD


_INPUTS = (
    "Tensor h, Tensor modulation, Tensor qkv_weight, Tensor out_weight, Tensor up_weight, "
    "Tensor up_bias, Tensor down_weight, Tensor down_bias, Tensor? table, Tensor? seed, "
    "float dropout, int num_heads, bool over_time, Tensor[] cast_weights"
)


@dataclass(frozen=True)
class _Block:
    """What all steps of one call share."""

    modulation_B6D: Tensor
    weights: BlockWeights
    table_Ld: Tensor | None
    seed: Tensor | None
    dropout: float
    num_heads: int
    over_time: bool

    @classmethod
    def read(cls, h_BTVD: Tensor, modulation_B6D: Tensor, arguments: tuple[Any, ...]) -> _Block:
        """From the operators' arguments."""
        *settings, weights = arguments[6:]
        return cls(modulation_B6D, BlockWeights(*weights), *settings)

    def rows(self, h_BTVD: Tensor, first_window: int = 0) -> Rows:
        num_windows, num_steps, num_variates, width = h_BTVD.shape
        return Rows(num_windows, num_steps * num_variates, width, self.dropout, first_window)

    def attend(self, qkv_RE: Tensor, h_BTVD: Tensor) -> Tensor:
        qkv_BTVE = qkv_RE.view(*h_BTVD.shape[:3], qkv_RE.shape[1])
        out_BTVD = attend(qkv_BTVE, self.table_Ld, self.num_heads, self.over_time)
        return out_BTVD.view(-1, h_BTVD.shape[-1])


@torch.library.custom_op(
    "mdtim::axis_block",
    mutates_args=(),
    schema=f"({_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _axis_block(
    h_BTVD: Tensor, modulation_B6D: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The output, and what the backward pass reads: qkv, y of attention, pre and y of the MLP."""
    block = _Block.read(h_BTVD, modulation_B6D, arguments)
    weights, seed = block.weights, block.seed
    h_BTVD = h_BTVD.contiguous()
    rows, h_RD = block.rows(h_BTVD), h_BTVD.view(-1, h_BTVD.shape[-1])
    modulation_B6D = block.modulation_B6D

    x_RD = row_passes.normalize(rows, h_RD, modulation_B6D)
    qkv_RE = x_RD @ weights.qkv.t()
    y_RD = block.attend(qkv_RE, h_BTVD) @ weights.out.t()
    sum_RD = torch.empty_like(h_RD)
    x_RD = row_passes.add_and_normalize(
        rows, h_RD, y_RD, modulation_B6D, seed, gate=GATE_A, out=sum_RD
    )
    act_RF, pre_RF = up_and_gelu(x_RD, weights.up, weights.up_bias)
    z_RD = torch.addmm(weights.down_bias, act_RF, weights.down.t())
    del act_RF  # as large as all that is kept of the attention
    row_passes.add(rows, sum_RD, z_RD, modulation_B6D, seed, out=sum_RD)
    return sum_RD.view(h_BTVD.shape), qkv_RE, y_RD, pre_RF, z_RD


@torch.library.custom_op(
    "mdtim::axis_block_backward",
    mutates_args=(),
    schema=(
        f"(Tensor grad, Tensor qkv, Tensor y, Tensor pre, Tensor z, {_INPUTS}) "
        "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
    ),
)
def _axis_block_backward(
    grad_BTVD: Tensor,
    qkv_RE: Tensor,
    y_RD: Tensor,
    pre_RF: Tensor,
    z_RD: Tensor,
    h_BTVD: Tensor,
    modulation_B6D: Tensor,
    *arguments: Any,
) -> tuple[Tensor, ...]:
    """Gradients of the block's input, its modulation and its weights."""
    block = _Block.read(h_BTVD, modulation_B6D, arguments)
    h_BTVD, grad_BTVD = h_BTVD.contiguous(), grad_BTVD.contiguous()
    dh_BTVD = torch.empty_like(h_BTVD)
    dmodulation_B6D = modulation_B6D.new_empty(modulation_B6D.shape)
    totals: list[Tensor] | None = None
    parts = list(_parts(h_BTVD))
    several = len(parts) > 1
    for windows, cells in parts:
        gradients = _backward_of_windows(
            block,
            windows.start,
            block.modulation_B6D[windows],
            h_BTVD[windows],
            grad_BTVD[windows],
            tuple(kept[cells] for kept in (qkv_RE, y_RD, pre_RF, z_RD)),
            dh_BTVD[windows],
            dmodulation_B6D[windows],
        )
        if totals is None:
            totals = cast(gradients, torch.float32) if several else list(gradients)
        else:
            for total, gradient in zip(totals, gradients, strict=True):
                total += gradient
    if totals is None:  # no windows
        totals = [torch.zeros_like(weight) for weight in block.weights]
    return dh_BTVD, dmodulation_B6D, *cast(totals, arguments[0].dtype)


def cast(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Contiguous tensors of a type, no gradients behind them; of another: cast by one kernel."""
    tensors = [x.detach() for x in tensors]
    done = [
        x.contiguous() if x.dtype == dtype else x.new_empty(x.shape, dtype=dtype) for x in tensors
    ]
    others = [i for i, x in enumerate(tensors) if x.dtype != dtype]
    if others:
        torch._foreach_copy_([done[i] for i in others], [tensors[i] for i in others])
    return done


def _parts(h_BTVD: Tensor) -> Iterator[tuple[slice, slice]]:
    """Windows to take at a time, and their rows."""
    num_windows, window_rows = len(h_BTVD), h_BTVD.shape[1] * h_BTVD.shape[2]
    num_parts = -(-num_windows * window_rows // _BACKWARD_ROWS)
    size = max(1, -(-num_windows // max(1, num_parts)))
    for begin in range(0, num_windows, size):
        end = min(begin + size, num_windows)
        yield slice(begin, end), slice(begin * window_rows, end * window_rows)


def _backward_of_windows(
    block: _Block,
    first_window: int,
    modulation_B6D: Tensor,
    h_BTVD: Tensor,
    grad_BTVD: Tensor,
    kept: tuple[Tensor, ...],
    dh_BTVD: Tensor,
    dmodulation_B6D: Tensor,
) -> BlockWeights:
    """Fill the gradients of some windows' input and modulation; return those of the weights."""
    weights, seed = block.weights, block.seed
    qkv_RE, y_RD, pre_RF, z_RD = kept
    rows, shape = block.rows(h_BTVD, first_window), h_BTVD.shape
    h_RD, grad_RD, dh_RD = (x.view(-1, shape[-1]) for x in (h_BTVD, grad_BTVD, dh_BTVD))
    sums_BCSD = rows.new_sums(h_RD)

    dz_RD = row_passes.add_backward(rows, grad_RD, z_RD, modulation_B6D, seed, sums_BCSD)
    dpre_RF, down, up_bias = back_to_gelu(dz_RD, pre_RF, weights.down)
    dx_RD = dpre_RF @ weights.up
    dsum_RD, dy_RD, x_RD = row_passes.add_and_normalize_backward(
        rows, dx_RD, grad_RD, h_RD, y_RD, modulation_B6D, seed, sums_BCSD
    )
    up = dpre_RF.t() @ x_RD
    del dpre_RF

    attended_RD = torch.empty_like(h_RD)
    dqkv_BTVE = attend_backward(
        (dy_RD @ weights.out).view(shape),
        qkv_RE.view(*shape[:3], qkv_RE.shape[1]),
        block.table_Ld,
        attended_RD,
        block.num_heads,
        block.over_time,
    )
    out = dy_RD.t() @ attended_RD
    dqkv_RE = dqkv_BTVE.view(qkv_RE.shape)
    dx_RD = dqkv_RE @ weights.qkv
    x_RD = torch.empty_like(h_RD)
    row_passes.normalize_backward(
        rows, dx_RD, dsum_RD, h_RD, modulation_B6D, sums_BCSD, dh_RD=dh_RD, x_RD=x_RD
    )
    qkv = dqkv_RE.t() @ x_RD

    sums_BSD = sums_BCSD.sum(1)
    dmodulation_B6D.copy_(sums_BSD[:, :6])
    return BlockWeights(qkv, out, up, up_bias, down, sums_BSD[:, row_passes.BIAS_DOWN].sum(0))


@_axis_block.register_fake
def _(h_BTVD: Tensor, modulation_B6D: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    weights = BlockWeights(*arguments[:6])
    num_rows = h_BTVD.numel() // h_BTVD.shape[-1]
    widths = (len(weights.qkv), len(weights.out), len(weights.up), len(weights.down))
    return h_BTVD.new_empty(h_BTVD.shape), *(h_BTVD.new_empty((num_rows, w)) for w in widths)


@_axis_block_backward.register_fake
def _(
    grad_BTVD: Tensor, qkv_RE: Tensor, y_RD: Tensor, pre_RF: Tensor, z_RD: Tensor, *inputs: Any
) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in inputs[:8])


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.dropout, ctx.num_heads, ctx.over_time, cast_weights = inputs
    ctx.save_for_backward(*output[1:], *tensors, *cast_weights)
    ctx.set_materialize_grads(False)  # nobody differentiates what is only kept


def _differentiate(ctx: Any, grad_BTVD: Tensor | None, *_: Tensor | None) -> tuple[Any, ...]:
    count = len(BlockWeights._fields)
    if grad_BTVD is None:
        return (*(None,) * 13, [None] * count)
    tensors, cast_weights = ctx.saved_tensors[:-count], list(ctx.saved_tensors[-count:])
    gradients = _axis_block_backward(
        grad_BTVD, *tensors, ctx.dropout, ctx.num_heads, ctx.over_time, cast_weights
    )
    return *gradients, None, None, None, None, None, [None] * count


_axis_block.register_autograd(_differentiate, setup_context=_save_for_backward)
