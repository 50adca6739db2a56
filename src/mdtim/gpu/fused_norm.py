"""The modulated norm in front of the head as one operator, for a GPU.

:func:`mdtim.layers.normalize` defines what it computes. Shapes as in :mod:`mdtim.gpu.row_passes`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mdtim.gpu import row_passes
from mdtim.gpu.row_passes import Rows


@torch.library.custom_op("mdtim::modulated_norm", mutates_args=())
def fused_norm(h_BTVD: Tensor, modulation_B2D: Tensor) -> Tensor:
    """LN(h) * (1 + scale) + shift, (B, T, V, D) to the same.

    Parameters
    ----------
    h_BTVD : bfloat16, float16 or float32, on a GPU
    modulation_B2D : shift and scale of each window, in the same dtype; the numbers of a window
        lie side by side
    """
    h_RD = h_BTVD.contiguous().view(-1, h_BTVD.shape[-1])
    return row_passes.normalize(_rows(h_BTVD), h_RD, modulation_B2D).view(h_BTVD.shape)


@torch.library.custom_op("mdtim::modulated_norm_backward", mutates_args=())
def _backward(grad_BTVD: Tensor, h_BTVD: Tensor, modulation_B2D: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the states and of the modulation."""
    grad_RD, h_RD = (x.contiguous().view(-1, h_BTVD.shape[-1]) for x in (grad_BTVD, h_BTVD))
    rows, dh_RD = _rows(h_BTVD), torch.empty_like(h_RD)
    sums_BCSD = rows.new_sums(h_RD, slots=2)
    row_passes.normalize_backward(
        rows, grad_RD, None, h_RD, modulation_B2D, sums_BCSD, dh_RD=dh_RD, x_RD=None
    )
    return dh_RD.view(h_BTVD.shape), sums_BCSD.sum(1).to(modulation_B2D.dtype)


def _rows(h_BTVD: Tensor) -> Rows:
    num_windows, num_steps, num_variates, width = h_BTVD.shape
    return Rows(num_windows, num_steps * num_variates, width, dropout=0.0)


@fused_norm.register_fake
def _(h_BTVD: Tensor, modulation_B2D: Tensor) -> Tensor:
    return h_BTVD.new_empty(h_BTVD.shape)


@_backward.register_fake
def _(grad_BTVD: Tensor, h_BTVD: Tensor, modulation_B2D: Tensor) -> tuple[Tensor, Tensor]:
    return h_BTVD.new_empty(h_BTVD.shape), modulation_B2D.new_empty(modulation_B2D.shape)


def _save_for_backward(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, grad_BTVD: Tensor) -> tuple[Tensor, Tensor]:
    dh_BTVD, dmodulation_B2D = _backward(grad_BTVD, *ctx.saved_tensors)
    return dh_BTVD, dmodulation_B2D


fused_norm.register_autograd(_differentiate, setup_context=_save_for_backward)
