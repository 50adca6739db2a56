"""A transformer layer of PyTorch along one axis of (N, T, V, C) states, where they lie.

N windows or samples, T steps, V variates, C channels.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from mdtim.kernels import Axis, axis_attention


def encode(layer: nn.TransformerEncoderLayer, x_NTVC: Tensor, axis: Axis) -> Tensor:
    """What a layer with GELU and norms behind says of all sequences along an axis."""
    assert not (layer.training and layer.dropout.p), "no dropout here"
    attention: Any = layer.self_attn
    qkv = F.linear(x_NTVC, attention.in_proj_weight, attention.in_proj_bias)
    seen = axis_attention(qkv, attention.num_heads, axis, rope=False)
    x = layer.norm1(x_NTVC + attention.out_proj(seen))
    said: Tensor = layer.norm2(x + layer.linear2(F.gelu(layer.linear1(x))))
    return said
