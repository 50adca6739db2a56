"""Attention over short sequences in half precision, by the kernels of `cuda_attention.cu`.

Triton's tiles are powers of two and its layouts are its own; here a warp holds a sequence of 48
steps in three tiles of 16, and memory is read and written in whole lines. Heads have 16 channels.

Shapes: B windows, T steps, V variates, H heads, D = 16 * H, E = 3 * D (q | k | v), L attended
length (T or V).
"""

from __future__ import annotations

import functools
import math
from typing import Literal

import torch
from torch import Tensor

from mdtim.gpu.cuda_compiler import Kernel, compile_kernel, has_compiler

HEAD_WIDTH = 16
MAX_LENGTH = 64
"""Longest sequence: a warp holds the scores of 16 queries and both gradients in registers."""

_TILE = 16
_HEADS = 8  # of a program: lines of 256 bytes
_THREADS = 128
_GROUPS = {1: 2, 2: 1, 3: 1, 4: 1}
"""Groups of sequences in a program, for a number of tiles."""
_PROGRAMS = {
    "attend": {1: 8, 2: 7, 3: 5, 4: 4},
    "attend_backward": {1: 6, 2: 4, 3: 3, 4: 3},
}
"""Programs that share a multiprocessor's registers; the fastest on an H200 of those that fit it."""


def fits(qkv_BTVE: Tensor, num_heads: int, over_time: bool, *others: Tensor | None) -> bool:
    """Whether the kernels take this tensor and those beside it, where they lie."""
    return (
        qkv_BTVE.is_cuda
        and qkv_BTVE.itemsize == 2
        and qkv_BTVE.shape[-1] == 3 * HEAD_WIDTH * num_heads
        and qkv_BTVE.shape[1 if over_time else 2] <= MAX_LENGTH
        and torch.cuda.get_device_capability(qkv_BTVE.device) == (9, 0)
        and all(x is None or x.data_ptr() % 16 == 0 for x in (qkv_BTVE, *others))
        and has_compiler()
    )


def launch(
    name: Literal["attend", "attend_backward"],
    qkv_BTVE: Tensor,
    table_Ld: Tensor | None,
    others: tuple[Tensor | None, ...],
    num_heads: int,
    over_time: bool,
) -> None:
    """Run a kernel with one program per group of sequences and of heads.

    Parameters
    ----------
    others : tensors that the kernel takes behind these; all contiguous
    """
    num_windows, num_steps, num_variates, _ = qkv_BTVE.shape
    length = num_steps if over_time else num_variates
    num_sequences = num_windows * num_steps * num_variates // length
    tiles = -(-length // _TILE)
    sequences = _TILE // length if tiles == 1 else 1  # of a group
    heads = math.gcd(num_heads, _HEADS)
    groups = _GROUPS[tiles]
    kernel = _kernel(
        name, qkv_BTVE.device, qkv_BTVE.dtype, tiles, sequences > 1, num_heads, table_Ld is not None
    )
    num_programs = -(-num_sequences // (sequences * groups)) * (num_heads // heads)
    stride = num_variates if over_time else 1
    kernel.launch(
        num_programs,
        qkv_BTVE,
        table_Ld,
        *others,
        *(num_sequences, length, stride, sequences),
    )


@functools.cache
def _kernel(
    name: str,
    device: torch.device,
    dtype: torch.dtype,
    tiles: int,
    packed: bool,
    num_heads: int,
    rotates: bool,
) -> Kernel:
    """Compile a kernel, once for all lengths of as many tiles."""
    parts, heads = 3 if name == "attend" else 4, math.gcd(num_heads, _HEADS)
    rows = _TILE * tiles * _GROUPS[tiles]
    shared_bytes = parts * rows * (2 * HEAD_WIDTH * heads + 16)
    constants = {
        "HALF": dtype == torch.float16,
        "TILES": tiles,
        "PACKED": packed,
        "GROUPS": _GROUPS[tiles],
        "HEADS": heads,
        "NUM_HEADS": num_heads,
        "ROPE": rotates,
        "PROGRAMS": _PROGRAMS[name][tiles],
    }
    return compile_kernel(
        "gpu/cuda_attention.cu",
        name,
        {constant: int(value) for constant, value in constants.items()},
        device,
        threads=_THREADS,
        shared_bytes=shared_bytes,
    )
