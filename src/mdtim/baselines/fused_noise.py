"""A noise network of residual layers on a GPU that has kernels for them, for drawing samples.

CSDI and FGTI differ in what their layers attend to; what is before and behind the layers is alike.
N windows or samples, T steps, V variates, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from mdtim.baselines.cuda_layers import Layer, Said, run_layer

_ALIGNED = 8
"""Inputs of a cell, filled up with zeros: the tensor cores take 16 bytes."""


class FusedNoise:
    """What a trained network says is noise.

    Parameters
    ----------
    inputs : weight (C, 2) and bias of what makes a state of a visible value and a noised one
    layers : packed
    outs : weights (C, C) and (1, C) and biases of the last two products
    """

    def __init__(
        self,
        inputs: tuple[Tensor, Tensor],
        layers: Sequence[Layer],
        outs: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]],
    ) -> None:
        (first, first_bias), (second, second_bias) = outs
        weight, bias = inputs
        self._inputs = F.pad(weight.detach(), (0, _ALIGNED - 2)).half().T, bias.detach().half()
        self._layers = layers
        # The layers' sum is scaled to one layer's size.
        first = first.detach() / math.sqrt(len(layers))
        self._first = first.half().T, first_bias.detach().half()
        self._second = second.detach().half(), second_bias.detach().half()

    def __call__(
        self, inputs_NTV2: Tensor, levels: Sequence[Tensor], said: Sequence[Said]
    ) -> Tensor:
        """(N, T, V) float32.

        Parameters
        ----------
        inputs_NTV2 : visible values and noised ones, each 0 at the cells of the other
        levels : (C,) of the noise, for each layer
        said : by the windows, to each layer
        """
        cells = F.pad(inputs_NTV2.half(), (0, _ALIGNED - 2)).flatten(0, 2)
        h = _product_and_relu(cells, *self._inputs).view(*inputs_NTV2.shape[:3], -1)
        total = torch.zeros_like(h)
        for layer, level, said_here in zip(self._layers, levels, said, strict=True):
            run_layer(h, total, layer, level.half(), said_here)
        noise = F.linear(_product_and_relu(total.flatten(0, 2), *self._first), *self._second)
        return noise.view(inputs_NTV2.shape[:3]).float()


def _product_and_relu(x_RK: Tensor, weight_KC: Tensor, bias_C: Tensor) -> Tensor:
    return torch._addmm_activation(bias_C, x_RK, weight_KC)
