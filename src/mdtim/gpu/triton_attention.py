"""The operator behind :func:`mdtim.kernels.axis_attention` on a GPU, and its derivative.

Where :mod:`mdtim.gpu.cuda_attention` has faster kernels it takes those, and otherwise those below,
in Triton. One program holds a whole sequence, or several packed into one tile, and reads q, k and v
where they lie: no transpose, no copy, and nothing kept for the backward pass but the input and the
table of rotations. The callers check the input: nothing here does. Where Triton is missing the
module still loads, and its operators cannot run.

Shapes: B windows, T steps, V variates, H heads, d head width, D = H * d, E = 3 * D (q | k | v),
L attended length (T or V), R rows of a tile.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from mdtim.gpu import cuda_attention
from mdtim.gpu.triton_compiler import HAS_TRITON, on_device_of
from mdtim.gpu.triton_compiler import jit as _jit

if HAS_TRITON:
    import triton
    import triton.language as tl

# The operators: opaque to torch.compile, which sees their shapes and their derivative only.


@torch.library.custom_op(
    "mdtim::axis_attention",
    mutates_args=(),
    schema="(Tensor qkv, Tensor? table, int num_heads, bool over_time) -> Tensor",
)
def _triton_attention(
    qkv_BTVE: Tensor, table_Ld: Tensor | None, num_heads: int, over_time: bool
) -> Tensor:
    return attend(qkv_BTVE.contiguous(), table_Ld, num_heads, over_time)


@torch.library.custom_op(
    "mdtim::axis_attention_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor qkv, Tensor? table, int num_heads, bool over_time) -> Tensor",
)
def _triton_attention_backward(
    grad_BTVD: Tensor, qkv_BTVE: Tensor, table_Ld: Tensor | None, num_heads: int, over_time: bool
) -> Tensor:
    qkv_BTVE, grad_BTVD = qkv_BTVE.contiguous(), grad_BTVD.contiguous()
    return attend_backward(grad_BTVD, qkv_BTVE, table_Ld, None, num_heads, over_time)


@_triton_attention.register_fake
def _(qkv_BTVE: Tensor, *_: object) -> Tensor:
    return qkv_BTVE.new_empty((*qkv_BTVE.shape[:3], qkv_BTVE.shape[3] // 3))


@_triton_attention_backward.register_fake
def _(grad_BTVD: Tensor, qkv_BTVE: Tensor, *_: object) -> Tensor:
    return qkv_BTVE.new_empty(qkv_BTVE.shape)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    qkv_BTVE, table_Ld, ctx.num_heads, ctx.over_time = inputs
    ctx.save_for_backward(qkv_BTVE, table_Ld)


def _differentiate(ctx: Any, grad_BTVD: Tensor) -> tuple[Tensor, None, None, None]:
    qkv_BTVE, table_Ld = ctx.saved_tensors
    dqkv_BTVE: Tensor = _triton_attention_backward(
        grad_BTVD, qkv_BTVE, table_Ld, ctx.num_heads, ctx.over_time
    )
    return dqkv_BTVE, None, None, None


_triton_attention.register_autograd(_differentiate, setup_context=_save_for_backward)


def attend(qkv_BTVE: Tensor, table_Ld: Tensor | None, num_heads: int, over_time: bool) -> Tensor:
    """Run a forward kernel on a contiguous input, (B, T, V, E) to (B, T, V, D)."""
    out_BTVD = qkv_BTVE.new_empty((*qkv_BTVE.shape[:3], qkv_BTVE.shape[3] // 3))
    _launch(_forward_kernel, qkv_BTVE, table_Ld, (out_BTVD,), num_heads, over_time)
    return out_BTVD


def attend_backward(
    grad_BTVD: Tensor,
    qkv_BTVE: Tensor,
    table_Ld: Tensor | None,
    out_BTVD: Tensor | None,
    num_heads: int,
    over_time: bool,
) -> Tensor:
    """Run a backward kernel on contiguous inputs; it fills `out_BTVD` once more if given."""
    dqkv_BTVE = torch.empty_like(qkv_BTVE)
    others = (grad_BTVD, dqkv_BTVE, out_BTVD)
    _launch(_backward_kernel, qkv_BTVE, table_Ld, others, num_heads, over_time)
    return dqkv_BTVE


def _launch(
    kernel: Any,
    qkv_BTVE: Tensor,
    table_Ld: Tensor | None,
    others: tuple[Tensor | None, ...],
    num_heads: int,
    over_time: bool,
) -> None:
    """Run a kernel with one program per tile of sequences and group of heads."""
    if qkv_BTVE.numel() == 0:
        return
    if cuda_attention.fits(qkv_BTVE, num_heads, over_time, *others):
        name: Literal["attend", "attend_backward"] = (
            "attend" if kernel is _forward_kernel else "attend_backward"
        )
        cuda_attention.launch(name, qkv_BTVE, table_Ld, others, num_heads, over_time)
        return
    num_windows, num_steps, num_variates, channels = qkv_BTVE.shape
    length = num_steps if over_time else num_variates
    num_sequences = num_windows * num_steps * num_variates // length
    width = channels // (3 * num_heads)
    rows = max(16, triton.next_power_of_2(length))  # 16: the least a matrix product takes
    # The smallest tile wastes least on scores between sequences; what is left of it is packed.
    sequences = rows // length
    # 64 channels per program are a cache line of 128 bytes in each row of q, k and v.
    heads = math.gcd(num_heads, 64 // width)
    grid = (triton.cdiv(num_sequences, sequences) * (num_heads // heads),)
    # The rest was measured on an H200, or chosen by the registers and instructions of the code
    # compiled for it. Half precision feeds the tensor cores 16 rows per warp; its backward pass
    # fetches the next heads meanwhile. float32 runs on the ordinary units, in more threads for its
    # registers, which leaves no room to fetch ahead.
    half = qkv_BTVE.itemsize == 2
    ahead = half and kernel is _backward_kernel
    options = {"num_warps": rows // 16 * (1 if half else 2), "num_stages": 3 if ahead else 1}
    if half and width == 16 and rows in ((32, 64) if kernel is _backward_kernel else (128,)):
        # A few registers fewer, still without spills, and one more program fits a multiprocessor.
        options["maxnreg"] = 128
    with on_device_of(qkv_BTVE):
        kernel[grid](
            qkv_BTVE,
            table_Ld,
            *others,
            num_sequences,
            length,
            num_variates if over_time else 1,
            sequences,
            NUM_HEADS=num_heads,
            HEADS=heads,
            WIDTH=width,
            ROWS=rows,
            PACKED=sequences > 1,
            ROPE=table_Ld is not None,
            SCALE=width**-0.5,
            **options,
        )


@_jit
def _load(x: tl.tensor, row_R: tl.tensor, valid_R: tl.tensor, WIDTH: tl.constexpr) -> tl.tensor:
    address = x + row_R[:, None] + tl.arange(0, WIDTH)[None, :]
    return tl.load(address, mask=valid_R[:, None], other=0.0)


@_jit
def _load_head(
    x: tl.tensor, row_R: tl.tensor, valid_R: tl.tensor, WIDTH: tl.constexpr
) -> tl.tensor:
    """A head's channels, filled up to the 16 that a matrix product takes at least."""
    if WIDTH < 16:
        column = tl.arange(0, 16)
        mask = valid_R[:, None] & (column < WIDTH)[None, :]
        y = tl.load(x + row_R[:, None] + column[None, :], mask=mask, other=0.0)
    else:
        y = _load(x, row_R, valid_R, WIDTH)
    return y


@_jit
def _store(
    x: tl.tensor, row_R: tl.tensor, valid_R: tl.tensor, value_Rd: tl.tensor, WIDTH: tl.constexpr
) -> None:
    column = tl.arange(0, value_Rd.shape[1])
    mask = valid_R[:, None]
    if WIDTH < 16:
        mask = mask & (column < WIDTH)[None, :]
    address = x + row_R[:, None] + column[None, :]
    tl.store(address, value_Rd.to(x.dtype.element_ty), mask=mask)


@_jit
def _join(a: tl.tensor, b: tl.tensor, WIDTH: tl.constexpr) -> tl.tensor:
    return tl.reshape(tl.permute(tl.join(a, b), (0, 2, 1)), (a.shape[0], WIDTH))


@_jit
def _load_rotated(
    x: tl.tensor, row_R: tl.tensor, valid_R: tl.tensor, cos: tl.tensor, sin: tl.tensor,
    WIDTH: tl.constexpr, ROPE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    if ROPE:
        dtype: tl.constexpr = x.dtype.element_ty
        a = _load(x, row_R, valid_R, WIDTH // 2).to(tl.float32)
        b = _load(x + WIDTH // 2, row_R, valid_R, WIDTH // 2).to(tl.float32)
        y = _join((a * cos - b * sin).to(dtype), (b * cos + a * sin).to(dtype), WIDTH)
    else:
        y = _load_head(x, row_R, valid_R, WIDTH)
    return y


@_jit
def _rotate_back(
    x: tl.tensor, cos: tl.tensor, sin: tl.tensor, WIDTH: tl.constexpr, ROPE: tl.constexpr
) -> tl.tensor:
    if ROPE:
        # After a matrix product one thread holds both halves of its rows: nothing moves.
        a, b = tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, WIDTH // 2)), (0, 2, 1)))
        x = _join(a * cos + b * sin, b * cos - a * sin, WIDTH)
    return x


@_jit
def _tile(
    table: tl.tensor, first: tl.tensor, num_sequences: tl.tensor, length: tl.tensor,
    stride: tl.tensor, sequences: tl.tensor,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, PACKED: tl.constexpr, ROPE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Rows in memory, their validity, which keys a query sees, cosines and sines.

    Positions of a sequence are `stride` rows apart: V over time, 1 over the variates.
    """
    row_R = tl.arange(0, ROWS)
    if PACKED:
        member_R = row_R // length
        position_R = row_R % length
        seen = member_R[:, None] == member_R[None, :]
    else:
        member_R = (row_R >= length).to(tl.int32)
        position_R = tl.minimum(row_R, length - 1)
        seen = (row_R < length)[None, :]
    sequence_R = first + member_R
    valid_R = (member_R < sequences) & (sequence_R < num_sequences)
    # 64 bits: a large batch holds more than 2^31 elements.
    start_R = (sequence_R // stride).to(tl.int64) * (length * stride) + sequence_R % stride
    if ROPE:
        address = table + position_R[:, None] * WIDTH + tl.arange(0, WIDTH // 2)[None, :]
        cos = tl.load(address)
        sin = tl.load(address + WIDTH // 2)
    else:
        cos = 1.0
        sin = 0.0
    return start_R + position_R * stride, valid_R, seen, cos, sin


@_jit
def _exponentiate(
    q: tl.tensor, k: tl.tensor, seen: tl.tensor, SCALE: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """(R, R) unnormalised probabilities and (R,) the reciprocals of their sums."""
    scale: tl.constexpr = SCALE * 1.4426950408889634  # log2(e): exp2 is the hardware's own
    score_RR = tl.dot(q, tl.trans(k), input_precision="ieee")
    # Padded rows are zero and padded queries see some key: no row of scores is without a maximum.
    score_RR = tl.where(seen, score_RR, float("-inf"))
    p_RR = tl.exp2(score_RR * scale - (tl.max(score_RR, 1) * scale)[:, None])
    return p_RR, 1.0 / tl.sum(p_RR, 1)


@_jit
def _forward_kernel(
    qkv: tl.tensor, table: tl.tensor, out: tl.tensor,
    num_sequences: tl.tensor, length: tl.tensor, stride: tl.tensor, sequences: tl.tensor,
    NUM_HEADS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    PACKED: tl.constexpr, ROPE: tl.constexpr, SCALE: tl.constexpr,
) -> None:  # fmt: skip
    D: tl.constexpr = NUM_HEADS * WIDTH
    # Neighbouring programs take the heads of the same rows.
    first = tl.program_id(0) // (NUM_HEADS // HEADS) * sequences
    head = tl.program_id(0) % (NUM_HEADS // HEADS) * HEADS
    row_R, valid_R, seen, cos, sin = _tile(
        table, first, num_sequences, length, stride, sequences, WIDTH, ROWS, PACKED, ROPE
    )
    for i in range(HEADS):
        column = (head + i) * WIDTH
        x = qkv + column
        q = _load_rotated(x, row_R * (3 * D), valid_R, cos, sin, WIDTH, ROPE)
        k = _load_rotated(x + D, row_R * (3 * D), valid_R, cos, sin, WIDTH, ROPE)
        v = _load_head(x + 2 * D, row_R * (3 * D), valid_R, WIDTH)
        p_RR, scale_R = _exponentiate(q, k, seen, SCALE)
        o = tl.dot(p_RR.to(v.dtype), v, input_precision="ieee") * scale_R[:, None]
        _store(out + column, row_R * D, valid_R, o, WIDTH)


@_jit
def _backward_kernel(
    qkv: tl.tensor, table: tl.tensor, grad: tl.tensor, dqkv: tl.tensor, out: tl.tensor,
    num_sequences: tl.tensor, length: tl.tensor, stride: tl.tensor, sequences: tl.tensor,
    NUM_HEADS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    PACKED: tl.constexpr, ROPE: tl.constexpr, SCALE: tl.constexpr,
) -> None:  # fmt: skip
    D: tl.constexpr = NUM_HEADS * WIDTH
    first = tl.program_id(0) // (NUM_HEADS // HEADS) * sequences
    head = tl.program_id(0) % (NUM_HEADS // HEADS) * HEADS
    row_R, valid_R, seen, cos, sin = _tile(
        table, first, num_sequences, length, stride, sequences, WIDTH, ROWS, PACKED, ROPE
    )
    for i in range(HEADS):
        column = (head + i) * WIDTH
        x = qkv + column
        q = _load_rotated(x, row_R * (3 * D), valid_R, cos, sin, WIDTH, ROPE)
        k = _load_rotated(x + D, row_R * (3 * D), valid_R, cos, sin, WIDTH, ROPE)
        v = _load_head(x + 2 * D, row_R * (3 * D), valid_R, WIDTH)
        do = _load_head(grad + column, row_R * D, valid_R, WIDTH)
        p_RR, scale_R = _exponentiate(q, k, seen, SCALE)
        if out is not None:
            o = tl.dot(p_RR.to(v.dtype), v, input_precision="ieee") * scale_R[:, None]
            _store(out + column, row_R * D, valid_R, o, WIDTH)
        p_RR = p_RR * scale_R[:, None]
        # dv before dp: the transposed probabilities then leave the registers first.
        dv = tl.dot(tl.trans(p_RR.to(v.dtype)), do, input_precision="ieee")
        dp_RR = tl.dot(do, tl.trans(v), input_precision="ieee")
        ds_RR = (p_RR * (dp_RR - tl.sum(p_RR * dp_RR, 1)[:, None])).to(v.dtype)
        dk = tl.dot(tl.trans(ds_RR), q, input_precision="ieee") * SCALE
        dq = tl.dot(ds_RR, k, input_precision="ieee") * SCALE
        dx = dqkv + column
        dq = _rotate_back(dq, cos, sin, WIDTH, ROPE)
        _store(dx, row_R * (3 * D), valid_R, dq, WIDTH)
        dk = _rotate_back(dk, cos, sin, WIDTH, ROPE)
        _store(dx + D, row_R * (3 * D), valid_R, dk, WIDTH)
        _store(dx + 2 * D, row_R * (3 * D), valid_R, dv, WIDTH)
