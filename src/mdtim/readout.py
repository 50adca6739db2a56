"""From what the network says of a cell to its distribution, or to the loss.

Here it is defined, in PyTorch's operators; on a GPU kernels of :mod:`mdtim.gpu.fused_readout` do
the same without writing logits down.

B windows, T steps, V variates, K output bins, G guesses, P what the head says of a cell.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from mdtim.closed_form.guesses import Guesses
from mdtim.config import DiffusionConfig
from mdtim.gpu.fused_readout import fused_probs, fused_terms
from mdtim.gpu.triton_compiler import runs_triton
from mdtim.network import FactorizedDiT, Tokens
from mdtim.wanted import Wanted


def cell_probs(network: FactorizedDiT, tokens: Tokens, wanted: Wanted | None = None) -> Tensor:
    """(B, T, V, K) float32 probabilities of the output bins, or (B, N, 1, K) of wanted cells."""
    output_BTVP = network.say(tokens, wanted)
    guesses = tokens.guesses
    if guesses is not None and wanted is not None:
        guesses = guesses.at(wanted)
    if not _fits(network, output_BTVP):
        return F.softmax(network.logits(output_BTVP, guesses), dim=-1)
    shape = (*output_BTVP.shape[:3], network.num_outputs)
    constants = (network.num_outputs, float(network.reach))
    probs: Tensor = fused_probs(*_rows(network, guesses, output_BTVP), *constants)
    return probs.view(shape)


def cell_terms(
    network: FactorizedDiT, tokens: Tokens, target_BTV: Tensor, config: DiffusionConfig
) -> tuple[Tensor, Tensor]:
    """What the loss needs of every cell.

    Parameters
    ----------
    target_BTV : float coordinates of the true values on the output grid

    Returns
    -------
    entropy_BTV : float32, cross-entropy to the soft label (see :func:`soft_cross_entropy`)
    estimate_BTV : float32, expectation, in window units
    """
    output_BTVP = network.say(tokens)
    if not _fits(network, output_BTVP):
        logits = network.logits(output_BTVP, tokens.guesses)
        # Not a product: autocast would round it.
        estimate_BTV = (F.softmax(logits, dim=-1) * network.centers).sum(-1)
        return soft_cross_entropy(logits, target_BTV, config), estimate_BTV
    entropy_R, estimate_R = fused_terms(
        *_rows(network, tokens.guesses, output_BTVP),
        target_BTV.contiguous().view(-1),
        network.num_outputs,
        float(network.reach),
        config.label_width,
        config.label_variance,
    )
    return entropy_R.view(target_BTV.shape), estimate_R.view(target_BTV.shape)


def _fits(network: FactorizedDiT, output_BTVP: Tensor) -> bool:
    """Whether the operators take what the head says."""
    return network.fused_readout and output_BTVP.is_cuda and runs_triton(output_BTVP)


def _rows(
    network: FactorizedDiT, guesses: Guesses | None, output_BTVP: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Output, guesses, distances and the prior's law as the operators take them."""
    output_RP = output_BTVP.contiguous().flatten(0, 2)
    if guesses is None:
        return output_RP, None, None, None
    return (
        output_RP,
        guesses.values_BTVG.contiguous().flatten(0, 2),
        guesses.nearest_BTV.contiguous().flatten(),
        torch.cat([network.prior, network.belief]),
    )


def soft_label_offsets(config: DiffusionConfig) -> tuple[list[int], list[float]]:
    """Bins reached by a soft label, as offsets from the target, and their unnormalized weights."""
    offsets = list(range(-config.label_width, config.label_width + 1))
    return offsets, [math.exp(-(offset**2) / config.label_variance) for offset in offsets]


def label_blur(config: DiffusionConfig) -> float:
    """Variance in bins² that soft labels and stochastic discretization add to what is learned."""
    offsets, weights = soft_label_offsets(config)
    spread = sum(w * offset**2 for offset, w in zip(offsets, weights, strict=True)) / sum(weights)
    return spread + 1 / 6  # rounding c to its neighbours adds f(1 - f), 1/6 on average


def soft_cross_entropy(logits: Tensor, target: Tensor, config: DiffusionConfig) -> Tensor:
    """Cross-entropy to the ordinal soft label around `target`, without building the label.

    Parameters
    ----------
    logits : (..., K)
    target : (...,) float coordinates 0..K-1. A whole number y is the label s(y) of the paper; a
        coordinate between two is their mix, the expectation over stochastic discretization.

    Returns
    -------
    (...,) -⟨s, log p⟩
    """
    num_bins = logits.shape[-1]
    offsets, weights = soft_label_offsets(config)
    lower = target.floor()
    upper_share = target - lower
    picked = torch.zeros_like(target)
    for whole, share in ((lower, 1 - upper_share), (lower + 1, upper_share)):
        index = whole.long()
        score, total = torch.zeros_like(target), torch.zeros_like(target)
        for offset, weight in zip(offsets, weights, strict=True):
            place = index + offset
            inside = weight * ((place >= 0) & (place < num_bins)).to(logits.dtype)
            logit = logits.gather(-1, place.clamp(0, num_bins - 1)[..., None]).squeeze(-1)
            score, total = score + inside * logit, total + inside
        picked = picked + share * score / total.clamp_min(1e-12)
    return logits.logsumexp(-1) - picked
