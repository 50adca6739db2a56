"""Parts of the transformer: the embedding of time, and the adaLN-zero block along one axis.

B windows, T steps, V variates, D width, C condition width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mdtim.config import NetworkConfig
from mdtim.gpu.fused_block import MAX_WIDTH, BlockWeights, cast, fused_block
from mdtim.gpu.fused_norm import fused_norm
from mdtim.gpu.fused_stack import fused_stack
from mdtim.gpu.triton_compiler import runs_triton
from mdtim.kernels import (
    Axis,
    Implementation,
    axis_attention,
    fits_triton,
    pair_channels,
    rope_table,
)
from mdtim.wanted import Wanted


class TimeEmbedding(nn.Module):
    """Embed the total noise σ(t) of a window, (B,) → (B, C)."""

    def __init__(self, width: int, num_frequencies: int = 64) -> None:
        super().__init__()
        self.num_frequencies = num_frequencies
        self.mlp = nn.Sequential(
            nn.Linear(2 * num_frequencies, width), nn.SiLU(), nn.Linear(width, width)
        )

    def forward(self, sigma_B: Tensor) -> Tensor:
        """Sines and cosines at geometric frequencies, then a small MLP."""
        index = torch.arange(self.num_frequencies, device=sigma_B.device, dtype=torch.float32)
        frequency = torch.exp(-math.log(10_000) / self.num_frequencies * index)
        # σ lies in 0..7; the scale spreads it over the frequencies.
        angle = 100 * sigma_B.float()[:, None] * frequency
        features = torch.cat([angle.cos(), angle.sin()], dim=-1)
        embedded: Tensor = self.mlp(features)
        return embedded


def modulate(h_BTVD: Tensor, shift_BD: Tensor, scale_BD: Tensor) -> Tensor:
    """Shift and scale normalized states by the condition of their window."""
    # One pass over the states instead of two.
    return torch.addcmul(shift_BD[:, None, None], h_BTVD, 1 + scale_BD[:, None, None])


def normalize(h_BTVD: Tensor, modulation_B2D: Tensor, *, fused: bool = True) -> Tensor:
    """Normalize states and modulate them: what the head reads.

    Parameters
    ----------
    fused : take the operator where it can run
    """
    width, dtype = h_BTVD.shape[-1], working_dtype(h_BTVD)
    fits = h_BTVD.is_cuda and runs_triton(h_BTVD) and width % 32 == 0 and width <= MAX_WIDTH
    if fused and fits:
        normal_BTVD: Tensor = fused_norm(h_BTVD.to(dtype), modulation_B2D.to(dtype))
        return normal_BTVD
    shift_BD, scale_BD = modulation_B2D.to(h_BTVD.dtype).unbind(1)
    return modulate(F.layer_norm(h_BTVD, (width,)), shift_BD, scale_BD)


def gelu(x: Tensor) -> Tensor:
    """GELU in its tanh form, x / (1 + exp(-2 √(2 / π) (x + 0.044715 x³)))."""
    learns = torch.is_grad_enabled() and x.requires_grad
    if x.device.type != "cpu" or x.dtype.itemsize < 4 or learns:
        return F.gelu(x, approximate="tanh")
    # On a CPU several passes with a logistic function take half the time of one with tanh.
    scale = 2 * math.sqrt(2 / math.pi)
    return (x * x).mul_(0.044715 * scale).add_(scale).mul_(x).sigmoid_().mul_(x)


class AxisBlock(nn.Module):
    """A DiT block whose attention runs along the steps or along the variates."""

    def __init__(self, config: NetworkConfig, axis: Axis) -> None:
        super().__init__()
        width = config.width
        self.axis: Axis = axis
        self.num_heads = config.num_heads
        self.attention: Implementation = "auto"
        self.fused = True
        """Take the fused operator where it can run and `attention` leaves the choice to it."""
        self.rope = axis == "time" or config.variate_rope
        self.dropout = config.dropout
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, config.mlp_ratio * width)
        self.down = nn.Linear(config.mlp_ratio * width, width)

    def forward(
        self,
        h_BTVD: Tensor,
        modulation_B6D: Tensor,
        seed: Tensor | None = None,
        wanted: Wanted | None = None,
        cast_weights: BlockWeights | None = None,
    ) -> Tensor:
        """Attend along the axis, then the MLP, each gated and added.

        Parameters
        ----------
        h_BTVD : states
        modulation_B6D : shift, scale and gate of the attention, then of the MLP
        seed : int64 scalar for the dropout of the fused operator. Without one a block that drops
            takes PyTorch's operators and their dropout, from the default generator.
        wanted : cells that go on behind the attention, (B, N, 1, D), without gradients
        cast_weights : for the fused operator, see :func:`cast_weights`
        """
        assert wanted is None or not torch.is_grad_enabled()
        dropout = self.dropout if self.training else 0.0
        if self.fits(h_BTVD) and (seed is not None or not dropout):
            return self._forward_fused(h_BTVD, modulation_B6D, seed, dropout, wanted, cast_weights)
        modulation = modulation_B6D.to(h_BTVD.dtype).unbind(1)
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = modulation
        width = h_BTVD.shape[-1:]

        x = modulate(F.layer_norm(h_BTVD, width), shift_a, scale_a)
        x = self._attend(x)
        if wanted is not None:
            x, h_BTVD = wanted.pick(x), wanted.pick(h_BTVD)
        x = self.out(x)
        h_BTVD = torch.addcmul(h_BTVD, gate_a[:, None, None], F.dropout(x, dropout))

        x = modulate(F.layer_norm(h_BTVD, width), shift_m, scale_m)
        x = self.down(gelu(self.up(x)))
        return torch.addcmul(h_BTVD, gate_m[:, None, None], F.dropout(x, dropout))

    def _attend(self, x_BTVD: Tensor) -> Tensor:
        """Attention with operators of PyTorch, or the single Triton operator."""
        weight_ED = self.qkv.weight
        # A CPU takes longer to rotate q and k as halves of a head than to make them. With gradients
        # complex numbers are no faster: their backward pass takes what they save.
        fills = x_BTVD.device.type == "cpu" and not torch.is_grad_enabled()
        complex_numbers = fills and working_dtype(x_BTVD).itemsize >= 4
        paired = self.rope and complex_numbers and self.attention != "triton"
        if paired:
            weight_ED = pair_channels(weight_ED, self.num_heads)
        return axis_attention(
            F.linear(x_BTVD, weight_ED),
            self.num_heads,
            self.axis,
            rope=self.rope,
            paired=paired,
            implementation=self.attention,
        )

    def fits(self, h_BTVD: Tensor) -> bool:
        """Whether the fused operator takes these states."""
        wanted = self.attention == "triton" or (self.attention == "auto" and h_BTVD.is_cuda)
        width, length = h_BTVD.shape[-1], self._length(h_BTVD)
        return (
            self.fused
            and wanted
            and width % 32 == 0
            and width <= MAX_WIDTH
            and fits_triton(h_BTVD, working_dtype(h_BTVD), width // self.num_heads, length)
        )

    def _length(self, h_BTVD: Tensor) -> int:
        return h_BTVD.shape[1 if self.axis == "time" else 2]

    def _forward_fused(
        self,
        h_BTVD: Tensor,
        modulation_B6D: Tensor,
        seed: Tensor | None,
        dropout: float,
        wanted: Wanted | None,
        cast_weights: BlockWeights | None,
    ) -> Tensor:
        if not (dropout or torch.is_grad_enabled()):
            return forward_fused([self], h_BTVD, modulation_B6D, wanted)
        dtype = working_dtype(h_BTVD)
        return fused_block(
            h_BTVD.to(dtype),
            modulation_B6D.to(dtype),
            self.weights,
            self.table(h_BTVD),
            seed if dropout else None,
            dropout=dropout,
            num_heads=self.num_heads,
            over_time=self.axis == "time",
            cast_weights=cast_weights,
        )

    @property
    def weights(self) -> BlockWeights:
        """All parameters, as the fused operators take them."""
        up, down = self.up, self.down
        return BlockWeights(
            self.qkv.weight, self.out.weight, up.weight, up.bias, down.weight, down.bias
        )

    def table(self, h_BTVD: Tensor) -> Tensor | None:
        """(L, d) rotations of the attended positions; None where nothing is rotated."""
        if not self.rope:
            return None
        return rope_table(self._length(h_BTVD), h_BTVD.shape[-1] // self.num_heads, h_BTVD)


def cast_weights(blocks: Sequence[AxisBlock], h_BTVD: Tensor) -> list[BlockWeights | None]:
    """The weights of blocks that take these states fused, all in their dtype by one kernel."""
    if not all(block.fits(h_BTVD) for block in blocks):
        return [None] * len(blocks)
    weights = [weight for block in blocks for weight in block.weights]
    ready, count = cast(weights, working_dtype(h_BTVD)), len(BlockWeights._fields)
    return [BlockWeights(*ready[i : i + count]) for i in range(0, len(ready), count)]


def forward_fused(
    blocks: Sequence[AxisBlock],
    h_BTVD: Tensor,
    modulation_BSD: Tensor,
    wanted: Wanted | None = None,
) -> Tensor:
    """Blocks that all fit, one behind the other, without dropout and gradients.

    Parameters
    ----------
    modulation_BSD : of each block; with two slots more, those of the norm behind the last one
    wanted : cells that go on behind the last attention; without: all
    """
    dtype = working_dtype(h_BTVD)
    return fused_stack(
        h_BTVD.to(dtype),
        modulation_BSD.to(dtype),
        [block.weights for block in blocks],
        [block.table(h_BTVD) for block in blocks],
        num_heads=blocks[0].num_heads,
        over_time=[block.axis == "time" for block in blocks],
        wanted=wanted,
    )


def working_dtype(x: Tensor) -> torch.dtype:
    """The dtype that matrix products take here: autocast's where it is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
