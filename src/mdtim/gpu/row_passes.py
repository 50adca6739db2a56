"""Passes over rows of states: norm, modulation, dropout, residual and GELU, on a GPU.

Each reads and writes every row once, in a kernel of :mod:`mdtim.gpu.triton_rows`. Row tensors share
one dtype and are contiguous; nothing here checks it. Sums over a window's rows come in float32
parts.

Shapes: B windows, T steps, V variates, N = T * V cells of a window, R = B * N rows, D width,
F = mlp_ratio * D, C chunks of a window's rows, S slots of sums or of a modulation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mdtim.gpu import triton_rows
from mdtim.gpu.dropout import dropout_threshold
from mdtim.gpu.triton_compiler import HAS_TRITON, on_device_of

if HAS_TRITON:
    import triton

SHIFT_A, SCALE_A, GATE_A, SHIFT_M, SCALE_M, GATE_M, BIAS_DOWN = range(7)
"""Slots of the sums over rows; the first six are also those of the modulation (B, 6, D). The two
dropouts of a block are told apart by the slot of the gate behind them."""
NUM_SUMS = 7
BLOCK_SLOTS = 6
"""Vectors that modulate a block: shift, scale and gate of the attention, then of the MLP."""
HEAD_SLOTS = 2
"""Vectors that modulate what the head reads: shift and scale."""


class Tiling(NamedTuple):
    """How a program takes its rows."""

    elements: int
    """That it holds of each tensor at a time."""
    warps: int
    stages: int
    """Tiles in flight: while one is worked on, the next are loaded."""


# The fastest of many on an H200. Without the stages, backward passes take half as long again.
_FORWARD = Tiling(2048, warps=4, stages=3)
_BACKWARD = Tiling(1024, warps=2, stages=3)
_TILE = 2048  # a chunk of rows is a multiple of this
_PROGRAMS = 2048  # some two waves over the multiprocessors of a large GPU
_GELU_ROWS = 128  # rows of a program of the GELU's backward pass
_LEVEL_ROWS = 8  # steps of a program that adds levels


@dataclass(frozen=True)
class Rows:
    """How the rows of (R, D) tensors are divided among programs."""

    num_windows: int
    window_rows: int
    """N."""
    width: int
    """D."""
    dropout: float
    """Probability that an element is dropped; 0 draws nothing."""
    first_window: int = 0
    """Of a part of a batch: dropout counts its rows from the first window of the batch."""

    @property
    def block(self) -> int:
        """Columns of a tile, a power of two."""
        return 1 << (self.width - 1).bit_length()

    @property
    def chunk_rows(self) -> int:
        """Rows of a program, all of one window: tiles to a power of two, so that few differ."""
        tile = _TILE // self.block
        tiles = min(self.num_windows * self.window_rows // _PROGRAMS, self.window_rows) // tile
        return tile << (max(1, tiles).bit_length() - 1)

    @property
    def num_chunks(self) -> int:
        """C."""
        return max(1, -(-self.window_rows // self.chunk_rows))

    def new_sums(self, like: Tensor, slots: int = NUM_SUMS) -> Tensor:
        """Room for the parts of the sums, (B, C, S, D) float32."""
        shape = (self.num_windows, self.num_chunks, slots, self.width)
        return like.new_empty(shape, dtype=torch.float32)

    def launch(
        self,
        kernel: Any,
        modulation_BSD: Tensor,
        tiling: Tiling,
        *arguments: Tensor | None,
        **constants: int,
    ) -> None:
        """Run a kernel with one program per chunk of a window, which it takes tile by tile.

        The windows of the modulation may lie apart, as in a part of a larger one.
        """
        if self.num_windows * self.window_rows == 0:
            return
        assert modulation_BSD.stride()[1:] == (self.width, 1)
        with on_device_of(modulation_BSD):
            kernel[(self.num_windows * self.num_chunks,)](
                *arguments,
                self.window_rows,
                self.first_window * self.window_rows % 2**31,
                modulation_BSD.stride(0),
                **constants,
                D=self.width,
                BLOCK=self.block,
                ROWS=tiling.elements // self.block,
                CHUNK=self.chunk_rows,
                STAGES=tiling.stages,
                THRESHOLD=dropout_threshold(self.dropout),
                KEPT=1 / (1 - self.dropout),
                num_warps=tiling.warps,
            )


def normalize(rows: Rows, h_RD: Tensor, modulation_BSD: Tensor) -> Tensor:
    """LN(h) * (1 + scale) + shift, with the first two slots: what attention and head read."""
    x_RD = torch.empty_like(h_RD)
    tensors = (h_RD, None, modulation_BSD, None, None, x_RD)
    constants = {"GATE": -1, "SHIFT": SHIFT_A}
    rows.launch(triton_rows.forward_kernel, modulation_BSD, _FORWARD, *tensors, **constants)
    return x_RD


def add_and_normalize(
    rows: Rows,
    h_RD: Tensor,
    y_RD: Tensor,
    modulation_BSD: Tensor,
    seed: Tensor | None,
    *,
    gate: int,
    out: Tensor,
) -> Tensor:
    """Write h + gate * dropout(y) into `out`, which may be h itself; return the sum normalized.

    Parameters
    ----------
    gate : slot of the gate, `GATE_A` or `GATE_M`; shift and scale are the two slots behind it,
        those of the MLP, or of the next block where the modulation goes on so far
    """
    x_RD = torch.empty_like(h_RD)
    tensors = (h_RD, y_RD, modulation_BSD, seed, out, x_RD)
    constants = {"GATE": gate, "SHIFT": gate + 1}
    rows.launch(triton_rows.forward_kernel, modulation_BSD, _FORWARD, *tensors, **constants)
    return x_RD


def add(
    rows: Rows, h_RD: Tensor, y_RD: Tensor, modulation_B6D: Tensor, seed: Tensor | None, out: Tensor
) -> None:
    """Write h + gate * dropout(y) of the MLP into `out`, which may be h itself."""
    tensors = (h_RD, y_RD, modulation_B6D, seed, out, None)
    constants = {"GATE": GATE_M, "SHIFT": -1}
    rows.launch(triton_rows.forward_kernel, modulation_B6D, _FORWARD, *tensors, **constants)


def add_backward(
    rows: Rows,
    grad_RD: Tensor,
    y_RD: Tensor,
    modulation_B6D: Tensor,
    seed: Tensor | None,
    sums_BCSD: Tensor,
) -> Tensor:
    """Gradient of y in :func:`add`; sums for the gate and for the bias behind y."""
    dy_RD = torch.empty_like(y_RD)
    tensors = (grad_RD, y_RD, modulation_B6D, seed, dy_RD, sums_BCSD)
    constants = {"GATE": GATE_M, "SUMS": NUM_SUMS}
    rows.launch(triton_rows.add_backward_kernel, modulation_B6D, _BACKWARD, *tensors, **constants)
    return dy_RD


def add_and_normalize_backward(
    rows: Rows,
    dx_RD: Tensor,
    grad_RD: Tensor,
    h_RD: Tensor,
    y_RD: Tensor,
    modulation_B6D: Tensor,
    seed: Tensor | None,
    sums_BCSD: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of h and y in :func:`add_and_normalize`, and its x once more."""
    dh_RD, dy_RD, x_RD = (torch.empty_like(h_RD) for _ in range(3))
    tensors = (dx_RD, grad_RD, h_RD, y_RD, modulation_B6D, seed, dh_RD, dy_RD, x_RD, sums_BCSD)
    constants = {"GATE": GATE_A, "SHIFT": SHIFT_M, "SUMS": NUM_SUMS}
    rows.launch(
        triton_rows.normalize_backward_kernel, modulation_B6D, _BACKWARD, *tensors, **constants
    )
    return dh_RD, dy_RD, x_RD


def normalize_backward(
    rows: Rows,
    dx_RD: Tensor,
    grad_RD: Tensor | None,
    h_RD: Tensor,
    modulation_BSD: Tensor,
    sums_BCSD: Tensor,
    *,
    dh_RD: Tensor,
    x_RD: Tensor | None,
) -> None:
    """Write the gradient of h in :func:`normalize`, plus that past it, into `dh_RD`.

    Its result is written once more where there is an `x_RD`.
    """
    tensors = (dx_RD, grad_RD, h_RD, None, modulation_BSD, None, dh_RD, None, x_RD, sums_BCSD)
    constants = {"GATE": -1, "SHIFT": SHIFT_A, "SUMS": sums_BCSD.shape[2]}
    rows.launch(
        triton_rows.normalize_backward_kernel, modulation_BSD, _BACKWARD, *tensors, **constants
    )


def add_level_(h_BTVD: Tensor, level_BVD: Tensor) -> None:
    """Add what all steps of a variate have in common to each of them, in place."""
    num_windows, num_steps, num_variates, width = h_BTVD.shape
    num_columns, tile = num_variates * width, _TILE // _LEVEL_ROWS
    if h_BTVD.numel():
        grid = (num_windows * triton.cdiv(num_steps, _LEVEL_ROWS), triton.cdiv(num_columns, tile))
        sizes = {"ROWS": _LEVEL_ROWS, "BLOCK": tile}
        with on_device_of(h_BTVD):
            triton_rows.add_level_kernel[grid](
                h_BTVD, level_BVD, num_steps, num_columns, **sizes, num_warps=4
            )


def gather(x_RD: Tensor, rows_K: Tensor) -> Tensor:
    """(K, D) some of the rows, in any order."""
    num_rows, width = len(rows_K), x_RD.shape[1]
    out_KD = x_RD.new_empty((num_rows, width))
    block = int(triton.next_power_of_2(width))
    tile = max(1, _TILE // block)
    if num_rows:
        sizes = {"D": width, "BLOCK": block, "ROWS": tile}
        with on_device_of(x_RD):
            triton_rows.gather_kernel[(triton.cdiv(num_rows, tile),)](
                x_RD, rows_K, out_KD, num_rows, **sizes, num_warps=4
            )
    return out_KD


def gelu(pre_RF: Tensor) -> Tensor:
    """GELU in its tanh form."""
    act_RF = torch.empty_like(pre_RF)
    if len(pre_RF):
        grid = (triton.cdiv(pre_RF.numel(), 2 * _TILE),)
        sizes = {"F": pre_RF.shape[1], "BLOCK": 2 * _TILE}
        with on_device_of(pre_RF):
            triton_rows.gelu_kernel[grid](pre_RF, act_RF, len(pre_RF), **sizes, num_warps=4)
    return act_RF


def gelu_backward_(dact_RF: Tensor, pre_RF: Tensor) -> tuple[Tensor, Tensor]:
    """Turn the gradient of GELU's output into that of its input, in place.

    Returns
    -------
    act_RF : GELU's output once more
    sum_F : float32, the sum of the new gradient over the rows
    """
    num_rows, width = pre_RF.shape
    act_RF = torch.empty_like(pre_RF)
    num_chunks = -(-num_rows // _GELU_ROWS)
    sums_CF = pre_RF.new_empty((num_chunks, width), dtype=torch.float32)
    block = min(256, int(triton.next_power_of_2(width)))
    if num_rows:
        with on_device_of(pre_RF):
            triton_rows.gelu_backward_kernel[(num_chunks, triton.cdiv(width, block))](
                dact_RF,
                pre_RF,
                act_RF,
                sums_CF,
                num_rows,
                F=width,
                BLOCK=block,
                ROWS=_TILE // block,
                CHUNK=_GELU_ROWS,
                num_warps=4,
            )
    return act_RF, sums_CF.sum(0)
