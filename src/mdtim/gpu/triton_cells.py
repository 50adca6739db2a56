"""Triton kernels over cells: from what the head says to probabilities, or to the loss and back.

:mod:`mdtim.gpu.fused_readout` launches them; :mod:`mdtim.readout` defines what they compute. A
program holds some rows, one for each cell, with all their bins.

Shapes: R rows of a tile, K bins, G guesses.
"""

from __future__ import annotations

from mdtim.gpu.triton_compiler import HAS_TRITON
from mdtim.gpu.triton_compiler import jit as _jit

if HAS_TRITON:
    import triton.language as tl


@_jit
def _rows(num_rows: tl.tensor, ROWS: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """(R,) rows of this program, and which of them there are."""
    row_R = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    return row_R, row_R < num_rows


@_jit
def _prior(
    output: tl.tensor, values: tl.tensor, nearest: tl.tensor, law: tl.tensor,
    row_R: tl.tensor, valid_R: tl.tensor,
    WIDTH: tl.constexpr, K: tl.constexpr, G: tl.constexpr, BLOCK_G: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Centre of the prior, log of its spread (unclamped) and of the distance; trust in guesses."""
    at_R = row_R * WIDTH + K
    shift_R = tl.load(output + at_R, mask=valid_R, other=0.0).to(tl.float32)
    trust_R = tl.load(output + at_R + 1, mask=valid_R, other=0.0).to(tl.float32)
    guess = tl.arange(0, BLOCK_G)
    known = valid_R[:, None] & (guess < G)[None, :]
    belief = tl.load(output + (at_R + 2)[:, None] + guess[None, :], mask=known, other=0.0)
    belief = belief.to(tl.float32) + tl.load(law + 2 + guess, mask=guess < G, other=0.0)[None, :]
    belief = tl.where((guess < G)[None, :], belief, float("-inf"))
    weight_RG = tl.exp(belief - tl.max(belief, 1)[:, None])
    weight_RG = weight_RG / tl.sum(weight_RG, 1)[:, None]
    at_RG = row_R[:, None] * G + guess[None, :]
    value_RG = tl.load(values + at_RG, mask=known, other=0.0)
    guess_R = tl.sum(weight_RG * value_RG, 1)
    far_R = tl.log(tl.maximum(tl.load(nearest + row_R, mask=valid_R, other=1.0), 1.0))
    raw_R = tl.load(law) + tl.load(law + 1) * far_R - trust_R
    return guess_R, shift_R, raw_R, far_R, weight_RG, value_RG


@_jit
def _bins(
    output: tl.tensor, row_R: tl.tensor, valid_R: tl.tensor,
    WIDTH: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """(R, K) what the head says about the bins themselves."""
    column = tl.arange(0, BLOCK)
    inside = valid_R[:, None] & (column < K)[None, :]
    at = row_R[:, None] * WIDTH + column[None, :]
    return tl.load(output + at, mask=inside, other=0.0).to(tl.float32)


@_jit
def _centers(K: tl.constexpr, BLOCK: tl.constexpr, REACH: tl.constexpr) -> tl.tensor:
    """(1, K) values of the bins, in window units."""
    step: tl.constexpr = 2 * REACH / (K - 1)
    return (tl.arange(0, BLOCK).to(tl.float32) * step - REACH)[None, :]


@_jit
def _distance(
    guess_R: tl.tensor, shift_R: tl.tensor, raw_R: tl.tensor, centers: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """(R, K) bins from the centre of the prior in units of its spread, and (R,) one over that."""
    narrow_R = tl.exp(-tl.minimum(tl.maximum(raw_R, -4.0), 3.0))
    return (centers - (guess_R + shift_R)[:, None]) * narrow_R[:, None], narrow_R


@_jit
def _softmax(
    logit_RK: tl.tensor, K: tl.constexpr, BLOCK: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """(R, K) probabilities and (R,) the logarithm of their sum before they were divided by it."""
    logit_RK = tl.where((tl.arange(0, BLOCK) < K)[None, :], logit_RK, float("-inf"))
    most_R = tl.max(logit_RK, 1)
    p_RK = tl.exp(logit_RK - most_R[:, None])
    sum_R = tl.sum(p_RK, 1)
    return p_RK / sum_R[:, None], most_R + tl.log(sum_R)


@_jit
def _one_label(
    whole_R: tl.tensor, K: tl.constexpr, BLOCK: tl.constexpr, REACHED: tl.constexpr,
    VARIANCE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """(R, K) the soft label around a bin."""
    column = tl.arange(0, BLOCK)
    apart = column.to(tl.float32)[None, :] - whole_R[:, None]
    near = (tl.abs(apart) <= REACHED) & (column < K)[None, :]
    label = tl.where(near, tl.exp(-apart * apart / VARIANCE), 0.0)
    return label / tl.maximum(tl.sum(label, 1), 1e-12)[:, None]


@_jit
def _label(
    target: tl.tensor, row_R: tl.tensor, valid_R: tl.tensor, K: tl.constexpr,
    BLOCK: tl.constexpr, REACHED: tl.constexpr, VARIANCE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """(R, K) the mix of the soft labels around the two bins beside a coordinate."""
    target_R = tl.load(target + row_R, mask=valid_R, other=0.0)
    lower_R = tl.floor(target_R)
    upper_R = (target_R - lower_R)[:, None]
    below = _one_label(lower_R, K, BLOCK, REACHED, VARIANCE)
    above = _one_label(lower_R + 1, K, BLOCK, REACHED, VARIANCE)
    return (1 - upper_R) * below + upper_R * above


@_jit
def probs_kernel(
    output: tl.tensor, values: tl.tensor, nearest: tl.tensor, law: tl.tensor, probs: tl.tensor,
    num_rows: tl.tensor,
    WIDTH: tl.constexpr, K: tl.constexpr, G: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_G: tl.constexpr, REACH: tl.constexpr, ROWS: tl.constexpr,
) -> None:  # fmt: skip
    """Probabilities of the bins."""
    row_R, valid_R = _rows(num_rows, ROWS)
    logit_RK = _bins(output, row_R, valid_R, WIDTH, K, BLOCK)
    if values is not None:
        guess_R, shift_R, raw_R, _, _, _ = _prior(
            output, values, nearest, law, row_R, valid_R, WIDTH, K, G, BLOCK_G
        )
        z_RK, _ = _distance(guess_R, shift_R, raw_R, _centers(K, BLOCK, REACH))
        logit_RK -= 0.5 * z_RK * z_RK
    p_RK, _ = _softmax(logit_RK, K, BLOCK)
    column = tl.arange(0, BLOCK)
    inside = valid_R[:, None] & (column < K)[None, :]
    tl.store(probs + row_R[:, None] * K + column[None, :], p_RK, mask=inside)


@_jit
def terms_kernel(
    output: tl.tensor, values: tl.tensor, nearest: tl.tensor, law: tl.tensor, target: tl.tensor,
    entropy: tl.tensor, estimate: tl.tensor, num_rows: tl.tensor,
    WIDTH: tl.constexpr, K: tl.constexpr, G: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_G: tl.constexpr, REACH: tl.constexpr, ROWS: tl.constexpr, REACHED: tl.constexpr,
    VARIANCE: tl.constexpr,
) -> None:  # fmt: skip
    """Cross-entropy to the soft label, and expectation."""
    row_R, valid_R = _rows(num_rows, ROWS)
    centers = _centers(K, BLOCK, REACH)
    logit_RK = _bins(output, row_R, valid_R, WIDTH, K, BLOCK)
    if values is not None:
        guess_R, shift_R, raw_R, _, _, _ = _prior(
            output, values, nearest, law, row_R, valid_R, WIDTH, K, G, BLOCK_G
        )
        z_RK, _ = _distance(guess_R, shift_R, raw_R, centers)
        logit_RK -= 0.5 * z_RK * z_RK
    p_RK, total_R = _softmax(logit_RK, K, BLOCK)
    label_RK = _label(target, row_R, valid_R, K, BLOCK, REACHED, VARIANCE)
    tl.store(entropy + row_R, total_R - tl.sum(label_RK * logit_RK, 1), mask=valid_R)
    tl.store(estimate + row_R, tl.sum(p_RK * centers, 1), mask=valid_R)


@_jit
def terms_backward_kernel(
    output: tl.tensor, values: tl.tensor, nearest: tl.tensor, law: tl.tensor, target: tl.tensor,
    dentropy: tl.tensor, destimate: tl.tensor, doutput: tl.tensor, sums: tl.tensor,
    num_rows: tl.tensor,
    WIDTH: tl.constexpr, K: tl.constexpr, G: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_G: tl.constexpr, REACH: tl.constexpr, ROWS: tl.constexpr, REACHED: tl.constexpr,
    VARIANCE: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Gradient of what the head says, and sums over rows for the law of the prior."""
    row_R, valid_R = _rows(num_rows, ROWS)
    centers = _centers(K, BLOCK, REACH)
    logit_RK = _bins(output, row_R, valid_R, WIDTH, K, BLOCK)
    if values is not None:
        guess_R, shift_R, raw_R, far_R, weight_RG, value_RG = _prior(
            output, values, nearest, law, row_R, valid_R, WIDTH, K, G, BLOCK_G
        )
        z_RK, narrow_R = _distance(guess_R, shift_R, raw_R, centers)
        logit_RK -= 0.5 * z_RK * z_RK
    p_RK, _ = _softmax(logit_RK, K, BLOCK)
    label_RK = _label(target, row_R, valid_R, K, BLOCK, REACHED, VARIANCE)
    dentropy_R = tl.load(dentropy + row_R, mask=valid_R, other=0.0)
    destimate_R = tl.load(destimate + row_R, mask=valid_R, other=0.0)
    off_RK = centers - tl.sum(p_RK * centers, 1)[:, None]
    d_RK = dentropy_R[:, None] * (p_RK - label_RK) + destimate_R[:, None] * p_RK * off_RK

    dtype: tl.constexpr = doutput.dtype.element_ty
    column = tl.arange(0, BLOCK)
    inside = valid_R[:, None] & (column < K)[None, :]
    tl.store(doutput + row_R[:, None] * WIDTH + column[None, :], d_RK.to(dtype), mask=inside)
    rest = K + tl.arange(0, BLOCK_WIDTH)
    at = row_R[:, None] * WIDTH + rest[None, :]
    unused = valid_R[:, None] & (rest < WIDTH)[None, :]
    if values is not None:
        guess = tl.arange(0, BLOCK_G)
        unused = unused & (rest >= K + 2 + G)[None, :]
        dcenter_R = tl.sum(d_RK * z_RK, 1) * narrow_R
        dspread_R = tl.sum(d_RK * z_RK * z_RK, 1)
        dspread_R = tl.where((raw_R >= -4.0) & (raw_R <= 3.0), dspread_R, 0.0)
        dbelief_RG = weight_RG * (dcenter_R[:, None] * (value_RG - guess_R[:, None]))
        at_R = doutput + row_R * WIDTH + K
        tl.store(at_R, dcenter_R.to(dtype), mask=valid_R)
        tl.store(at_R + 1, (-dspread_R).to(dtype), mask=valid_R)
        known = valid_R[:, None] & (guess < G)[None, :]
        tl.store((at_R + 2)[:, None] + guess[None, :], dbelief_RG.to(dtype), mask=known)
        part = sums + tl.program_id(0).to(tl.int64) * (2 + G)
        tl.store(part, tl.sum(dspread_R, 0))
        tl.store(part + 1, tl.sum(dspread_R * far_R, 0))
        tl.store(part + 2 + guess, tl.sum(dbelief_RG, 0), mask=guess < G)
    tl.store(doutput + at, tl.zeros((ROWS, BLOCK_WIDTH), dtype), mask=unused)
