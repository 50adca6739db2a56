"""The way back through an MLP's second product and GELU, with that product's weight.

On a Hopper GPU it is one kernel of :mod:`mdtim.triton_mlp`, which reads the MLP's hidden states
once, and elsewhere a product, a pass and a product.

Shapes: R rows, D width, F = mlp_ratio * D.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mdtim import row_passes, triton_mlp
from mdtim.triton_compiler import INTERPRETED, on_device_of

try:
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:  # no Triton, or one before 3.4
    TensorDescriptor = None

_ROWS, _COLUMNS = 64, 128
"""Of a tile: the fastest that was found on an H200, as are warps and stages."""
_WARPS, _STAGES = 8, 3


def back_to_gelu(dz_RD: Tensor, pre_RF: Tensor, down_DF: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients behind the second product of an MLP.

    Parameters
    ----------
    dz_RD : gradient of what the second product says
    pre_RF : input of GELU
    down_DF : the second weight; all three contiguous and of one type

    Returns
    -------
    dpre_RF : gradient of GELU's input
    ddown_DF : of the second weight
    dbias_F : of the first bias; both in float32 or in the type of the others
    """
    if _is_for_one_kernel(dz_RD, pre_RF, down_DF):
        return in_one_kernel(dz_RD, pre_RF, down_DF)
    dpre_RF = dz_RD @ down_DF
    act_RF, dbias_F = row_passes.gelu_backward_(dpre_RF, pre_RF)
    return dpre_RF, dz_RD.t() @ act_RF, dbias_F


def _is_for_one_kernel(dz_RD: Tensor, *others: Tensor) -> bool:
    """Where the kernel was found to be faster."""
    return (
        dz_RD.is_cuda
        and TensorDescriptor is not None
        and torch.version.hip is None
        and torch.cuda.get_device_capability(dz_RD.device) == (9, 0)
        and dz_RD.itemsize == 2
        and dz_RD.shape[1] == 256
        and len(dz_RD) > 0
        and others[0].shape[1] % _COLUMNS == 0
        and all(tensor.data_ptr() % 16 == 0 for tensor in (dz_RD, *others))
    )


def in_one_kernel(dz_RD: Tensor, pre_RF: Tensor, down_DF: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What :func:`back_to_gelu` says, with sums over the rows in float32."""
    (num_rows, width), inner_width = dz_RD.shape, pre_RF.shape[1]
    dpre_RF = torch.empty_like(pre_RF)
    columns = inner_width // _COLUMNS
    chunks = max(1, _multiprocessors(dz_RD) // columns)
    ddown_CDF = dz_RD.new_empty((chunks, width, inner_width), dtype=torch.float32)
    dbias_CF = dz_RD.new_empty((chunks, inner_width), dtype=torch.float32)
    with on_device_of(dz_RD):
        triton_mlp.back_to_gelu_kernel[(columns * chunks,)](
            _tiles_of(dz_RD, _ROWS, width),
            _tiles_of(down_DF, width, _COLUMNS),
            _tiles_of(pre_RF, _ROWS, _COLUMNS),
            _tiles_of(dpre_RF, _ROWS, _COLUMNS),
            ddown_CDF,
            dbias_CF,
            -(-num_rows // _ROWS),
            D=width,
            F=inner_width,
            ROWS=_ROWS,
            INNER=_COLUMNS,
            CHUNKS=chunks,
            STAGES=_STAGES,
            num_warps=_WARPS,
        )
    return dpre_RF, ddown_CDF.sum(0), dbias_CF.sum(0)


def _tiles_of(tensor: Tensor, rows: int, columns: int) -> Any:
    return TensorDescriptor.from_tensor(tensor, [rows, columns])


def _multiprocessors(tensor: Tensor) -> int:
    if INTERPRETED:
        return 3  # few enough that a program takes several tiles
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count
