"""Noise of the systems that draw samples by diffusion.

A sample depends on the seed and on its window alone: a window gets the same ones in any batch.
B windows, S samples of each, T steps, V variates.
"""

from __future__ import annotations

import math
import zlib

import numpy as np
import torch
from torch import Tensor

from mdtim.baselines.protocol import Windows
from mdtim.runtime import keyed_uniform


def cell_keys(visible_BTV: Windows, num_samples: int) -> Tensor:
    """(B * S, T, V) one number per window, sample and cell, from the window's content.

    Samples of a window lie side by side.
    """
    content = np.ascontiguousarray(visible_BTV, dtype=np.float32)
    window = torch.tensor([zlib.crc32(one.tobytes()) for one in content])
    size = int(np.prod(visible_BTV.shape[1:]))
    first = (window[:, None] * num_samples + torch.arange(num_samples)).reshape(-1, 1) * size
    return (first + torch.arange(size)).reshape(-1, *visible_BTV.shape[1:])


def normal(seed: int, stream: int, keys: Tensor) -> Tensor:
    """Standard normal numbers, a pure function of (seed, stream, key): Box and Muller's."""
    first, second = (keyed_uniform(seed, 2 * stream + half, keys) for half in (0, 1))
    radius = (-2 * torch.log1p(-first)).sqrt()
    return radius * torch.cos(2 * math.pi * second)


def samples_first(drawn_NTV: Tensor, num_samples: int) -> Windows:
    """(S, B, T, V) on the host, of samples that lie side by side."""
    drawn: Windows = drawn_NTV.reshape(-1, num_samples, *drawn_NTV.shape[1:]).cpu().numpy()
    return np.moveaxis(drawn, 1, 0)
