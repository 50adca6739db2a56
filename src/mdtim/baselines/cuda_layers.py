"""Residual layers of CSDI and FGTI for drawing samples, by `cuda_encoder.cu` and `cuda_gate.cu`.

Between products of 64 or 128 channels the states of all samples would go to memory and back some
forty times a layer. The kernels hold whole sequences in registers instead: states are read and
written once along time, once along the variates, and once by the gate behind both. Products take
float16 and add up in float32.

N windows or samples, S samples of a window, B = N / S, T steps, V variates, C channels, E = 2 * C,
H heads, d their width, G guide views, L attended length, W weights out, K weights in.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mdtim.gpu.cuda_compiler import Kernel, compile_kernel, has_compiler
from mdtim.kernels import Axis

_TILE = 16
_ENCODER, _GATE = "baselines/cuda_encoder.cu", "baselines/cuda_gate.cu"
_WARPS = {64: 12, 128: 8}
"""Warps that share a multiprocessor's registers, for a number of channels."""
_SHARES = {64: True, 128: False}
"""Whether what rows attend to finds room in shared memory beside the weights."""
_MAX_TILES = {64: 4, 128: 3}
"""Tiles of 16 rows that the registers of a warp hold, for a number of channels."""


def fits(
    device: torch.device,
    num_steps: int,
    num_variates: int,
    channels: int,
    heads: int,
    *,
    hidden: int,
    guided: bool,
) -> bool:
    """Whether the kernels take such layers; an axis of one position is none of theirs.

    Parameters
    ----------
    hidden : channels between the last two products of a transformer layer
    guided : whether transformer layers look at a guide
    """
    return (
        device.type == "cuda"
        # What looks at a guide finds room beside 64 channels alone.
        and channels in ((64,) if guided else _WARPS)
        and channels // heads in ((8,) if guided else (8, 16, 32))
        and hidden in (32, 64)
        and min(num_steps, num_variates) > 1
        and max(num_steps, num_variates) <= _TILE * _MAX_TILES[channels]
        and torch.cuda.get_device_capability(device) == (9, 0)
        and has_compiler()
    )


class Packed(NamedTuple):
    """Weights of a kernel, all in one tensor in the order that the source gives."""

    weights: Tensor
    """float16"""
    vectors: Tensor
    """Biases and norms, float32."""


@dataclass(frozen=True, eq=False)
class Layer:
    """Packed weights of a residual layer."""

    time: Packed
    variate: Packed
    gate: Packed
    num_heads: int
    hidden: int
    """Channels between the last two products of a transformer layer."""


class Said(NamedTuple):
    """What the windows say to a layer, float16."""

    side_BTVE: Tensor
    """With the bias of the first product before the gate."""
    looks: tuple[Tensor, Tensor] | None
    """Packed keys and values of the guide, along time and along the variates."""


def run_layer(
    h_NTVC: Tensor, total_NTVC: Tensor, layer: Layer, level_C: Tensor, said: Said
) -> None:
    """States for the next layer, and the sum of what goes straight to the output, in place.

    Parameters
    ----------
    level_C : float16, of the noise, added to every state before the transformer layers
    """
    between, y = torch.empty_like(h_NTVC), torch.empty_like(h_NTVC)
    num_windows, num_steps, num_variates, channels = h_NTVC.shape
    samples = num_windows // len(said.side_BTVE)
    looks = said.looks or (None, None)
    _encode("time", h_NTVC, between, level_C, layer, looks[0], samples)
    _encode("variate", between, y, None, layer, looks[1], samples)
    rows = num_windows * num_steps * num_variates
    _finish_kernel(channels, h_NTVC.device).launch(
        _num_programs(h_NTVC.device),
        *(y, h_NTVC, total_NTVC, said.side_BTVE, *layer.gate),
        *(rows, samples, num_steps * num_variates),
    )


def _encode(
    axis: Axis,
    x_NTVC: Tensor,
    y_NTVC: Tensor,
    level_C: Tensor | None,
    layer: Layer,
    guide: Tensor | None,
    samples: int,
) -> None:
    num_windows, num_steps, num_variates, channels = x_NTVC.shape
    along_time = axis == "time"
    encoder = layer.time if along_time else layer.variate
    length, sequences = (num_steps, num_variates) if along_time else (num_variates, num_steps)
    tiling = Tiling.of(length, channels)
    views = 0 if guide is None else guide.shape[3]
    kernel = _encode_kernel(channels, layer.num_heads, layer.hidden, tiling, views, x_NTVC.device)
    kernel.launch(
        _num_programs(x_NTVC.device),
        *(x_NTVC, y_NTVC, level_C, *encoder, guide, _scratch(x_NTVC, tiling)),
        *(num_windows, samples, num_steps * num_variates, sequences),
        *((num_variates, 1) if along_time else (1, num_variates)),
    )


class Tiling(NamedTuple):
    """How sequences share the rows of a warp."""

    length: int
    """L"""
    tiles: int
    """Tiles of 16 rows."""
    packed: int
    """Sequences in them."""

    @classmethod
    def of(cls, length: int, channels: int) -> Tiling:
        """The fewest tiles of which the largest share is used.

        Examples
        --------
        >>> Tiling.of(48, 128)
        Tiling(length=48, tiles=3, packed=1)
        >>> Tiling.of(21, 128)
        Tiling(length=21, tiles=3, packed=2)
        """
        choices = range(-(-length // _TILE), _MAX_TILES[channels] + 1)
        ways = [cls(length, tiles, tiles * _TILE // length) for tiles in choices]
        return max(ways, key=lambda way: (way.packed * length / way.tiles, -way.tiles))

    def count(self, sequences: int) -> int:
        """Warps that the sequences of a window take."""
        return -(-sequences // self.packed)


def _num_programs(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _scratch(like_NTVC: Tensor, tiling: Tiling) -> Tensor | None:
    """Where the rows of each warp keep what they attend to, if not in shared memory."""
    channels = like_NTVC.shape[-1]
    if _SHARES[channels]:
        return None
    rows = _num_programs(like_NTVC.device) * _WARPS[channels] * tiling.tiles * _TILE
    return like_NTVC.new_empty(rows, channels)


@functools.cache
def _encode_kernel(
    channels: int, num_heads: int, hidden: int, tiling: Tiling, views: int, device: torch.device
) -> Kernel:
    warps = _WARPS[channels]
    constants = {
        "C": channels,
        "HEADS": num_heads,
        "WIDTH": channels // num_heads,
        "HIDDEN": hidden,
        "LENGTH": tiling.length,
        "TILES": tiling.tiles,
        "PACKED": tiling.packed,
        "VIEWS": views,
        "WARPS": warps,
        "SHARED": int(_SHARES[channels]),
    }
    return compile_kernel(
        _ENCODER,
        "encode",
        constants,
        device,
        threads=32 * warps,
        shared_bytes=encoder_bytes(channels, hidden, tiling.tiles, looks=views > 0),
    )


def encoder_bytes(channels: int, hidden: int, tiles: int, *, looks: bool) -> int:
    """Shared memory of a transformer layer, which may look at a guide."""
    weights = (4 + 2 * looks) * channels**2 + 2 * channels * hidden
    vectors = (9 + 4 * looks) * channels + hidden
    rows = _WARPS[channels] * tiles * _TILE if _SHARES[channels] else 0
    return 2 * weights + 4 * vectors + 2 * rows * channels


@functools.cache
def _finish_kernel(channels: int, device: torch.device) -> Kernel:
    warps = _WARPS[channels]
    return compile_kernel(
        _GATE,
        "finish",
        {"C": channels, "WARPS": warps},
        device,
        threads=32 * warps,
        shared_bytes=gate_bytes(channels),
    )


def gate_bytes(channels: int) -> int:
    """Shared memory of a gate: its weights, and two tiles of each warp."""
    rows = _WARPS[channels] * 2 * _TILE
    return 8 * channels**2 + 8 * channels + 2 * rows * channels


# -- packing --------------------------------------------------------------------------------


def pack_encoder(
    layer: nn.TransformerEncoderLayer,
    look: nn.MultiheadAttention | None = None,
    look_norm: nn.LayerNorm | None = None,
) -> Packed:
    """The weights of a layer, and of a look at a guide behind it, as the kernel reads them."""
    attention: Any = layer.self_attn
    qkv, qkv_bias = _pack_heads(attention)
    weights = [
        qkv,
        _right(_rows(attention.out_proj.weight)),
        _right(_columns(layer.linear1.weight)),
        _right(_rows(layer.linear2.weight)),
    ]
    vectors = [
        *(qkv_bias, attention.out_proj.bias, layer.norm1.weight, layer.norm1.bias),
        *(layer.linear1.bias, layer.linear2.bias, layer.norm2.weight, layer.norm2.bias),
    ]
    if look is not None:
        assert look_norm is not None, "it looks at what is normalized"
        channels, scale = look.embed_dim, _score_scale(look)
        query, bias = look.in_proj_weight[:channels], look.in_proj_bias[:channels]
        weights += [_right(scale * _columns(query)), _right(_rows(look.out_proj.weight))]
        vectors += [scale * bias, look.out_proj.bias, look_norm.weight, look_norm.bias]
    return _pack(weights, vectors)


def pack_gate(middle_EC: Tensor, out_EC: Tensor, out_bias_E: Tensor) -> Packed:
    """The weights before and behind a gate."""
    halves = (*middle_EC.chunk(2), *out_EC.chunk(2))
    return _pack([_right(_rows(_columns(half))) for half in halves], [out_bias_E])


def pack_guide(guide_BTVGE: Tensor, num_heads: int, axis: Axis) -> Tensor:
    """(B, tiles, H, G, ...) keys and values, the halves of E, for the rows of each warp."""
    over = guide_BTVGE.transpose(1, 2) if axis == "time" else guide_BTVGE
    num_windows, sequences, length, views, channels = over.shape
    tiling = Tiling.of(length, channels // 2)
    tiles = tiling.count(sequences)
    over = F.pad(over, (0, 0, 0, 0, 0, 0, 0, tiles * tiling.packed - sequences))
    rows = over.reshape(num_windows, tiles, tiling.packed * length, views, channels)
    rows = F.pad(rows, (0, 0, 0, 0, 0, tiling.tiles * _TILE - tiling.packed * length))
    # Keys of a tile (a, g) or (a, t, e), a head's channels (t, e) or (g): see the source.
    rows = rows.view(num_windows, tiles, tiling.tiles, _TILE, views, 2, num_heads, 8)
    key, value = rows.half().permute(5, 0, 1, 6, 4, 2, 3, 7)
    key = key.unflatten(-2, (2, 8)).unflatten(-1, (4, 2)).transpose(-4, -3).transpose(-3, -2)
    value = value.unflatten(-2, (2, 4, 2)).permute(*range(5), 8, 6, 5, 7)
    return torch.stack([key, value], dim=-3).contiguous()


def _pack(weights: list[Tensor], vectors: list[Tensor]) -> Packed:
    flat = [vector.detach().float().flatten() for vector in vectors]
    return Packed(torch.cat(weights), torch.cat(flat))


def _pack_heads(attention: Any) -> tuple[Tensor, Tensor]:
    """Weights and biases of queries, keys and values, for as many heads as are taken at once."""
    channels = attention.embed_dim
    size = max(_TILE, channels // attention.num_heads)
    scale = torch.tensor([_score_scale(attention), 1, 1], device=attention.in_proj_bias.device)
    weight = _columns(attention.in_proj_weight).view(3, -1, size, channels)
    bias = attention.in_proj_bias.detach().view(3, -1, size)
    weight, bias = weight * scale[:, None, None, None], bias * scale[:, None, None]
    return _right(weight.transpose(0, 1).flatten(0, 2)), bias.transpose(0, 1)


def _score_scale(attention: Any) -> float:
    """Scores are exponents of two."""
    width: int = attention.embed_dim // attention.num_heads
    return 1 / (math.sqrt(width) * math.log(2))


def _order(channels: int, device: torch.device) -> Tensor:
    """Which channel of a state is at which place of a product: a lane's eight are neighbours."""
    b, a, t, e = (torch.arange(n, device=device) for n in (2, 2, 4, 2))
    group = 8 * t[:, None] + 4 * b[:, None, None, None] + 2 * a[:, None, None] + e
    firsts = torch.arange(0, channels, 32, device=device)
    return (firsts[:, None] + group.flatten()).flatten()


def _columns(weight_WK: Tensor) -> Tensor:
    """A weight that takes states."""
    return weight_WK.detach()[:, _order(weight_WK.shape[1], weight_WK.device)]


def _rows(weight_WK: Tensor) -> Tensor:
    """A weight that gives states."""
    return weight_WK.detach()[_order(len(weight_WK), weight_WK.device)]


def _right(weight_WK: Tensor) -> Tensor:
    """Right factors of 8 columns and 32 channels, 16 bytes of each lane, flat."""
    rows, columns = weight_WK.shape
    tiles = weight_WK.half().view(rows // 8, 8, columns // 32, 2, 2, 4, 2)
    return tiles.permute(0, 2, 1, 5, 3, 4, 6).reshape(-1)
