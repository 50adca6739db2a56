"""Parts of the transformer: the embedding of time, and the adaLN-zero block along one axis.

B windows, T steps, V variates, D width, C condition width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mdtim.config import NetworkConfig
from mdtim.kernels import Axis, Implementation, axis_attention


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
    return h_BTVD * (1 + scale_BD[:, None, None]) + shift_BD[:, None, None]


class AxisBlock(nn.Module):
    """A DiT block whose attention runs along the steps or along the variates."""

    def __init__(self, config: NetworkConfig, axis: Axis) -> None:
        super().__init__()
        width = config.width
        self.axis: Axis = axis
        self.num_heads = config.num_heads
        self.attention: Implementation = "auto"
        self.rope = axis == "time" or config.variate_rope
        self.dropout = config.dropout
        self.modulation = nn.Linear(config.condition_width, 6 * width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, config.mlp_ratio * width)
        self.down = nn.Linear(config.mlp_ratio * width, width)

    def forward(self, h_BTVD: Tensor, condition_BC: Tensor) -> Tensor:
        """Attend along the axis, then the MLP, each gated and added."""
        modulation = self.modulation(F.silu(condition_BC)).to(h_BTVD.dtype).chunk(6, dim=-1)
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = modulation
        width = h_BTVD.shape[-1:]

        x = modulate(F.layer_norm(h_BTVD, width), shift_a, scale_a)
        attended = axis_attention(
            self.qkv(x), self.num_heads, self.axis, rope=self.rope, implementation=self.attention
        )
        x = self.out(attended)
        h_BTVD = h_BTVD + gate_a[:, None, None] * F.dropout(x, self.dropout, self.training)

        x = modulate(F.layer_norm(h_BTVD, width), shift_m, scale_m)
        x = self.down(F.gelu(self.up(x), approximate="tanh"))
        h_BTVD = h_BTVD + gate_m[:, None, None] * F.dropout(x, self.dropout, self.training)
        return h_BTVD
