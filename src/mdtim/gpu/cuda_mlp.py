"""Products of an MLP with GELU beside them, by the kernels of `cuda_mlp.cu`, on a Hopper GPU.

Between two products of cuBLAS a pass of its own reads the MLP's hidden states and writes them
again; here GELU runs beside the products, on what is on the chip.

Shapes: R rows, D width, F = mlp_ratio * D, C chunks of rows.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from mdtim.gpu.cuda_compiler import Kernel, TensorMap, compile_kernel, has_compiler

_WIDTHS = (128, 256)
_ROWS, _COLUMNS, _BOX, _GROUPS, _GROUP_WARPS = 64, 128, 64, 2, 4
_TILE_BYTES = 2 * _ROWS * _BOX


def fits(x_RD: Tensor, weight: Tensor, *others: Tensor) -> bool:
    """Whether the kernels take rows of halves, a weight, (F, D) or (D, F), and whatever else."""
    width = x_RD.shape[1]
    return (
        x_RD.is_cuda
        and x_RD.itemsize == 2
        and torch.cuda.get_device_capability(x_RD.device) == (9, 0)
        and has_compiler()
        and width in _WIDTHS
        and 0 < len(x_RD) < 2**31
        and weight.numel() // width % _COLUMNS == 0
        and all(tensor.data_ptr() % 16 == 0 for tensor in (x_RD, weight, *others))
    )


def up_and_gelu(x_RD: Tensor, up_FD: Tensor, bias_F: Tensor) -> tuple[Tensor, Tensor]:
    """GELU of the first product, and that product, both (R, F)."""
    inner, width = up_FD.shape
    act_RF, pre_RF = (x_RD.new_empty((len(x_RD), inner)) for _ in range(2))
    num_tiles, chunks = _divide(x_RD, inner)
    _kernel("up_and_gelu", x_RD.device, x_RD.dtype, width, inner).launch(
        chunks * inner // _COLUMNS,
        TensorMap(x_RD, _ROWS),
        TensorMap(up_FD, _COLUMNS),
        bias_F,
        TensorMap(pre_RF, _ROWS),
        TensorMap(act_RF, _ROWS),
        num_tiles,
    )
    return act_RF, pre_RF


def back_to_gelu(dz_RD: Tensor, pre_RF: Tensor, down_DF: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of GELU's input, of the second weight and of the first bias, sums in float32."""
    width, inner = dz_RD.shape[1], pre_RF.shape[1]
    dpre_RF = torch.empty_like(pre_RF)
    num_tiles, chunks = _divide(dz_RD, inner)
    ddown_CFD = dz_RD.new_empty((chunks, inner, width), dtype=torch.float32)
    dbias_CF = dz_RD.new_empty((chunks * _GROUP_WARPS, inner), dtype=torch.float32)
    _kernel("back_to_gelu", dz_RD.device, dz_RD.dtype, width, inner).launch(
        chunks * inner // _COLUMNS,
        TensorMap(dz_RD, _ROWS),
        TensorMap(down_DF, width),
        TensorMap(pre_RF, _ROWS),
        TensorMap(dpre_RF, _ROWS),
        ddown_CFD,
        dbias_CF,
        num_tiles,
    )
    return dpre_RF, ddown_CFD.sum(0).t().contiguous(), dbias_CF.sum(0)


def _divide(x_RD: Tensor, inner: int) -> tuple[int, int]:
    """Tiles of rows, and chunks of them: together a program on each multiprocessor."""
    num_tiles = -(-len(x_RD) // _ROWS)
    processors = torch.cuda.get_device_properties(x_RD.device).multi_processor_count
    return num_tiles, min(num_tiles, max(1, processors * _COLUMNS // inner))


@functools.cache
def _kernel(name: str, device: torch.device, dtype: torch.dtype, width: int, inner: int) -> Kernel:
    boxes = width // _BOX
    if name == "up_and_gelu":
        tile_boxes = 2 * _GROUPS * (boxes + 1)  # two stages of each group; what leaves it
    else:
        tile_boxes = 3 * (boxes + _GROUPS) + _GROUPS
    constants = {"HALF": dtype == torch.float16, "D": width, "F": inner}
    return compile_kernel(
        "gpu/cuda_mlp.cu",
        name,
        {constant: int(value) for constant, value in constants.items()},
        device,
        threads=32 * _GROUP_WARPS * (_GROUPS + 1),
        # Barriers, and what is lost by beginning at a multiple of 1024.
        shared_bytes=2 * width * _COLUMNS + tile_boxes * _TILE_BYTES + 128 + 1024,
        own_generation=True,
    )
