"""The guided noise network as samples are drawn with it: one condition, many noise levels.

B windows, S samples of each, N = B * S, T steps, V variates, G guide views, E = 2 * C channels.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor

from mdtim.baselines import cuda_layers
from mdtim.baselines.fgti.network import Condition, GuidedNoiseNetwork, ResidualLayer
from mdtim.baselines.fused_noise import FusedNoise
from mdtim.kernels import Axis

Say = Callable[[Tensor, int], Tensor]
"""The noise (N, T, V) in noised cells, whose visible ones are 0, at a noise level."""


class PlainFilling:
    """By PyTorch's own operators, compiled on a GPU."""

    def __init__(self, network: GuidedNoiseNetwork, dtype: torch.dtype) -> None:
        self.network = network
        self.dtype = dtype
        reduced = copy.deepcopy(network).to(dtype)
        gpu = network.inputs.weight.is_cuda
        self._run = torch.compile(reduced, dynamic=False) if gpu else reduced

    def given(self, visible_BTV: Tensor, seen_BTV: Tensor, line_BTV: Tensor) -> Say:
        """What says the noise of these windows; the parameters are those of the network."""
        condition: Condition = self.network.condition(visible_BTV, seen_BTV, line_BTV)
        condition = condition.to(self.dtype)

        def say(noised_NTV: Tensor, step: int) -> Tensor:
            step_N = torch.full((len(noised_NTV),), step, device=noised_NTV.device)
            noise: Tensor = self._run(noised_NTV.to(self.dtype), step_N, condition)
            return noise.float()

        return say


class _Layer(NamedTuple):
    definition: ResidualLayer
    packed: cuda_layers.Layer


class FusedFilling:
    """By kernels for whole layers, in float16."""

    def __init__(self, network: GuidedNoiseNetwork) -> None:
        self.network = network
        layers = [cast(ResidualLayer, layer) for layer in network.layers]
        self._layers = [_Layer(layer, _pack(layer)) for layer in layers]
        first, last = network.out[0], network.out[2]
        self._run = FusedNoise(
            (network.inputs.weight, network.inputs.bias),
            [layer.packed for layer in self._layers],
            ((first.weight, first.bias), (last.weight, last.bias)),  # type: ignore[arg-type]
        )

    @classmethod
    def fits(cls, network: GuidedNoiseNetwork, num_steps: int, num_variates: int) -> bool:
        """Whether the kernels take the layers of a network, where it lies."""
        channels, heads = network.sizes.num_channels, network.sizes.num_heads
        shape = num_steps, num_variates, channels, heads
        device = network.inputs.weight.device
        return cuda_layers.fits(device, *shape, hidden=channels, guided=True)

    def given(self, visible_BTV: Tensor, seen_BTV: Tensor, line_BTV: Tensor) -> Say:
        """What says the noise of these windows; the parameters are those of the network."""
        side, guide = self.network.embed(visible_BTV, seen_BTV, line_BTV)
        said = [_said(layer.definition, side, guide) for layer in self._layers]

        def say(noised_NTV: Tensor, step: int) -> Tensor:
            samples = len(noised_NTV) // len(visible_BTV)
            visible_NTV = visible_BTV.repeat_interleave(samples, 0)
            embedded = self.network.embed_step(torch.tensor([step], device=noised_NTV.device))[0]
            levels = [layer.definition.step(embedded) for layer in self._layers]
            return self._run(torch.stack([visible_NTV, noised_NTV], dim=-1), levels, said)

        return say


def _said(layer: ResidualLayer, side_BTVF: Tensor, guide_BTVGC: Tensor) -> cuda_layers.Said:
    side_BTVE = (layer.side(side_BTVF) + layer.middle.bias).half()
    axes: tuple[Axis, Axis] = ("time", "variate")
    time, variate = (
        cuda_layers.pack_guide(attention.keys_and_values(guide_BTVGC), attention.num_heads, axis)
        for attention, axis in zip((layer.temporal, layer.variate), axes, strict=True)
    )
    return cuda_layers.Said(side_BTVE, (time, variate))


def _pack(layer: ResidualLayer) -> cuda_layers.Layer:
    time, variate = (
        cuda_layers.pack_encoder(attention.self_layer, attention.cross, attention.norm)
        for attention in (layer.temporal, layer.variate)
    )
    gate = cuda_layers.pack_gate(layer.middle.weight, layer.out.weight, layer.out.bias)
    hidden = layer.temporal.self_layer.linear1.out_features
    return cuda_layers.Layer(time, variate, gate, layer.temporal.num_heads, hidden)
