"""The standardized series as they lie on the device, and windows gathered from them.

N rows, B windows, T steps, V variates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdtim.windows import WindowIndex


def whole_batch(cells: int) -> int:
    """Windows of so many cells each whose cells come in eights.

    A CPU's matrix products give a row the same bits beside any multiple of eight rows, but not
    beside three or five: with multiples of such batches the answer hangs on no batch size, to the
    last bit. A window of a multiple of eight steps is a batch of its own.
    """
    return 8 // math.gcd(8, cells)


@dataclass(frozen=True, eq=False)
class DeviceSeries:
    """All rows of a panel, resident on one device."""

    values_NV: Tensor
    """float32, standardized; 0 where missing."""
    observed_NV: Tensor
    """bool."""
    linear_NV: Tensor | None = None
    """float32, every cell interpolated along its whole series, where that is wanted; NaN where the
    series knows nothing of a variate."""
    keys_N: Tensor | None = None
    """int64, what the random numbers of a row hang on; None: its number in the panel."""
    usual_NV: Tensor | None = None
    """float32, what is usual at the time of each row, where the table tells."""

    @classmethod
    def put(
        cls,
        standardized: NDArray[np.float32],
        device: torch.device,
        linear: NDArray[np.float64] | None = None,
        keys: NDArray[np.int64] | None = None,
        usual: NDArray[np.float64] | None = None,
    ) -> DeviceSeries:
        """Move (N, V) standardized values, NaN where missing, onto the device.

        Parameters
        ----------
        linear : (N, V) the values interpolated along their series
        keys : (N,) what the random numbers of each row hang on
        usual : (N, V) what is usual at the time of each row
        """
        observed = ~np.isnan(standardized)
        values = np.ascontiguousarray(np.where(observed, standardized, np.float32(0)))
        observed = np.ascontiguousarray(observed)
        line, expected = (
            None if part is None else torch.from_numpy(np.ascontiguousarray(part, np.float32))
            for part in (linear, usual)
        )
        return cls(
            torch.from_numpy(values).to(device),
            torch.from_numpy(observed).to(device),
            None if line is None else line.to(device),
            None if keys is None else torch.from_numpy(keys).to(device),
            None if expected is None else expected.to(device),
        )

    def gather(self, starts_B: Tensor, ends_B: Tensor, length: int) -> WindowBatch:
        """Cut windows; cells past a window's end count as missing."""
        rows_BT = starts_B[:, None] + torch.arange(length, device=starts_B.device)
        inside_BT = rows_BT < ends_B[:, None]
        rows_BT = rows_BT.clamp_max(len(self.values_NV) - 1)
        observed_BTV = self.observed_NV[rows_BT] & inside_BT[..., None]
        values_BTV = torch.where(observed_BTV, self.values_NV[rows_BT], 0.0)
        linear_BTV = None if self.linear_NV is None else self.linear_NV[rows_BT]
        usual_BTV = None if self.usual_NV is None else self.usual_NV[rows_BT]
        keys_BT = rows_BT if self.keys_N is None else self.keys_N[rows_BT]
        return WindowBatch(
            values_BTV, observed_BTV, rows_BT, inside_BT, keys_BT, linear_BTV, usual_BTV
        )

    def batches(
        self, index: WindowIndex, batch_size: int, *, whole: bool = False
    ) -> Iterator[WindowBatch]:
        """Yield all windows of an index, in its order.

        Parameters
        ----------
        whole : fill every batch up to a multiple of :func:`whole_batch` windows, with repetitions
            of its last one; its `count` says how many are the index's
        """
        device = self.values_NV.device
        windows = DeviceWindows.put(index, device)
        unit = whole_batch(index.length * self.values_NV.shape[1]) if whole else 1
        for begin in range(0, len(windows), batch_size):
            count = min(batch_size, len(windows) - begin)
            size = unit * -(-count // unit)
            chosen = begin + torch.arange(size, device=device).clamp_max(count - 1)
            batch = self.gather(windows.starts[chosen], windows.ends[chosen], windows.length)
            yield replace(batch, repeated=size - count)


@dataclass(frozen=True, eq=False)
class WindowBatch:
    """A batch of windows."""

    values_BTV: Tensor
    """float32, 0 where not observed."""
    observed_BTV: Tensor
    """bool."""
    rows_BT: Tensor
    """int64, the panel row of each step."""
    inside_BT: Tensor
    """bool, False for steps past the end of the series."""
    keys_BT: Tensor
    """int64, what the random numbers of each step hang on."""
    linear_BTV: Tensor | None = None
    """float32, interpolation along the whole series, if the series bring it; NaN as there."""
    usual_BTV: Tensor | None = None
    """float32, what is usual at the time of each step, if the series bring it."""
    repeated: int = 0
    """Windows at the end that only repeat the one before them."""

    @property
    def count(self) -> int:
        """Windows without the repeated ones."""
        return len(self.values_BTV) - self.repeated

    def cells(self) -> Tensor:
        """(B, T, V) int64, the number of each cell in the panel."""
        return self._numbered(self.rows_BT)

    def cell_keys(self) -> Tensor:
        """(B, T, V) int64, what the random numbers of each cell hang on."""
        return self._numbered(self.keys_BT)

    def _numbered(self, rows_BT: Tensor) -> Tensor:
        num_variates = self.values_BTV.shape[2]
        return rows_BT[..., None] * num_variates + torch.arange(num_variates, device=rows_BT.device)


@dataclass(frozen=True, eq=False)
class DeviceWindows:
    """A window index on the device."""

    starts: Tensor
    ends: Tensor
    length: int

    @classmethod
    def put(cls, index: WindowIndex, device: torch.device) -> DeviceWindows:
        """Copy an index onto the device."""
        return cls(
            torch.from_numpy(index.starts).to(device),
            torch.from_numpy(index.ends).to(device),
            index.length,
        )

    def __len__(self) -> int:
        return len(self.starts)
