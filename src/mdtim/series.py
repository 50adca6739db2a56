"""The standardized series as they lie on the device, and windows gathered from them.

N rows, B windows, T steps, V variates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdtim.windows import WindowIndex


@dataclass(frozen=True, eq=False)
class DeviceSeries:
    """All rows of a panel, resident on one device."""

    values_NV: Tensor
    """float32, standardized; 0 where missing."""
    observed_NV: Tensor
    """bool."""
    linear_NV: Tensor | None = None
    """float32, every cell interpolated along its whole series, where that is wanted."""

    @classmethod
    def put(
        cls,
        standardized: NDArray[np.float32],
        device: torch.device,
        linear: NDArray[np.float64] | None = None,
    ) -> DeviceSeries:
        """Move (N, V) standardized values, NaN where missing, onto the device.

        Parameters
        ----------
        linear : (N, V) the values interpolated along their series
        """
        observed = ~np.isnan(standardized)
        values = np.ascontiguousarray(np.where(observed, standardized, np.float32(0)))
        observed = np.ascontiguousarray(observed)
        line = None
        if linear is not None:
            line = torch.from_numpy(np.ascontiguousarray(linear, dtype=np.float32)).to(device)
        return cls(torch.from_numpy(values).to(device), torch.from_numpy(observed).to(device), line)

    def gather(self, starts_B: Tensor, ends_B: Tensor, length: int) -> WindowBatch:
        """Cut windows; cells past a window's end count as missing."""
        rows_BT = starts_B[:, None] + torch.arange(length, device=starts_B.device)
        inside_BT = rows_BT < ends_B[:, None]
        rows_BT = rows_BT.clamp_max(len(self.values_NV) - 1)
        observed_BTV = self.observed_NV[rows_BT] & inside_BT[..., None]
        values_BTV = torch.where(observed_BTV, self.values_NV[rows_BT], 0.0)
        linear_BTV = None if self.linear_NV is None else self.linear_NV[rows_BT]
        return WindowBatch(values_BTV, observed_BTV, rows_BT, inside_BT, linear_BTV)

    def batches(self, index: WindowIndex, batch_size: int) -> Iterator[WindowBatch]:
        """Yield all windows of an index, in its order."""
        windows = DeviceWindows.put(index, self.values_NV.device)
        for begin in range(0, len(windows), batch_size):
            part = slice(begin, begin + batch_size)
            yield self.gather(windows.starts[part], windows.ends[part], windows.length)


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
    linear_BTV: Tensor | None = None
    """float32, interpolation along the whole series, if the series bring it."""

    def __len__(self) -> int:
        return len(self.values_BTV)

    def cell_keys(self) -> Tensor:
        """(B, T, V) int64, one number per cell of the panel."""
        num_variates = self.values_BTV.shape[2]
        variate = torch.arange(num_variates, device=self.rows_BT.device)
        return self.rows_BT[..., None] * num_variates + variate


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
