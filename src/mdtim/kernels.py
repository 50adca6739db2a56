"""Attention along one axis of a (B, T, V, E) tensor, for many short sequences.

The sequences of a factorized transformer are tiny (5 to 128 positions) and lie strided in
memory. On a GPU one Triton program holds a whole sequence, or several packed into one tile, and
reads q, k and v where they lie: no transpose, no copy, and nothing kept for the backward pass
but the input. Elsewhere, and for longer sequences, PyTorch's own operators do the work.

Shapes: B windows, T steps, V variates, H heads, d head width, D = H * d, E = 3 * D (q | k | v),
L attended length (T or V), N sequences (B * V or B * T), R rows of a tile.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

try:
    import triton
    import triton.language as tl

    _HAS_TRITON = True
except ImportError:  # wheels without CUDA come without Triton
    _HAS_TRITON = False

Axis = Literal["time", "variate"]
Implementation = Literal["auto", "triton", "sdpa", "reference"]

MAX_LENGTH = 128
"""Longest sequence the Triton operator takes: a program holds all its scores in registers."""

ROPE_BASE = 10_000.0
# On a CPU the plain product needs 0.7 of the time of scaled_dot_product_attention at L=9 and
# L=21, 0.9 at L=32 and 1.0 at L=48 (forward and backward, float32, d=16, H=4).
_CPU_PLAIN_LENGTH = 32


def axis_attention(
    qkv_BTVE: Tensor,
    num_heads: int,
    axis: Axis,
    *,
    rope: bool,
    implementation: Implementation = "auto",
) -> Tensor:
    """Attend along time, or along the variates, with full softmax attention.

    Parameters
    ----------
    qkv_BTVE
        (B, T, V, E) queries, keys and values, E = 3 * H * d laid out as q | k | v, each (H, d).
    num_heads
        H.
    axis
        `"time"`: every variate of a window attends over its T steps. `"variate"`: every step
        of a window attends over its V variates.
    rope
        Rotate q and k by their position along the axis (rotate-half, base 10000).
    implementation
        `"auto"` takes the Triton operator where it can run, and otherwise the faster of
        PyTorch's ways; the others name one.

    Returns
    -------
    Tensor
        (B, T, V, D), the dtype of the input.
    """
    length = _attended_length(qkv_BTVE, num_heads, axis)
    if implementation == "auto":
        if qkv_BTVE.is_cuda and _fits_triton(qkv_BTVE, num_heads, length):
            implementation = "triton"
        elif qkv_BTVE.device.type == "cpu" and length <= _CPU_PLAIN_LENGTH:
            implementation = "reference"
        else:
            implementation = "sdpa"
    if implementation == "sdpa":
        return sdpa_attention(qkv_BTVE, num_heads, axis, rope=rope)
    if implementation == "reference":
        return reference_attention(qkv_BTVE, num_heads, axis, rope=rope)
    if implementation != "triton":
        raise ValueError(f"unknown implementation {implementation!r}")
    if not _fits_triton(qkv_BTVE, num_heads, length):
        raise ValueError(
            f"the Triton operator takes CUDA tensors with L <= {MAX_LENGTH} and d = 16, 32 or 64; "
            f"got {tuple(qkv_BTVE.shape)} {qkv_BTVE.dtype} on {qkv_BTVE.device}"
        )
    table_Ld = _rope_table(length, qkv_BTVE, num_heads) if rope else None
    out_BTVD: Tensor = _triton_attention(qkv_BTVE, table_Ld, num_heads, axis == "time")
    return out_BTVD


def reference_attention(qkv_BTVE: Tensor, num_heads: int, axis: Axis, *, rope: bool) -> Tensor:
    """Compute the attention by its definition, softmax(q kᵀ / √d) v.

    (B, T, V, E) to (B, T, V, D); the parameters are those of :func:`axis_attention`.
    """
    q_NHLd, k_NHLd, v_NHLd = _split_heads(qkv_BTVE, num_heads, axis, rope)
    scores_NHLL = (q_NHLd / math.sqrt(q_NHLd.shape[-1])) @ k_NHLd.mT
    return _merge_heads(scores_NHLL.softmax(-1) @ v_NHLd, qkv_BTVE, axis)


def sdpa_attention(qkv_BTVE: Tensor, num_heads: int, axis: Axis, *, rope: bool) -> Tensor:
    """Compute the attention with PyTorch's fused operator.

    (B, T, V, E) to (B, T, V, D); the parameters are those of :func:`axis_attention`.
    """
    q_NHLd, k_NHLd, v_NHLd = _split_heads(qkv_BTVE, num_heads, axis, rope)
    out_NHLd = F.scaled_dot_product_attention(q_NHLd, k_NHLd, v_NHLd)
    return _merge_heads(out_NHLd, qkv_BTVE, axis)


def _attended_length(qkv_BTVE: Tensor, num_heads: int, axis: Axis) -> int:
    """L, after the checks that every implementation relies on."""
    if axis not in ("time", "variate"):
        raise ValueError(f"axis must be 'time' or 'variate', not {axis!r}")
    if qkv_BTVE.ndim != 4 or qkv_BTVE.shape[-1] % (6 * num_heads) != 0:
        raise ValueError(
            f"need (B, T, V, 3 * H * d) with H = {num_heads} and d even, "
            f"got {tuple(qkv_BTVE.shape)}"
        )
    return qkv_BTVE.shape[1 if axis == "time" else 2]


def _fits_triton(qkv_BTVE: Tensor, num_heads: int, length: int) -> bool:
    """Whether the Triton operator takes this input."""
    width = qkv_BTVE.shape[-1] // (3 * num_heads)
    return (
        _HAS_TRITON
        and ((qkv_BTVE.is_cuda and torch.version.hip is None) or _INTERPRETED)
        and qkv_BTVE.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and width in (16, 32, 64)
        and length <= MAX_LENGTH
        # The tiles of float32 heads of width 64 fit a program up to 64 positions only.
        and length * width * qkv_BTVE.itemsize <= 16 * 1024
    )


def _split_heads(
    qkv_BTVE: Tensor, num_heads: int, axis: Axis, rope: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v as (N, H, L, d): views over the variates, one shared copy over time."""
    length = _attended_length(qkv_BTVE, num_heads, axis)
    x = qkv_BTVE.transpose(1, 2) if axis == "time" else qkv_BTVE
    width = x.shape[-1] // (3 * num_heads)
    x_NL3Hd = x.reshape(x.shape[0] * x.shape[1], length, 3, num_heads, width)
    q_NHLd, k_NHLd, v_NHLd = x_NL3Hd.permute(2, 0, 3, 1, 4).unbind(0)
    if rope:
        table_Ld = _rope_table(length, qkv_BTVE, num_heads)
        q_NHLd, k_NHLd = _rotate(q_NHLd, table_Ld), _rotate(k_NHLd, table_Ld)
    return q_NHLd, k_NHLd, v_NHLd


def _merge_heads(out_NHLd: Tensor, qkv_BTVE: Tensor, axis: Axis) -> Tensor:
    """Bring (N, H, L, d) back to (B, T, V, D)."""
    num_windows, num_steps, num_variates, channels = qkv_BTVE.shape
    out_NLHd = out_NHLd.transpose(1, 2)
    if axis == "variate":
        return out_NLHd.reshape(num_windows, num_steps, num_variates, channels // 3)
    return out_NLHd.reshape(num_windows, num_variates, num_steps, channels // 3).transpose(1, 2)


def _rotate(x_NHLd: Tensor, table_Ld: Tensor) -> Tensor:
    """Turn the pairs (x_i, x_{i+d/2}) by their angles, in the precision of the table."""
    cos, sin = table_Ld.chunk(2, -1)
    a, b = x_NHLd.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x_NHLd.dtype)


def _rope_table(length: int, qkv_BTVE: Tensor, num_heads: int) -> Tensor:
    """(L, d) cosines | sines on the device of the input."""
    width = qkv_BTVE.shape[-1] // (3 * num_heads)
    dtype = torch.float64 if qkv_BTVE.dtype == torch.float64 else torch.float32
    # A compiler makes the table part of its graph, once for all layers; a cache would tie the
    # graph to memory that it does not own.
    make = _make_rope_table if torch.compiler.is_compiling() else _cached_rope_table
    return make(length, width, qkv_BTVE.device, dtype)


def _make_rope_table(length: int, width: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    exponent = torch.arange(0, width, 2, device=device, dtype=dtype) / width
    position_L1 = torch.arange(length, device=device, dtype=dtype)[:, None]
    angle = position_L1 * ROPE_BASE**-exponent
    return torch.cat((angle.cos(), angle.sin()), -1)


@functools.lru_cache(maxsize=64)
def _cached_rope_table(length: int, width: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    # A table first made under inference mode must serve training too.
    with torch.inference_mode(False), torch.no_grad():
        return _make_rope_table(length, width, device, dtype)


# The operators: opaque to torch.compile, which sees their shapes and their derivative only.


@torch.library.custom_op(
    "mdtim::axis_attention",
    mutates_args=(),
    schema="(Tensor qkv, Tensor? table, int num_heads, bool over_time) -> Tensor",
)
def _triton_attention(
    qkv_BTVE: Tensor, table_Ld: Tensor | None, num_heads: int, over_time: bool
) -> Tensor:
    qkv_BTVE = qkv_BTVE.contiguous()
    out_BTVD = qkv_BTVE.new_empty((*qkv_BTVE.shape[:3], qkv_BTVE.shape[3] // 3))
    _launch(_forward_kernel, qkv_BTVE, table_Ld, (out_BTVD,), num_heads, over_time)
    return out_BTVD


@torch.library.custom_op(
    "mdtim::axis_attention_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor qkv, Tensor? table, int num_heads, bool over_time) -> Tensor",
)
def _triton_attention_backward(
    grad_BTVD: Tensor, qkv_BTVE: Tensor, table_Ld: Tensor | None, num_heads: int, over_time: bool
) -> Tensor:
    qkv_BTVE, grad_BTVD = qkv_BTVE.contiguous(), grad_BTVD.contiguous()
    dqkv_BTVE = torch.empty_like(qkv_BTVE)
    others = (grad_BTVD, dqkv_BTVE)
    _launch(_backward_kernel, qkv_BTVE, table_Ld, others, num_heads, over_time)
    return dqkv_BTVE


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


def _launch(
    kernel: Any,
    qkv_BTVE: Tensor,
    table_Ld: Tensor | None,
    others: tuple[Tensor, ...],
    num_heads: int,
    over_time: bool,
) -> None:
    """Run a kernel with one program per tile of sequences and group of heads."""
    num_windows, num_steps, num_variates, channels = qkv_BTVE.shape
    if qkv_BTVE.numel() == 0:
        return
    length = num_steps if over_time else num_variates
    num_sequences = num_windows * num_steps * num_variates // length
    width = channels // (3 * num_heads)
    rows = max(16, triton.next_power_of_2(length))  # 16: the least a matrix product takes
    # The smallest tile wastes least on scores between sequences; what is left of it is packed.
    sequences = rows // length
    # 64 channels per program are a cache line of 128 bytes in each row of q, k and v.
    heads = math.gcd(num_heads, 64 // width)
    grid = (triton.cdiv(num_sequences, sequences) * (num_heads // heads),)
    # The rest was chosen by the registers and instructions of the code compiled for compute
    # capability 9.0. Half precision feeds the tensor cores 16 rows per warp and fetches the next
    # heads meanwhile. float32 runs on the ordinary units, in more threads for its registers,
    # which leaves no room to fetch ahead.
    half = qkv_BTVE.itemsize == 2
    options = {"num_warps": rows // 16 * (1 if half else 2), "num_stages": 3 if half else 1}
    if half and width == 16 and rows == (64 if kernel is _backward_kernel else 128):
        # A few registers fewer, still without spills, and one more program fits a multiprocessor.
        options["maxnreg"] = 128
    # Triton launches on the current device, which need not be the tensor's.
    with torch.cuda.device(qkv_BTVE.device) if qkv_BTVE.is_cuda else nullcontext():
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


def _jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile with Triton, once for all lengths that share a tile size."""
    if not _HAS_TRITON:
        return function
    compiled: Callable[..., Any] = triton.jit(
        function,
        do_not_specialize=["num_sequences", "length"],
        do_not_specialize_on_alignment=["stride", "sequences"],
    )
    return compiled


@_jit
def _load(x: tl.tensor, row_R: tl.tensor, valid_R: tl.tensor, WIDTH: tl.constexpr) -> tl.tensor:
    address = x + row_R[:, None] + tl.arange(0, WIDTH)[None, :]
    return tl.load(address, mask=valid_R[:, None], other=0.0)


@_jit
def _store(x: tl.tensor, row_R: tl.tensor, valid_R: tl.tensor, value_Rd: tl.tensor) -> None:
    address = x + row_R[:, None] + tl.arange(0, value_Rd.shape[1])[None, :]
    tl.store(address, value_Rd.to(x.dtype.element_ty), mask=valid_R[:, None])


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
        y = _load(x, row_R, valid_R, WIDTH)
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
        v = _load(x + 2 * D, row_R * (3 * D), valid_R, WIDTH)
        p_RR, scale_R = _exponentiate(q, k, seen, SCALE)
        o = tl.dot(p_RR.to(v.dtype), v, input_precision="ieee") * scale_R[:, None]
        _store(out + column, row_R * D, valid_R, o)


@_jit
def _backward_kernel(
    qkv: tl.tensor, table: tl.tensor, grad: tl.tensor, dqkv: tl.tensor,
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
        v = _load(x + 2 * D, row_R * (3 * D), valid_R, WIDTH)
        do = _load(grad + column, row_R * D, valid_R, WIDTH)
        p_RR, scale_R = _exponentiate(q, k, seen, SCALE)
        p_RR = p_RR * scale_R[:, None]
        # dv before dp: the transposed probabilities then leave the registers first.
        dv = tl.dot(tl.trans(p_RR.to(v.dtype)), do, input_precision="ieee")
        dp_RR = tl.dot(do, tl.trans(v), input_precision="ieee")
        ds_RR = (p_RR * (dp_RR - tl.sum(p_RR * dp_RR, 1)[:, None])).to(v.dtype)
        dk = tl.dot(tl.trans(ds_RR), q, input_precision="ieee") * SCALE
        dq = tl.dot(ds_RR, k, input_precision="ieee") * SCALE
        dx = dqkv + column
        _store(dx, row_R * (3 * D), valid_R, _rotate_back(dq, cos, sin, WIDTH, ROPE))
        _store(dx + D, row_R * (3 * D), valid_R, _rotate_back(dk, cos, sin, WIDTH, ROPE))
        _store(dx + 2 * D, row_R * (3 * D), valid_R, dv)


# TRITON_INTERPRET=1 at import runs the kernels on the CPU, to check their arithmetic.
_INTERPRETED = _HAS_TRITON and not isinstance(_forward_kernel, triton.runtime.JITFunction)
