"""Noise of the systems that draw samples by diffusion.

A sample depends on the seed and on its window alone: a window gets the same ones in any batch.
B windows, S samples of each, T steps, V variates.
"""

from __future__ import annotations

import math
import zlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdtim.baselines.protocol import Windows
from mdtim.runtime import keyed_uniform

CELLS_AT_ONCE = 2**19
"""Cells of all windows and samples in one forward pass on a CPU."""
_BYTES_OF_A_CELL = 2**16
"""More than what layers of a few hundred channels hold of it."""


def cell_keys(
    visible_BTV: Windows, num_samples: int, shape: tuple[int, ...] | None = None
) -> Tensor:
    """(B * S, T, V) one number per window, sample and cell, from the window's content.

    Samples of a window lie side by side.

    Parameters
    ----------
    shape : of what a sample is drawn as, if not of the window's cells
    """
    content = np.ascontiguousarray(visible_BTV, dtype=np.float32)
    window = torch.tensor([zlib.crc32(one.tobytes()) for one in content])
    shape = shape or visible_BTV.shape[1:]
    size = math.prod(shape)
    first = (window[:, None] * num_samples + torch.arange(num_samples)).reshape(-1, 1) * size
    return (first + torch.arange(size)).reshape(-1, *shape)


def normal(seed: int, stream: int, keys: Tensor) -> Tensor:
    """Standard normal numbers, a pure function of (seed, stream, key): Box and Muller's."""
    first, second = (keyed_uniform(seed, 2 * stream + half, keys) for half in (0, 1))
    radius = (-2 * torch.log1p(-first)).sqrt()
    return radius * torch.cos(2 * math.pi * second)


def parts(num_windows: int, num_cells: int, device: torch.device) -> list[NDArray[np.int64]]:
    """Which windows are drawn at once, part by part.

    On a GPU, where networks are compiled, all parts of all calls have one size, a power of two: the
    last is filled up with the first windows again, and the caller drops what is drawn of these.

    Parameters
    ----------
    num_cells : of all samples of a window

    Examples
    --------
    >>> [part.tolist() for part in parts(5, CELLS_AT_ONCE // 3, torch.device("cpu"))]
    [[0, 1], [2, 3], [4]]
    """
    size = 2 ** int(math.log2(max(1, _cells_at_once(device) // num_cells)))
    count = -(-num_windows // size)
    length = num_windows if device.type == "cpu" else count * size
    whole = np.arange(length) % max(1, num_windows)
    return np.split(whole, np.arange(size, length, size))


def _cells_at_once(device: torch.device) -> int:
    if device.type == "cpu":
        return CELLS_AT_ONCE
    # The more at once, the less the last round weighs, in which most multiprocessors have no work.
    return torch.cuda.get_device_properties(device).total_memory // _BYTES_OF_A_CELL


def samples_first(drawn_NTV: Tensor, num_samples: int) -> Windows:
    """(S, B, T, V) on the host, of samples that lie side by side."""
    drawn: Windows = drawn_NTV.reshape(-1, num_samples, *drawn_NTV.shape[1:]).cpu().numpy()
    return np.moveaxis(drawn, 1, 0)
