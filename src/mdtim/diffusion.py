"""The masked diffusion process: schedule, forward corruption, objective and reverse steps.

Pure functions; the network is passed in. B windows, T steps, V variates, K output bins.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mdtim.closed_form.guesses import Guesses, Relations, guess_by_line, guess_by_relations
from mdtim.config import DiffusionConfig, Prior
from mdtim.distribution import BinDistribution
from mdtim.network import FactorizedDiT, Tokens
from mdtim.readout import cell_terms
from mdtim.tokenizer import Tokenizer, WindowScale, believable, window_scale

EPSILON = 1e-3


def total_noise(time: Tensor) -> Tensor:
    """Log-linear schedule σ(t) = -log(1 - (1-ε)t): a cell is masked with probability (1-ε)t."""
    return -torch.log1p(-(1 - EPSILON) * time)


def mask_rate(time: Tensor) -> Tensor:
    """Probability (1-ε)t that a cell is masked at a time: 1 - exp(-σ(t))."""
    return (1 - EPSILON) * time


def loss_weight(time: Tensor) -> Tensor:
    """w(t) = σ'(t) / (exp σ(t) - 1), which is 1 / t."""
    sigma = total_noise(time)
    rate = (1 - EPSILON) / (1 - (1 - EPSILON) * time)
    return rate / torch.expm1(sigma)


def stratified_times(count: int, generator: torch.Generator) -> Tensor:
    """Times of a batch, one from each of `count` equal slices of [ε, 1]."""
    device = generator.device
    offset = torch.rand(count, generator=generator, device=device)
    even = (torch.arange(count, device=device) + offset) / count
    return EPSILON + (1 - EPSILON) * even


def tokenize(
    tokenizer: Tokenizer,
    values_BTV: Tensor,
    visible_BTV: Tensor,
    *,
    prior: Prior,
    relations: Relations | None = None,
    time_B: Tensor | None = None,
    noise_BTV: Tensor | None = None,
    scale: WindowScale | None = None,
) -> tuple[Tokens, WindowScale]:
    """Build the network's input from what is visible, and only from that.

    Parameters
    ----------
    values_BTV : standardized values, anything finite where not visible
    visible_BTV : bool
    prior : which closed-form guesses the network wants
    relations : of the table, for a prior that looks at them
    time_B : diffusion time to condition on; None is the actual masked share of each window
    noise_BTV : for drawn tokens (see :meth:`Tokenizer.encode`)
    scale : a scale to keep (that of the anchors, in the reverse process) instead of a new one
    """
    values_BTV = believable(values_BTV, visible_BTV)
    if scale is None:
        config = tokenizer.config
        reach = config.output_range if config.extended else None
        scale = window_scale(values_BTV, visible_BTV, config.min_range, config.scarcity, reach)
    x_BTV = torch.where(visible_BTV, scale.normalize(values_BTV), 0.0)
    if time_B is None:
        time_B = 1 - visible_BTV.to(values_BTV.dtype).mean((1, 2))
    tokens = Tokens(
        coordinates_BTV=tokenizer.encode(x_BTV, visible_BTV, noise_BTV),
        sigma_B=total_noise(time_B),
        level_BV3=scale.level_BV3(),
        guesses=_guesses(prior, values_BTV, x_BTV, visible_BTV, relations, scale),
    )
    return tokens, scale


def _guesses(
    prior: Prior,
    values_BTV: Tensor,
    x_BTV: Tensor,
    visible_BTV: Tensor,
    relations: Relations | None,
    scale: WindowScale,
) -> Guesses | None:
    if prior == "none":
        return None
    if prior == "line":
        return guess_by_line(x_BTV, visible_BTV)
    assert relations is not None
    known_BTV = torch.where(visible_BTV, values_BTV, 0.0)
    return guess_by_relations(
        known_BTV,
        visible_BTV,
        relations,
        scale.center_B1V,
        scale.half_B1V,
        dynamics=prior == "dynamics",
    )


def spectral_distance(difference_BTV: Tensor) -> Tensor:
    """(B, V) L1 norm of the orthonormal Fourier transform along the steps, mean over frequencies.

    Estimate and truth enter as their difference, since the transform is linear. Up to 512 steps
    it is two real matrix products, which compilers fuse; the fast transform beyond.
    """
    num_steps = difference_BTV.shape[1]
    num_half = num_steps // 2 + 1
    index = torch.arange(num_half, device=difference_BTV.device)
    # A real signal's other half mirrors this one.
    twice = 2 - ((index == 0) | (2 * index == num_steps)).to(difference_BTV.dtype)
    if num_steps <= 512:
        step = torch.arange(num_steps, device=difference_BTV.device)
        angle = (2 * math.pi / num_steps) * ((index[:, None] * step) % num_steps)
        angle = angle.to(difference_BTV.dtype)
        real = torch.einsum("ft,btv->bfv", angle.cos(), difference_BTV)
        imaginary = torch.einsum("ft,btv->bfv", angle.sin(), difference_BTV)
    else:
        transform = torch.fft.rfft(difference_BTV, dim=1)
        real, imaginary = transform.real, transform.imag
    total = ((real.abs() + imaginary.abs()) * twice[:, None]).sum(1)
    mean: Tensor = total / num_steps**1.5
    return mean


def masked_loss(
    network: FactorizedDiT,
    tokenizer: Tokenizer,
    config: DiffusionConfig,
    *,
    tokens: Tokens,
    scale: WindowScale,
    values_BTV: Tensor,
    observed_BTV: Tensor,
    hidden_BTV: Tensor,
    time_B: Tensor,
    target_noise_BTV: Tensor | None,
) -> Tensor:
    """Ordinal-spectral objective of one batch: a scalar.

    `tokens` and `scale` are those of the visible cells, observed and not hidden. Missing cells
    (not observed) are never targets.
    """
    scored = (observed_BTV & hidden_BTV).to(values_BTV.dtype)
    reach = tokenizer.config.output_range
    x_BTV = scale.normalize(values_BTV).clamp(-reach, reach)
    if network.config.continuous:
        estimate = network(tokens).squeeze(-1)
        loss_BTV = (estimate - x_BTV) ** 2
    else:
        target = tokenizer.target(x_BTV, target_noise_BTV)
        loss_BTV, estimate = cell_terms(network, tokens, target, config)
    weight_B = loss_weight(time_B)
    num_cells = observed_BTV.sum().clamp_min(1)
    loss: Tensor = (weight_B[:, None, None] * scored * loss_BTV).sum() / num_cells
    if config.spectral_weight:
        distance_BV = spectral_distance(scored * (estimate - x_BTV))
        # Per cell, like the first term: a window of T cells has T frequencies.
        cells_B = observed_BTV.shape[1] * weight_B
        loss = loss + config.spectral_weight * (cells_B[:, None] * distance_BV).sum() / num_cells
    return loss


def reverse_step(
    distribution: BinDistribution,
    masked_BTV: Tensor,
    *,
    time: float,
    next_time: float,
    reveal_BTV: Tensor,
    pick_BTV: Tensor,
) -> tuple[Tensor, Tensor]:
    """One step of the reverse kernel, from `time` down to `next_time`.

    A masked cell is unmasked with probability (α_s - α_t) / (1 - α_t); its value is then drawn from
    the predicted distribution, which has no `[MASK]` entry (zero-masking). Unmasked cells are
    carried over: they are never in the returned mask.

    Parameters
    ----------
    reveal_BTV, pick_BTV : uniform numbers in [0, 1)

    Returns
    -------
    revealed_BTV : bool, a subset of `masked_BTV`
    drawn_BTV : values, meaningful where revealed
    """
    kept, kept_next = 1 - (1 - EPSILON) * time, 1 - (1 - EPSILON) * next_time
    # At the last step the ε that the schedule never masks is unmasked too.
    chance = 1.0 if next_time <= 0 else (kept_next - kept) / (1 - kept)
    return masked_BTV & (reveal_BTV < chance), distribution.quantile(pick_BTV)
