"""Dropout as a pure function of a seed and a place: what the kernels of a block compute.

A hash of 32 bits per element, compared with a threshold: the two rounds of a known good integer
hash (Wellons' lowbias32, without its last shift, which high bits do not need).
"""

from __future__ import annotations

import torch
from torch import Tensor


def dropout_threshold(probability: float) -> int:
    """Hashes below it are dropped."""
    return round(probability * 2**32)


def keep_mask(seed: Tensor, site: int, num_rows: int, width: int, probability: float) -> Tensor:
    """Which elements dropout keeps, by its definition: a pure function of seed, site and place.

    Parameters
    ----------
    seed : int64 scalar
    site : slot of the gate behind the dropout

    Returns
    -------
    (R, D) bool
    """
    low, high = seed & _WORD, (seed >> 32) & _WORD
    first = _scramble((low + site * 0x9E3779B9) & _WORD)
    second = _scramble(high ^ first)
    x = (torch.arange(num_rows * width, device=seed.device) + first) & _WORD
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _WORD
    x = ((x ^ (x >> 15) ^ second) * 0x846CA68B) & _WORD
    kept: Tensor = x >= dropout_threshold(probability)
    return kept.view(num_rows, width)


_WORD = 2**32 - 1


def _scramble(x: Tensor) -> Tensor:
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _WORD
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _WORD
    return x ^ (x >> 16)
