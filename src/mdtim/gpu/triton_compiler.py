"""Triton where it is installed: how kernels are compiled, and whether they can run.

Modules with kernels load without Triton too; their kernels then cannot run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

try:
    import triton

    HAS_TRITON = True
except ImportError:  # wheels without CUDA come without Triton
    HAS_TRITON = False

# TRITON_INTERPRET=1 at import runs the kernels on the CPU, to check their arithmetic.
INTERPRETED = HAS_TRITON and os.environ.get("TRITON_INTERPRET", "0") == "1"


def runs_triton(tensor: Tensor) -> bool:
    """Whether kernels can run where this tensor lies."""
    return HAS_TRITON and ((tensor.is_cuda and torch.version.hip is None) or INTERPRETED)


def on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Launch on the tensor's device: Triton takes the current one, which need not be it."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def jit(function: Callable[..., Any]) -> Any:
    """Compile with Triton, once for all sizes that share a tile.

    Arguments of these names vary from call to call and are not compiled in.
    """
    if not HAS_TRITON:
        return function
    return triton.jit(
        function,
        do_not_specialize=[
            *("num_sequences", "length", "window_rows", "first_row", "num_rows", "num_tiles"),
        ],
        # A seed is one of many in a tensor, so its address is any multiple of 8.
        do_not_specialize_on_alignment=["stride", "sequences", "seed"],
    )
