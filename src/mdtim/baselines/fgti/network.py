"""The guided noise network: residual layers along time and variates, each with a look at the guide.

What a window says is the same at every noise level and for every sample, so it is projected once,
for all layers, before the first; the samples of a window look at its guide together.

B windows, S samples of each, N = B * S, T steps, V variates, C channels, G guide views, M sequences
of a window and L their length (V and T, or T and V), H heads, d their width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mdtim.baselines.encoder import encode
from mdtim.baselines.fgti.filters import dominant_frequencies, high_frequencies
from mdtim.kernels import Axis, fused_attention


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


class Look(NamedTuple):
    """What attention to a guide looks at: its tokens as keys and values."""

    key: Tensor
    """(B * M, H, G * L, d)"""
    value: Tensor


class LayerCondition(NamedTuple):
    """What a window says to one layer."""

    side_BTVE: Tensor
    """Side information, projected, E = 2 * C."""
    temporal: Look
    variate: Look


@dataclass(frozen=True, eq=False)
class Condition:
    """What a window says, whatever the noise: made once, used at every step."""

    visible_BTV: Tensor
    """Values, 0 where not visible."""
    layers: list[LayerCondition]

    def to(self, dtype: torch.dtype) -> Condition:
        """The same in another precision."""
        layers = [
            LayerCondition(side.to(dtype), *(Look(*(x.to(dtype) for x in look)) for look in looks))
            for side, *looks in self.layers
        ]
        return Condition(self.visible_BTV.to(dtype), layers)


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
        """Embed what is visible, for all layers; the parameters are those of :meth:`embed`."""
        side, guide = self.embed(visible_BTV, seen_BTV, line_BTV)
        layers = [cast(ResidualLayer, layer).condition(side, guide) for layer in self.layers]
        return Condition(visible_BTV, layers)

    def embed(
        self, visible_BTV: Tensor, seen_BTV: Tensor, line_BTV: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Side information (B, T, V, F), and the guide (B, T, V, G, C).

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
        return side, encoded.permute(0, 3, 1, 2, 4)

    def forward(self, noised_NTV: Tensor, step_N: Tensor, condition: Condition) -> Tensor:
        """(N, T, V) the noise in `noised_NTV`, whose visible cells are 0.

        Samples of a window lie side by side.
        """
        samples = len(noised_NTV) // len(condition.visible_BTV)
        visible_NTV = condition.visible_BTV.repeat_interleave(samples, 0)
        h = F.relu(self.inputs(torch.stack([visible_NTV, noised_NTV], dim=-1)))
        step_NC = self.embed_step(step_N)
        total = torch.zeros_like(h)
        for layer, said in zip(self.layers, condition.layers, strict=True):
            h, skip = layer(h, step_NC, said)
            total = total + skip
        noise: Tensor = self.out(total / math.sqrt(len(self.layers)))[..., 0]
        return noise

    def embed_step(self, step_N: Tensor) -> Tensor:
        """(N, C) embeddings of noise levels."""
        wave = sinusoids(step_N, 2 * self.sizes.num_channels)
        embedded: Tensor = self.steps(wave.to(self.inputs.weight.dtype))
        return embedded


class ResidualLayer(nn.Module):
    """Temporal layer, variate layer, gate; both layers attend to themselves and to the guide."""

    def __init__(self, channels: int, side_width: int, num_heads: int) -> None:
        super().__init__()
        self.step = nn.Linear(channels, channels)
        self.temporal = GuidedAttention(channels, num_heads, "time")
        self.variate = GuidedAttention(channels, num_heads, "variate")
        self.middle = nn.Linear(channels, 2 * channels)
        self.side = nn.Linear(side_width, 2 * channels)
        self.out = nn.Linear(channels, 2 * channels)

    def condition(self, side_BTVF: Tensor, guide_BTVGC: Tensor) -> LayerCondition:
        """Project what windows say."""
        return LayerCondition(
            self.side(side_BTVF),
            self.temporal.look(guide_BTVGC),
            self.variate.look(guide_BTVGC),
        )

    def forward(
        self, h_NTVC: Tensor, step_NC: Tensor, condition: LayerCondition
    ) -> tuple[Tensor, Tensor]:
        """States for the next layer, and what goes straight to the output."""
        y = h_NTVC + self.step(step_NC)[:, None, None]
        y = self.variate(self.temporal(y, condition.temporal), condition.variate)
        windows = condition.side_BTVE.shape
        y = self.middle(y).view(windows[0], -1, *windows[1:]) + condition.side_BTVE[:, None]
        gate, content = y.view(len(h_NTVC), *windows[1:]).chunk(2, dim=-1)
        residual, skip = self.out(gate.sigmoid() * content.tanh()).chunk(2, dim=-1)
        return (h_NTVC + residual) / math.sqrt(2), skip


class GuidedAttention(nn.Module):
    """A transformer layer along an axis, then cross-attention to the guide along that axis."""

    def __init__(self, channels: int, num_heads: int, axis: Axis) -> None:
        super().__init__()
        self.axis: Axis = axis
        self.num_heads = num_heads
        self.self_layer = _encoder_layer(channels, num_heads)
        self.cross = nn.MultiheadAttention(channels, num_heads, batch_first=True)
        self.norm = nn.LayerNorm(channels)

    def look(self, guide_BTVGC: Tensor) -> Look:
        """Keys and values of a guide: G * L tokens for every sequence of a window."""
        both = self.keys_and_values(guide_BTVGC)
        # As if the views were samples: behind one another in one sequence.
        return Look(*(self._sequences(x.movedim(3, 1)) for x in both.chunk(2, dim=-1)))

    def keys_and_values(self, guide_BTVGC: Tensor) -> Tensor:
        """(B, T, V, G, E) both of each token of a guide, E = 2 * C."""
        channels, bias = guide_BTVGC.shape[-1], self.cross.in_proj_bias
        return F.linear(guide_BTVGC, self.cross.in_proj_weight[channels:], bias[channels:])

    def forward(self, h_NTVC: Tensor, look: Look) -> Tensor:
        """(N, T, V, C) to the same; all samples of a window with one look."""
        x = encode(self.self_layer, h_NTVC, self.axis)
        channels, num_sequences = x.shape[-1], x.shape[2 if self.axis == "time" else 1]
        weight, bias = self.cross.in_proj_weight[:channels], self.cross.in_proj_bias[:channels]
        query = F.linear(self.norm(x), weight, bias)
        query = query.view(len(look.key) // num_sequences, -1, *query.shape[1:])
        seen = fused_attention(self._sequences(query), look.key, look.value)
        looked: Tensor = self.cross.out_proj(self._cells(seen, query.shape).reshape(x.shape))
        return x + looked

    def _sequences(self, x_BSTVC: Tensor) -> Tensor:
        """(B * M, H, S * L, d): samples behind one another."""
        x = x_BSTVC.view(*x_BSTVC.shape[:4], self.num_heads, -1)
        x = x.permute(0, 3, 4, 1, 2, 5) if self.axis == "time" else x.permute(0, 2, 4, 1, 3, 5)
        return x.flatten(3, 4).flatten(0, 1)

    def _cells(self, x: Tensor, shape: torch.Size) -> Tensor:
        """(B, S, T, V, C) again."""
        num_windows, num_samples = shape[:2]
        x = x.view(
            num_windows, -1, self.num_heads, num_samples, x.shape[2] // num_samples, x.shape[3]
        )
        x = x.permute(0, 3, 4, 1, 2, 5) if self.axis == "time" else x.permute(0, 3, 1, 4, 2, 5)
        return x.flatten(-2)


def _encoder_layer(channels: int, num_heads: int) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(
        channels, num_heads, channels, dropout=0.0, activation="gelu", batch_first=True
    )


def sinusoids(position: Tensor, width: int) -> Tensor:
    """Sines and cosines of positions at geometric frequencies, (...,) → (..., width)."""
    index = torch.arange(width // 2, device=position.device)
    angle = position[..., None] * torch.exp(-math.log(10_000) * index / (width // 2))
    return torch.cat([angle.sin(), angle.cos()], dim=-1)
