"""The first states of all cells as one operator, for a GPU.

:func:`mdtim.embedding.embed_cells` defines what it computes. Products write where their rows belong
and read them from there, and the levels are added in one pass, in place.

Shapes: B windows, T steps, V variates, R = B * T, I inputs of a cell, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mdtim.gpu import row_passes


@torch.library.custom_op("mdtim::embed_cells", mutates_args=())
def fused_embedding(inputs_BTVI: Tensor, weights_VID: Tensor, level_BVD: Tensor | None) -> Tensor:
    """(B, T, V, D) the product of each cell with its variate's weight, and its level.

    Parameters
    ----------
    inputs_BTVI : contiguous, on a GPU; no gradient of it is known
    weights_VID : of each variate, or one for all; cast to the inputs' dtype
    level_BVD : added to every step
    """
    dtype, (count, _, width) = inputs_BTVI.dtype, weights_VID.shape
    h_BTVD = inputs_BTVI.new_empty((*inputs_BTVI.shape[:3], width))
    weights = weights_VID[0] if count == 1 else weights_VID
    rows, states = (_of_variates(x, count) for x in (inputs_BTVI, h_BTVD))
    torch.matmul(rows, weights.to(dtype), out=states)
    if level_BVD is not None:
        row_passes.add_level_(h_BTVD, level_BVD.to(dtype).contiguous())
    return h_BTVD


def _of_variates(x_BTVX: Tensor, count: int) -> Tensor:
    """(V, R, X) rows of each variate as they lie, or (R * V, X) of all where they are alike."""
    if count == 1:
        return x_BTVX.flatten(0, 2)
    return x_BTVX.flatten(0, 1).transpose(0, 1)


@fused_embedding.register_fake
def _(inputs_BTVI: Tensor, weights_VID: Tensor, level_BVD: Tensor | None) -> Tensor:
    return inputs_BTVI.new_empty((*inputs_BTVI.shape[:3], weights_VID.shape[-1]))


def _save_for_backward(
    ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor
) -> None:
    inputs_BTVI, weights_VID, level_BVD = inputs
    ctx.save_for_backward(inputs_BTVI)
    ctx.shape, ctx.dtype = weights_VID.shape, weights_VID.dtype
    ctx.level_dtype = None if level_BVD is None else level_BVD.dtype


def _differentiate(ctx: Any, grad_BTVD: Tensor) -> tuple[None, Tensor, Tensor | None]:
    (inputs_BTVI,) = ctx.saved_tensors
    grad_BTVD = grad_BTVD.contiguous()
    rows, states = (_of_variates(x, ctx.shape[0]) for x in (inputs_BTVI, grad_BTVD))
    dweights_VID = (rows.mT @ states).to(ctx.dtype).view(ctx.shape)
    if ctx.level_dtype is None:
        return None, dweights_VID, None
    return None, dweights_VID, grad_BTVD.sum(1, dtype=ctx.level_dtype)


fused_embedding.register_autograd(_differentiate, setup_context=_save_for_backward)
