"""The products of an MLP around its GELU, on a GPU.

On a Hopper GPU a kernel of :mod:`mdtim.gpu.cuda_mlp` runs GELU beside the product, and elsewhere it
is a pass of its own.

Shapes: R rows, D width, F = mlp_ratio * D. Matrices are contiguous and of one type.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mdtim.gpu import cuda_mlp, row_passes


def up_to_gelu(x_RD: Tensor, up_FD: Tensor, bias_F: Tensor) -> Tensor:
    """GELU of the first product, (R, F)."""
    if x_RD.is_cuda:  # where nothing is kept, cuBLAS's own GELU, in the tanh form, is as fast
        return torch._addmm_activation(bias_F, x_RD, up_FD.t(), use_gelu=True)
    return row_passes.gelu(torch.addmm(bias_F, x_RD, up_FD.t()))


def up_and_gelu(x_RD: Tensor, up_FD: Tensor, bias_F: Tensor) -> tuple[Tensor, Tensor]:
    """GELU of the first product, and that product, which the way back asks for; both (R, F)."""
    if cuda_mlp.fits(x_RD, up_FD):
        return cuda_mlp.up_and_gelu(x_RD, up_FD, bias_F)
    pre_RF = torch.addmm(bias_F, x_RD, up_FD.t())
    return row_passes.gelu(pre_RF), pre_RF


def back_to_gelu(dz_RD: Tensor, pre_RF: Tensor, down_DF: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients behind the second product.

    Parameters
    ----------
    dz_RD : gradient of what the second product says
    pre_RF : input of GELU
    down_DF : the second weight

    Returns
    -------
    dpre_RF : gradient of GELU's input
    ddown_DF : of the second weight
    dbias_F : of the first bias; both in float32 or in the type of the others
    """
    if cuda_mlp.fits(dz_RD, down_DF, pre_RF):
        return cuda_mlp.back_to_gelu(dz_RD, pre_RF, down_DF)
    dpre_RF = dz_RD @ down_DF
    act_RF, dbias_F = row_passes.gelu_backward_(dpre_RF, pre_RF)
    return dpre_RF, dz_RD.t() @ act_RF, dbias_F
