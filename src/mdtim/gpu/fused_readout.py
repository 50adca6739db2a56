"""From what the head says to probabilities or to the loss as one operator each, for a GPU.

:mod:`mdtim.readout` defines what they compute. Nothing of the size of a distribution is written
in training but the gradient of the head's output.

Shapes: R cells, P what the head says of a cell (K bins, then the prior's corrections, then
padding), G guesses.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mdtim.gpu import triton_cells
from mdtim.gpu.triton_compiler import HAS_TRITON, on_device_of

if HAS_TRITON:
    import triton

_TILE = 2048
"""Elements that a program of four warps holds at a time."""


@torch.library.custom_op("mdtim::cell_probs", mutates_args=())
def fused_probs(
    output_RP: Tensor,
    values_RG: Tensor | None,
    nearest_R: Tensor | None,
    law: Tensor | None,
    num_bins: int,
    reach: float,
) -> Tensor:
    """(R, K) float32 probabilities of the bins.

    Parameters
    ----------
    output_RP : contiguous, on a GPU
    values_RG, nearest_R : float32, guesses and steps to the nearest visible cell; None without
        a prior
    law : (2 + G,) float32, the prior's log spread, its growth, and the belief in each guess
    reach : the bins lie on ±reach
    """
    probs_RK = output_RP.new_empty((len(output_RP), num_bins), dtype=torch.float32)
    tensors = (output_RP, values_RG, nearest_R, law, probs_RK)
    _launch(triton_cells.probs_kernel, tensors, num_bins, reach)
    return probs_RK


@torch.library.custom_op("mdtim::cell_terms", mutates_args=())
def fused_terms(
    output_RP: Tensor,
    values_RG: Tensor | None,
    nearest_R: Tensor | None,
    law: Tensor | None,
    target_R: Tensor,
    num_bins: int,
    reach: float,
    label_width: int,
    label_variance: float,
) -> tuple[Tensor, Tensor]:
    """(R,) float32 cross-entropy to the soft label around the target, and expectation."""
    entropy_R, estimate_R = torch.empty_like(target_R), torch.empty_like(target_R)
    tensors = (output_RP, values_RG, nearest_R, law, target_R, entropy_R, estimate_R)
    constants = {"REACHED": label_width, "VARIANCE": label_variance}
    _launch(triton_cells.terms_kernel, tensors, num_bins, reach, **constants)
    return entropy_R, estimate_R


@torch.library.custom_op("mdtim::cell_terms_backward", mutates_args=())
def _backward(
    dentropy_R: Tensor,
    destimate_R: Tensor,
    output_RP: Tensor,
    values_RG: Tensor | None,
    nearest_R: Tensor | None,
    law: Tensor | None,
    target_R: Tensor,
    num_bins: int,
    reach: float,
    label_width: int,
    label_variance: float,
) -> tuple[Tensor, Tensor]:
    """Gradients of the head's output, and of the law (empty without a prior)."""
    doutput_RP = torch.empty_like(output_RP)
    num_programs = -(-len(output_RP) // _rows_of(num_bins))
    sums = target_R.new_empty((num_programs, 0 if law is None else len(law)))
    given = (output_RP, values_RG, nearest_R, law, target_R)
    gradients = (dentropy_R.contiguous(), destimate_R.contiguous(), doutput_RP, sums)
    constants = {
        "REACHED": label_width,
        "VARIANCE": label_variance,
        "BLOCK_WIDTH": triton.next_power_of_2(max(1, output_RP.shape[1] - num_bins)),
    }
    _launch(triton_cells.terms_backward_kernel, (*given, *gradients), num_bins, reach, **constants)
    return doutput_RP, sums.sum(0)


def _rows_of(num_bins: int) -> int:
    """Rows of a program."""
    return max(1, _TILE // int(triton.next_power_of_2(num_bins)))


def _launch(
    kernel: Any, tensors: tuple[Tensor | None, ...], num_bins: int, reach: float, **constants: Any
) -> None:
    output_RP, values_RG = tensors[:2]
    assert output_RP is not None
    assert output_RP.is_contiguous()
    num_rows, width = output_RP.shape
    if not num_rows:
        return
    num_guesses = 1 if values_RG is None else values_RG.shape[1]
    rows = _rows_of(num_bins)
    with on_device_of(output_RP):
        kernel[(triton.cdiv(num_rows, rows),)](
            *tensors,
            num_rows,
            WIDTH=width,
            K=num_bins,
            G=num_guesses,
            BLOCK=triton.next_power_of_2(num_bins),
            BLOCK_G=triton.next_power_of_2(num_guesses),
            REACH=reach,
            ROWS=rows,
            **constants,
            num_warps=4,
        )


@fused_probs.register_fake
def _(output_RP: Tensor, *arguments: Any) -> Tensor:
    return output_RP.new_empty((len(output_RP), arguments[3]), dtype=torch.float32)


@fused_terms.register_fake
def _(
    output_RP: Tensor, values_RG: Any, nearest_R: Any, law: Any, target_R: Tensor, *_: Any
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(target_R), torch.empty_like(target_R)


@_backward.register_fake
def _(
    dentropy_R: Tensor, destimate_R: Tensor, output_RP: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor]:
    law = arguments[2]
    return torch.empty_like(output_RP), dentropy_R.new_empty(0 if law is None else len(law))


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.constants = inputs[5:]


def _differentiate(ctx: Any, dentropy_R: Tensor, destimate_R: Tensor) -> tuple[Any, ...]:
    law = ctx.saved_tensors[3]
    doutput_RP, dlaw = _backward(dentropy_R, destimate_R, *ctx.saved_tensors, *ctx.constants)
    return doutput_RP, None, None, None if law is None else dlaw, *(None,) * 5


fused_terms.register_autograd(_differentiate, setup_context=_save_for_backward)
