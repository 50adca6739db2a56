"""From what is known of every cell to its first state.

B windows, T steps, V variates, I inputs of a cell, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mdtim.gpu.fused_embedding import fused_embedding
from mdtim.gpu.triton_compiler import runs_triton


def embed_cells(
    inputs_BTVI: Tensor, weights_VID: Tensor, level_BVD: Tensor | None, *, fused: bool
) -> Tensor:
    """Multiply cells with the weight of their variate and add its level, (B, T, V, D).

    Parameters
    ----------
    weights_VID : of each variate, or one for all
    level_BVD : of each variate of a window, the same at all steps
    fused : take the operator where it can run
    """
    if fused and inputs_BTVI.is_cuda and runs_triton(inputs_BTVI):
        h_BTVD: Tensor = fused_embedding(inputs_BTVI, weights_VID, level_BVD)
        return h_BTVD
    if len(weights_VID) == 1:
        h_BTVD = inputs_BTVI @ weights_VID[0]
    else:
        h_BTVD = torch.einsum("btvi,vid->btvd", inputs_BTVI, weights_VID)
    return h_BTVD if level_BVD is None else h_BTVD + level_BVD[:, None]
