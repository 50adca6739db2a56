"""Two views of a series by frequency. B windows, T steps, V variates."""

from __future__ import annotations

import torch
from torch import Tensor


def high_frequencies(values_BTV: Tensor, cutoff: float) -> Tensor:
    """Keep the frequencies from a share of the highest one on.

    Parameters
    ----------
    cutoff : share in 0..1 of the frequency range that is removed, from zero on
    """
    spectrum = torch.fft.rfft(values_BTV, dim=1)
    first = int(cutoff * (spectrum.shape[1] - 1)) + 1
    kept = torch.arange(spectrum.shape[1], device=spectrum.device) >= first
    view: Tensor = torch.fft.irfft(spectrum * kept[:, None], n=values_BTV.shape[1], dim=1)
    return view


def dominant_frequencies(values_BTV: Tensor, count: int) -> Tensor:
    """Keep the few frequencies of the largest amplitude, window by window and variate by variate.

    Examples
    --------
    >>> wave = torch.sin(torch.arange(16) * torch.pi / 4).reshape(1, 16, 1)
    >>> bool(torch.allclose(dominant_frequencies(wave, 1), wave, atol=1e-6))
    True
    """
    spectrum = torch.fft.rfft(values_BTV, dim=1)
    amplitude = spectrum.abs()
    chosen = amplitude.topk(min(count, amplitude.shape[1]), dim=1).indices
    kept = torch.zeros_like(amplitude).scatter(1, chosen, 1.0)
    view: Tensor = torch.fft.irfft(spectrum * kept, n=values_BTV.shape[1], dim=1)
    return view
