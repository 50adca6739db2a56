"""Attention along one axis of a (B, T, V, E) tensor, for many short sequences.

The sequences of a factorized transformer are tiny (5 to 128 positions) and lie strided in
memory. On a GPU the operator of :mod:`mdtim.gpu.triton_attention` reads them where they lie, by
kernels in Triton or, on a Hopper GPU, in CUDA C++. Elsewhere, and for longer sequences, PyTorch's
own operators do the work.

Shapes: B windows, T steps, V variates, H heads, d head width, D = H * d, E = 3 * D (q | k | v),
L attended length (T or V), N sequences (B * V or B * T).
"""

from __future__ import annotations

import functools
import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from mdtim.gpu.triton_attention import _triton_attention
from mdtim.gpu.triton_compiler import runs_triton

Axis = Literal["time", "variate"]
Implementation = Literal["auto", "triton", "sdpa", "reference"]

MAX_LENGTH = 128
"""Longest sequence the Triton operator takes: a program holds all its scores in registers."""

ROPE_BASE = 10_000.0
# On a CPU the plain product needs 0.7 of the time of scaled_dot_product_attention at L=9 and
# L=21, 0.9 at L=32 and 1.0 at L=48 (forward and backward, float32, d=16, H=4).
_CPU_PLAIN_LENGTH = 32
_MAX_SEQUENCES = 2**16 - 1
"""What PyTorch's fused kernels take at once: sequences are one axis of a CUDA launch."""


def axis_attention(
    qkv_BTVE: Tensor,
    num_heads: int,
    axis: Axis,
    *,
    rope: bool,
    paired: bool = False,
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
    paired
        The channels of q and k come as :func:`pair_channels` puts them; not for Triton.
    implementation
        `"auto"` takes the Triton operator where it can run, and otherwise the faster of
        PyTorch's ways; the others name one.

    Returns
    -------
    Tensor
        (B, T, V, D), the dtype of the input.
    """
    length = _attended_length(qkv_BTVE, num_heads, axis)
    width = qkv_BTVE.shape[-1] // (3 * num_heads)
    if implementation == "auto":
        if qkv_BTVE.is_cuda and fits_triton(qkv_BTVE, qkv_BTVE.dtype, width, length, rope):
            implementation = "triton"
        elif qkv_BTVE.device.type == "cpu" and length <= _CPU_PLAIN_LENGTH:
            implementation = "reference"
        else:
            implementation = "sdpa"
    if implementation == "sdpa":
        return sdpa_attention(qkv_BTVE, num_heads, axis, rope=rope, paired=paired)
    if implementation == "reference":
        return reference_attention(qkv_BTVE, num_heads, axis, rope=rope, paired=paired)
    if implementation != "triton":
        raise ValueError(f"unknown implementation {implementation!r}")
    if not fits_triton(qkv_BTVE, qkv_BTVE.dtype, width, length, rope):
        raise ValueError(
            f"the Triton operator takes CUDA tensors with L <= {MAX_LENGTH} and d = 16, 32 or 64, "
            f"without rope 8 too; got {tuple(qkv_BTVE.shape)} {qkv_BTVE.dtype} on {qkv_BTVE.device}"
        )
    assert not paired, "the Triton operator takes the halves of a head apart"
    table_Ld = rope_table(length, width, qkv_BTVE) if rope else None
    out_BTVD: Tensor = _triton_attention(qkv_BTVE, table_Ld, num_heads, axis == "time")
    return out_BTVD


def reference_attention(
    qkv_BTVE: Tensor, num_heads: int, axis: Axis, *, rope: bool, paired: bool = False
) -> Tensor:
    """Compute the attention by its definition, softmax(q kᵀ / √d) v.

    (B, T, V, E) to (B, T, V, D); the parameters are those of :func:`axis_attention`.
    """
    q_NHLd, k_NHLd, v_NHLd = _split_heads(qkv_BTVE, num_heads, axis, rope, paired)
    scores_NHLL = (q_NHLd / math.sqrt(q_NHLd.shape[-1])) @ k_NHLd.mT
    return _merge_heads(scores_NHLL.softmax(-1) @ v_NHLd, qkv_BTVE, axis)


def sdpa_attention(
    qkv_BTVE: Tensor, num_heads: int, axis: Axis, *, rope: bool, paired: bool = False
) -> Tensor:
    """Compute the attention with PyTorch's fused operator.

    (B, T, V, E) to (B, T, V, D); the parameters are those of :func:`axis_attention`.
    """
    heads = _split_heads(qkv_BTVE, num_heads, axis, rope, paired)
    return _merge_heads(fused_attention(*heads), qkv_BTVE, axis)


def fused_attention(q_NHLd: Tensor, k_NHKd: Tensor, v_NHKd: Tensor) -> Tensor:
    """PyTorch's fused operator over any number of sequences, (N, H, L, d), K keys of each."""
    if not q_NHLd.is_cuda or len(q_NHLd) <= _MAX_SEQUENCES:
        return F.scaled_dot_product_attention(q_NHLd, k_NHKd, v_NHKd)
    parts = zip(*(torch.split(x, _MAX_SEQUENCES) for x in (q_NHLd, k_NHKd, v_NHKd)), strict=True)
    return torch.cat([F.scaled_dot_product_attention(*part) for part in parts])


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


def fits_triton(
    tensor: Tensor, dtype: torch.dtype, width: int, length: int, rope: bool = True
) -> bool:
    """Whether the Triton operator takes heads of a width and length, where a tensor lies."""
    return (
        runs_triton(tensor)
        and dtype in (torch.bfloat16, torch.float16, torch.float32)
        # Half a narrow head is no tile that could be rotated.
        and width in ((16, 32, 64) if rope else (8, 16, 32, 64))
        and length <= MAX_LENGTH
        # The tiles of float32 heads of width 64 fit a program up to 64 positions only.
        and length * width * dtype.itemsize <= 16 * 1024
    )


def pair_channels(weight_ED: Tensor, num_heads: int) -> Tensor:
    """Rows of a weight that makes q, k and v, reordered for a fast rotation.

    In each head of q and k the two channels that rotate together come side by side: one complex
    number. Their products do not change, as both are reordered alike.
    """
    width = len(weight_ED) // 3
    qk_ED, v_DD = weight_ED[: 2 * width], weight_ED[2 * width :]
    pairs = qk_ED.view(2 * num_heads, 2, -1, qk_ED.shape[1]).transpose(1, 2)
    return torch.cat([pairs.reshape(qk_ED.shape), v_DD])


def _split_heads(
    qkv_BTVE: Tensor, num_heads: int, axis: Axis, rope: bool, paired: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v as (N, H, L, d): views over the variates, one shared copy over time."""
    length = _attended_length(qkv_BTVE, num_heads, axis)
    x = qkv_BTVE.transpose(1, 2) if axis == "time" else qkv_BTVE
    width = x.shape[-1] // (3 * num_heads)
    x_NL3Hd = x.reshape(x.shape[0] * x.shape[1], length, 3, num_heads, width)
    q_NHLd, k_NHLd, v_NHLd = x_NL3Hd.permute(2, 0, 3, 1, 4).unbind(0)
    if not rope:
        return q_NHLd, k_NHLd, v_NHLd
    table_Ld = rope_table(length, width, qkv_BTVE)
    if paired:
        rotated_NL2Hd = _rotate_pairs(x_NL3Hd[:, :, :2], table_Ld)
        q_NHLd, k_NHLd = rotated_NL2Hd.permute(2, 0, 3, 1, 4).unbind(0)
        return q_NHLd, k_NHLd, v_NHLd
    return _rotate(q_NHLd, table_Ld), _rotate(k_NHLd, table_Ld), v_NHLd


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
    turned = torch.addcmul(a * cos, b, sin, value=-1), torch.addcmul(b * cos, a, sin)
    return torch.cat(turned, -1).to(x_NHLd.dtype)


def _rotate_pairs(x_NL2Hd: Tensor, table_Ld: Tensor) -> Tensor:
    """Turn the pairs (x_2i, x_{2i+1}), as complex numbers in one pass."""
    z_NL2Hc = torch.view_as_complex(x_NL2Hd.view(*x_NL2Hd.shape[:-1], x_NL2Hd.shape[-1] // 2, 2))
    turn_Lc = torch.complex(*table_Ld.chunk(2, -1))
    # Spread over the heads: long rows are what a CPU is fast with.
    turn_L2Hc = turn_Lc[:, None, None].expand(z_NL2Hc.shape[1:]).contiguous()
    return torch.view_as_real(z_NL2Hc * turn_L2Hc).flatten(-2)


def rope_table(length: int, width: int, like: Tensor) -> Tensor:
    """(L, d) cosines | sines on the device of a tensor."""
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    # A compiler makes the table part of its graph, once for all layers; a cache would tie the
    # graph to memory that it does not own.
    make = _make_rope_table if torch.compiler.is_compiling() else _cached_rope_table
    return make(length, width, like.device, dtype)


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
