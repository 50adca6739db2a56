"""Samples of PyPOTS's CSDI by its own weights, with states laid out as mdtim's kernels read them.

PyPOTS keeps the channels in front and turns all states around before and behind each attention,
one sample at a time. Here channels lie last from beginning to end, the samples of a window side by
side, and what a window says is projected once for all noise levels. On a GPU the states are
float16, whose ten bits are those of the products in PyPOTS (TF32), and the layers are run by
kernels of :mod:`mdtim.baselines.cuda_layers` where these take them.

B windows, S samples of each, N = B * S, T steps, V variates, C channels, E = 2 * C.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mdtim.baselines import cuda_layers
from mdtim.baselines.diffusion import Schedule
from mdtim.baselines.encoder import encode
from mdtim.baselines.fused_noise import FusedNoise
from mdtim.baselines.noise import cell_keys, normal, parts, samples_first
from mdtim.baselines.protocol import Windows


class CSDISampler:
    """Draws from a trained model.

    Parameters
    ----------
    core : PyPOTS's module of the whole model, on `device`, in evaluation mode
    seed : of the samples
    """

    def __init__(self, core: Any, seed: int, device: torch.device) -> None:
        assert not core.is_unconditional, "only samples given the visible cells"
        self.core = core
        self.seed = seed
        self.device = device
        self.dtype = torch.float16 if device.type == "cuda" else torch.float32
        self.network = copy.deepcopy(core.backbone.diff_model).to(self.dtype)
        self._fused: FusedNoise | None = None
        betas, kept = core.backbone.beta, core.backbone.alpha
        # Passes over the states outside of products and attention are most of the time: fused.
        gpu = device.type == "cuda"
        self._run = torch.compile(self._forward, dynamic=False) if gpu else self._forward
        self.schedule = Schedule(
            *(torch.from_numpy(table).float().to(device) for table in (betas, kept))
        )

    @torch.no_grad()
    def draw(self, visible_WTV: Windows, num_samples: int) -> Windows:
        """(S, W, T, V) samples of windows with NaN at the cells to fill."""
        num_cells = num_samples * math.prod(visible_WTV.shape[1:])
        which = parts(len(visible_WTV), num_cells, self.device)
        drawn = [self._draw(visible_WTV[part], num_samples) for part in which]
        return np.concatenate(drawn, axis=1)[:, : len(visible_WTV)]

    def _draw(self, visible_BTV: Windows, num_samples: int) -> Windows:
        values = torch.from_numpy(np.nan_to_num(visible_BTV).astype(np.float32)).to(self.device)
        seen = torch.from_numpy(~np.isnan(visible_BTV)).to(self.device)
        sides = self._sides(seen)
        values, seen = (x.repeat_interleave(num_samples, 0) for x in (values, seen))
        keys = cell_keys(visible_BTV, num_samples).to(self.device)
        current = normal(self.seed, len(self.schedule), keys)
        for step in reversed(range(len(self.schedule))):
            said = self.noise(torch.stack([values, current * ~seen], dim=-1), sides, step)
            current = self.schedule.back(current, said, step, normal(self.seed, step, keys))
        return samples_first(current, num_samples)

    def _sides(self, seen_BTV: Tensor) -> list[Tensor]:
        """(B, T, V, E) for each layer: side information, projected, with the bias added to it."""
        cond_BVT = seen_BTV.transpose(1, 2).float()
        steps_BT = torch.arange(seen_BTV.shape[1], device=self.device).expand(len(seen_BTV), -1)
        side_BTVF = self.core.get_side_info(steps_BT.float(), cond_BVT).permute(0, 3, 2, 1)
        return [
            (_point(layer.cond_projection, side_BTVF) + layer.mid_projection.bias).to(self.dtype)
            for layer in self.core.backbone.diff_model.residual_layers
        ]

    def noise(self, inputs_NTV2: Tensor, sides: Sequence[Tensor], step: int) -> Tensor:
        """(N, T, V) float32, what the network says is noise.

        Parameters
        ----------
        inputs_NTV2 : visible values and noised ones, each 0 at the cells of the other
        sides : (B, T, V, E) for each layer
        """
        network = self.network
        level = network.diffusion_embedding(torch.tensor([step], device=self.device))
        levels = [layer.diffusion_projection(level)[0] for layer in network.residual_layers]
        layer = network.residual_layers[0].time_layer.layers[0]
        shape = *inputs_NTV2.shape[1:3], layer.linear1.in_features, layer.self_attn.num_heads
        hidden = layer.linear1.out_features
        if cuda_layers.fits(self.device, *shape, hidden=hidden, guided=False):
            self._fused = self._fused or _fuse(self.core.backbone.diff_model)
            said = [cuda_layers.Said(side, None) for side in sides]
            return self._fused(inputs_NTV2, levels, said)
        return self._run(inputs_NTV2.to(self.dtype), sides, levels)

    def _forward(
        self, inputs_NTV2: Tensor, sides: Sequence[Tensor], levels: Sequence[Tensor]
    ) -> Tensor:
        network = self.network
        h = F.relu(_point(network.input_projection, inputs_NTV2))
        total = torch.zeros_like(h)
        layers = zip(network.residual_layers, sides, levels, strict=True)
        for layer, side, level in layers:
            y = h + level
            if y.shape[1] > 1:  # as in PyPOTS, nothing along an axis of one position
                y = encode(layer.time_layer.layers[0], y, "time")
            if y.shape[2] > 1:
                y = encode(layer.feature_layer.layers[0], y, "variate")
            y = F.linear(y, _of_point(layer.mid_projection)[0])
            y = y.view(len(side), -1, *side.shape[1:]) + side[:, None]
            gate, content = y.view(*h.shape[:3], -1).chunk(2, dim=-1)
            y = _point(layer.output_projection, gate.sigmoid() * content.tanh())
            residual, skip = y.chunk(2, dim=-1)
            h = (h + residual) / math.sqrt(2)
            total = total + skip
        total = total / math.sqrt(len(network.residual_layers))
        total = F.relu(_point(network.output_projection1, total))
        return _point(network.output_projection2, total)[..., 0].float()


def _fuse(network: Any) -> FusedNoise:
    first, last = network.output_projection1, network.output_projection2
    return FusedNoise(
        _of_point(network.input_projection),
        [_pack(layer) for layer in network.residual_layers],
        (_of_point(first), _of_point(last)),
    )


def _pack(layer: Any) -> cuda_layers.Layer:
    time, variate = layer.time_layer.layers[0], layer.feature_layer.layers[0]
    middle, _ = _of_point(layer.mid_projection)
    return cuda_layers.Layer(
        time=cuda_layers.pack_encoder(time),
        variate=cuda_layers.pack_encoder(variate),
        gate=cuda_layers.pack_gate(middle, *_of_point(layer.output_projection)),
        num_heads=time.self_attn.num_heads,
        hidden=time.linear1.out_features,
    )


def _of_point(convolution: nn.Conv1d) -> tuple[Tensor, Tensor]:
    """Weight and bias of a convolution of one point, as of a product over the last axis."""
    assert convolution.bias is not None
    return convolution.weight[:, :, 0], convolution.bias


def _point(convolution: nn.Conv1d, x: Tensor) -> Tensor:
    return F.linear(x, *_of_point(convolution))
