"""An MLP whose hidden states pass through memory once, on a GPU with tensor descriptors: a trial.

Launches the kernels of :mod:`mdtim.bench.triton_mlp`; what they compute is what
:mod:`mdtim.fused_block` does with products and passes one after the other.
Nothing but the benchmark calls them.

Shapes: R rows, D width, F = mlp_ratio * D.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from mdtim.bench import triton_mlp
from mdtim.triton_compiler import HAS_TRITON, INTERPRETED, on_device_of

if HAS_TRITON:
    from triton.tools.tensor_descriptor import TensorDescriptor


class Tiles(NamedTuple):
    """How a program takes its rows."""

    rows: int
    """Of a tile."""
    inner: int
    """Columns of the hidden states at a time."""
    warps: int
    stages: int
    """Tiles in flight."""
    programs: int = 1
    """That fit a multiprocessor."""


FORWARD_TILES = (Tiles(128, 64, 8, 2), Tiles(128, 32, 8, 3), Tiles(64, 32, 4, 2, 2))
BACKWARD_TILES = (Tiles(64, 128, 8, 2), Tiles(64, 128, 8, 3), Tiles(128, 64, 8, 2))
"""Those without spilled registers on compute capability 9.0; the first is the default."""


def fits(x_RD: Tensor, inner_width: int) -> bool:
    """Whether the kernels can take these rows."""
    return (
        x_RD.dtype in (torch.bfloat16, torch.float16)
        and x_RD.shape[1] in (64, 128, 256)
        and inner_width % 128 == 0
        and HAS_TRITON
        and (INTERPRETED or _has_tensor_descriptors(x_RD.device))
    )


def _has_tensor_descriptors(device: torch.device) -> bool:
    return (
        device.type == "cuda"
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) >= (9, 0)
    )


def mlp(
    x_RD: Tensor,
    up: Tensor,
    up_bias: Tensor,
    down: Tensor,
    down_bias: Tensor,
    tiles: Tiles = FORWARD_TILES[0],
) -> tuple[Tensor, Tensor]:
    """Both products with GELU between them.

    Parameters
    ----------
    x_RD : bfloat16 or float16, contiguous
    up, up_bias, down, down_bias : (F, D), (F,), (D, F), (D,) of the same type, contiguous

    Returns
    -------
    z_RD : what the second product says
    pre_RF : input of GELU
    """
    (num_rows, width), inner_width = x_RD.shape, len(up)
    z_RD, pre_RF = torch.empty_like(x_RD), x_RD.new_empty((num_rows, inner_width))
    num_tiles = -(-num_rows // tiles.rows)
    programs = min(num_tiles, tiles.programs * _multiprocessors(x_RD))
    if programs:
        with on_device_of(x_RD):
            triton_mlp.mlp_kernel[(programs,)](
                _tiles_of(x_RD, tiles.rows, width),
                _tiles_of(up, tiles.inner, width),
                up_bias,
                _tiles_of(down, width, tiles.inner),
                down_bias,
                _tiles_of(z_RD, tiles.rows, width // 2),
                _tiles_of(pre_RF, tiles.rows, tiles.inner),
                num_tiles,
                programs,
                D=width,
                F=inner_width,
                ROWS=tiles.rows,
                INNER=tiles.inner,
                STAGES=tiles.stages,
                num_warps=tiles.warps,
            )
    return z_RD, pre_RF


def down_backward(
    dz_RD: Tensor, pre_RF: Tensor, down: Tensor, tiles: Tiles = BACKWARD_TILES[0]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients behind the second product of an MLP.

    Returns
    -------
    dpre_RF : of GELU's input
    ddown_DF : float32, of the second weight
    dup_bias_F : float32, of the first bias
    """
    (num_rows, width), inner_width = dz_RD.shape, pre_RF.shape[1]
    dpre_RF = torch.empty_like(pre_RF)
    columns = inner_width // tiles.inner
    chunks = max(1, _multiprocessors(dz_RD) // columns)
    weight_CDF = dz_RD.new_empty((chunks, width, inner_width), dtype=torch.float32)
    bias_CF = dz_RD.new_empty((chunks, inner_width), dtype=torch.float32)
    with on_device_of(dz_RD):
        triton_mlp.down_backward_kernel[(columns * chunks,)](
            _tiles_of(dz_RD, tiles.rows, width),
            _tiles_of(down, width, tiles.inner),
            _tiles_of(pre_RF, tiles.rows, tiles.inner),
            _tiles_of(dpre_RF, tiles.rows, tiles.inner),
            weight_CDF,
            bias_CF,
            -(-num_rows // tiles.rows),
            D=width,
            F=inner_width,
            ROWS=tiles.rows,
            INNER=tiles.inner,
            CHUNKS=chunks,
            STAGES=tiles.stages,
            num_warps=tiles.warps,
        )
    return dpre_RF, weight_CDF.sum(0), bias_CF.sum(0)


def _tiles_of(tensor: Tensor, rows: int, columns: int) -> Any:
    return TensorDescriptor.from_tensor(tensor, [rows, columns])


def _multiprocessors(tensor: Tensor) -> int:
    if INTERPRETED:
        return 3  # few enough that a program takes several tiles
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count
