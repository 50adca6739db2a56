"""The guided noise network: residual layers along time and variates, each with a look at the guide.

B windows, T steps, V variates, C channels, G guide views.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mdtim.baselines.fgti.filters import dominant_frequencies, high_frequencies


@dataclass(frozen=True, kw_only=True)
class NetworkSizes:
    """Widths and depths of the network, and its filters."""

    num_channels: int
    num_layers: int
    num_heads: int
    time_width: int
    variate_width: int
    num_diffusion_steps: int
    guide_layers: int
    cutoff: float
    """Share of the frequencies that the high view leaves out."""
    num_dominant: int
    """Frequencies that the dominant view keeps."""


@dataclass(frozen=True, eq=False)
class Condition:
    """What a window says, whatever the noise: made once, used at every step."""

    visible_BTV: Tensor
    """Values, 0 where not visible."""
    side_BTVF: Tensor
    """Embeddings of time and variate, and whether the cell is visible."""
    guide_BTVGC: Tensor

    def repeat(self, times: int) -> Condition:
        """The same condition for several samples of each window."""
        return Condition(
            self.visible_BTV.repeat_interleave(times, 0),
            self.side_BTVF.repeat_interleave(times, 0),
            self.guide_BTVGC.repeat_interleave(times, 0),
        )


class GuidedNoiseNetwork(nn.Module):
    """Says which noise is in the hidden cells of a window."""

    def __init__(self, sizes: NetworkSizes, num_variates: int) -> None:
        super().__init__()
        channels = sizes.num_channels
        self.sizes = sizes
        self.variates = nn.Embedding(num_variates, sizes.variate_width)
        self.guide_in = nn.Linear(1, channels)
        self.guide_view = nn.Parameter(torch.zeros(2, channels))
        self.guide = nn.TransformerEncoder(
            _encoder_layer(channels, sizes.num_heads),
            sizes.guide_layers,
            enable_nested_tensor=False,
        )
        self.steps = nn.Sequential(
            nn.Linear(2 * channels, channels), nn.SiLU(), nn.Linear(channels, channels), nn.SiLU()
        )
        self.inputs = nn.Linear(2, channels)
        side_width = sizes.time_width + sizes.variate_width + 1
        self.layers = nn.ModuleList(
            ResidualLayer(channels, side_width, sizes.num_heads) for _ in range(sizes.num_layers)
        )
        last = nn.Linear(channels, 1)
        nn.init.zeros_(last.weight)
        self.out = nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), last)

    def condition(self, visible_BTV: Tensor, seen_BTV: Tensor, line_BTV: Tensor) -> Condition:
        """Embed what is visible.

        Parameters
        ----------
        visible_BTV : values, 0 where not visible
        seen_BTV : bool, True where visible
        line_BTV : the visible values interpolated over the gaps, for the filters
        """
        sizes = self.sizes
        _, num_steps, num_variates = visible_BTV.shape
        position = torch.arange(num_steps, device=visible_BTV.device)
        time = sinusoids(position, sizes.time_width)[:, None].expand(-1, num_variates, -1)
        variate = self.variates.weight.expand(num_steps, -1, -1)
        fixed = torch.cat([time, variate], dim=-1).expand(len(visible_BTV), -1, -1, -1)
        side = torch.cat([fixed, seen_BTV[..., None].to(fixed.dtype)], dim=-1)
        views = torch.stack(
            [
                high_frequencies(line_BTV, sizes.cutoff),
                dominant_frequencies(line_BTV, sizes.num_dominant),
            ],
            dim=3,
        )
        place = sinusoids(position, sizes.num_channels)[:, None, None]
        guide_BTVGC = self.guide_in(views[..., None]) + self.guide_view + place
        # Each view of each variate is one sequence of T tokens.
        along = guide_BTVGC.permute(0, 2, 3, 1, 4)
        encoded = self.guide(along.reshape(-1, *along.shape[-2:])).reshape(along.shape)
        return Condition(visible_BTV, side, encoded.permute(0, 3, 1, 2, 4))

    def forward(self, noised_BTV: Tensor, step_B: Tensor, condition: Condition) -> Tensor:
        """(B, T, V) the noise in `noised_BTV`, whose visible cells are 0."""
        channels = self.sizes.num_channels
        h = F.relu(self.inputs(torch.stack([condition.visible_BTV, noised_BTV], dim=-1)))
        step_BC = self.steps(sinusoids(step_B, 2 * channels))
        total = torch.zeros_like(h)
        for layer in self.layers:
            h, skip = layer(h, step_BC, condition.side_BTVF, condition.guide_BTVGC)
            total = total + skip
        said: Tensor = self.out(total / math.sqrt(len(self.layers)))[..., 0]
        return said


class ResidualLayer(nn.Module):
    """Temporal layer, variate layer, gate; both layers attend to themselves and to the guide."""

    def __init__(self, channels: int, side_width: int, num_heads: int) -> None:
        super().__init__()
        self.step = nn.Linear(channels, channels)
        self.temporal = GuidedAttention(channels, num_heads)
        self.variate = GuidedAttention(channels, num_heads)
        self.middle = nn.Linear(channels, 2 * channels)
        self.side = nn.Linear(side_width, 2 * channels)
        self.out = nn.Linear(channels, 2 * channels)

    def forward(
        self, h_BTVC: Tensor, step_BC: Tensor, side_BTVF: Tensor, guide_BTVGC: Tensor
    ) -> tuple[Tensor, Tensor]:
        """States for the next layer, and what goes straight to the output."""
        y = h_BTVC + self.step(step_BC)[:, None, None]
        # Sequences of T steps with 2T guide tokens, then of V variates with 2V guide tokens.
        y = self.temporal(y.transpose(1, 2), guide_BTVGC.transpose(1, 2)).transpose(1, 2)
        y = self.variate(y, guide_BTVGC)
        gate, content = (self.middle(y) + self.side(side_BTVF)).chunk(2, dim=-1)
        residual, skip = self.out(gate.sigmoid() * content.tanh()).chunk(2, dim=-1)
        return (h_BTVC + residual) / math.sqrt(2), skip


class GuidedAttention(nn.Module):
    """A transformer layer over sequences, then cross-attention to their guide."""

    def __init__(self, channels: int, num_heads: int) -> None:
        super().__init__()
        self.self_layer = _encoder_layer(channels, num_heads)
        self.cross = nn.MultiheadAttention(channels, num_heads, batch_first=True)
        self.norm = nn.LayerNorm(channels)

    def forward(self, h: Tensor, guide: Tensor) -> Tensor:
        """(B, M, L, C) sequences of length L, with a guide (B, M, L, G, C) for each."""
        sequences = self.self_layer(h.reshape(-1, *h.shape[-2:]))
        tokens = guide.reshape(len(sequences), -1, guide.shape[-1])
        looked, _ = self.cross(self.norm(sequences), tokens, tokens, need_weights=False)
        guided: Tensor = (sequences + looked).reshape(h.shape)
        return guided


def _encoder_layer(channels: int, num_heads: int) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(
        channels, num_heads, channels, dropout=0.0, activation="gelu", batch_first=True
    )


def sinusoids(position: Tensor, width: int) -> Tensor:
    """Sines and cosines of positions at geometric frequencies, (...,) → (..., width)."""
    index = torch.arange(width // 2, device=position.device)
    angle = position[..., None] * torch.exp(-math.log(10_000) * index / (width // 2))
    return torch.cat([angle.sin(), angle.cos()], dim=-1)
