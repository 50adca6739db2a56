"""Residual layers by kernels say what the layers of CSDI and FGTI say."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from gpu_cases import needs_cuda
from mdtim.baselines import cuda_layers
from mdtim.baselines.cuda_layers import Tiling, fits, pack_encoder, pack_gate, pack_guide
from mdtim.baselines.encoder import encode
from mdtim.baselines.fgti.filling import FusedFilling
from mdtim.baselines.fgti.network import GuidedNoiseNetwork, NetworkSizes, ResidualLayer

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SIZES = NetworkSizes(
    num_channels=64,
    num_layers=2,
    num_heads=8,
    time_width=8,
    variate_width=4,
    num_diffusion_steps=6,
    guide_layers=1,
    cutoff=0.25,
    num_dominant=2,
)


@given(st.integers(1, 48), st.sampled_from([64, 128]))
def test_a_tiling_holds_whole_sequences(length: int, channels: int) -> None:
    tiling = Tiling.of(length, channels)
    assert tiling.packed >= 1
    assert tiling.packed * length <= 16 * tiling.tiles
    assert tiling.tiles <= 3 + (channels == 64)
    assert tiling.count(10) * tiling.packed >= 10


def test_a_lane_reads_eight_neighbours() -> None:
    order = cuda_layers._order(64, CPU)
    assert sorted(order.tolist()) == list(range(64))
    # Of the first 32, lane t of four holds columns 2t and 2t + 1 of four tiles of eight.
    for t in range(4):
        columns = [8 * tile + 2 * t + e for tile in range(4) for e in range(2)]
        assert order[columns].tolist() == list(range(8 * t, 8 * t + 8))


def test_factors_lie_as_the_tensor_cores_take_them() -> None:
    weight = torch.arange(16 * 32).view(16, 32) % 251
    right = cuda_layers._right(weight).view(2, 1, 32, 8)
    for lane in (0, 5, 31):
        g, t = divmod(lane, 4)
        columns = [2 * t, 2 * t + 1, 2 * t + 8, 2 * t + 9]
        expected = weight[8 + g, columns + [16 + column for column in columns]]
        assert right[1, 0, lane].tolist() == expected.tolist()


@pytest.mark.parametrize("channels", [64, 128])
@pytest.mark.parametrize("hidden", [32, 64])
def test_what_fits_finds_room_on_a_multiprocessor(channels: int, hidden: int) -> None:
    room, tiles = 227 * 1024, cuda_layers._MAX_TILES[channels]
    for looks in (False, True)[: 1 + (channels == 64)]:
        assert cuda_layers.encoder_bytes(channels, hidden, tiles, looks=looks) <= room
    assert cuda_layers.gate_bytes(channels) <= room


def test_nothing_fits_without_a_gpu() -> None:
    assert not fits(CPU, 48, 28, 64, 8, hidden=64, guided=True)


@dataclass
class Case:
    """A layer with random weights, and states for it."""

    device: torch.device
    channels: int
    heads: int
    num_steps: int
    num_variates: int
    guided: bool
    windows: int = 2
    samples: int = 3

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        layer = ResidualLayer(self.channels, 13, self.heads).to(self.device).eval()
        if not self.guided:  # CSDI's are narrow
            for attention in (layer.temporal, layer.variate):
                attention.self_layer = nn.TransformerEncoderLayer(
                    self.channels, self.heads, 64, dropout=0.0, activation="gelu", batch_first=True
                ).to(self.device)
        for weight in layer.parameters():
            std = 1 / math.sqrt(weight.shape[-1]) if weight.ndim > 1 else 0.3
            nn.init.normal_(weight, std=std)
        self.layer = layer
        shape = (self.num_steps, self.num_variates)
        number = self.windows * self.samples
        self.h = self._random(number, *shape, self.channels).half()
        self.guide = self._random(self.windows, *shape, 2, self.channels)
        self.side = self._random(self.windows, *shape, 13)
        self.level = self._random(self.channels)

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device)

    def expected(self) -> tuple[Tensor, Tensor]:
        layer, h = self.layer.double(), self.h.double()
        if self.guided:
            condition = layer.condition(self.side.double(), self.guide.double())
            level = self.level.double().expand(len(h), -1)
            said = layer(h, level, condition)
        else:
            y = h + layer.step(self.level.double())
            y = encode(layer.temporal.self_layer, y, "time")
            y = encode(layer.variate.self_layer, y, "variate")
            side = layer.side(self.side.double()).repeat_interleave(self.samples, 0)
            gate, content = (layer.middle(y) + side).chunk(2, dim=-1)
            residual, skip = layer.out(gate.sigmoid() * content.tanh()).chunk(2, dim=-1)
            said = (h + residual) / math.sqrt(2), skip
        self.layer.float()
        return said

    def found(self) -> tuple[Tensor, Tensor]:
        layer = self.layer
        both = (layer.temporal, layer.variate)
        looks = None
        if self.guided:
            keys = [pack_guide(x.keys_and_values(self.guide), self.heads, x.axis) for x in both]
            looks = keys[0], keys[1]
        time, variate = (
            pack_encoder(x.self_layer, *((x.cross, x.norm) if self.guided else ())) for x in both
        )
        gate = pack_gate(layer.middle.weight, layer.out.weight, layer.out.bias)
        packed = cuda_layers.Layer(time, variate, gate, self.heads, 64)
        side = (layer.side(self.side) + layer.middle.bias).half()
        h, total = self.h.clone(), torch.zeros_like(self.h)
        level = layer.step(self.level).half()
        cuda_layers.run_layer(h, total, packed, level, cuda_layers.Said(side, looks))
        return h, total

    @torch.no_grad()
    def check(self) -> None:
        for found, expected in zip(self.found(), self.expected(), strict=True):
            assert float((found - expected).abs().max() / expected.std()) < 1e-2


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    "case",
    [
        (64, 8, 12, 3, True, 2, 2),  # several sequences share a tile, and one tile is not full
        (64, 4, 20, 5, False, 1, 2),
        (128, 4, 17, 2, False, 1, 2),
        (128, 8, 33, 2, False, 1, 1),
    ],
)
def test_a_layer_says_what_its_definition_says_when_emulated(
    case: tuple[int, int, int, int, bool, int, int],
) -> None:
    Case(CPU, *case).check()


@pytest.mark.usefixtures("emulated")
def test_fgti_fills_by_kernels_as_its_network_says_when_emulated() -> None:
    check_filling(CPU, 6, 3)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize(
    "case",
    [
        (64, 8, 48, 28, True),
        (64, 8, 48, 21, True),
        (64, 8, 12, 3, True),
        (64, 8, 64, 50, True),
        (64, 8, 17, 2, True, 1, 1),
        (64, 4, 33, 16, False),
        (128, 4, 48, 28, False),
        (128, 8, 48, 37, False),
        (128, 8, 30, 5, False, 3, 10),
    ],
)
def test_a_layer_says_what_its_definition_says(case: tuple[int, ...]) -> None:
    made = Case(CUDA, *case)  # type: ignore[arg-type]
    shape = made.num_steps, made.num_variates, made.channels, made.heads
    if not fits(CUDA, *shape, hidden=64, guided=made.guided):
        pytest.skip("the kernels are for another GPU")
    made.check()


def check_filling(device: torch.device, num_steps: int, num_variates: int) -> None:
    torch.manual_seed(0)
    network = GuidedNoiseNetwork(SIZES, num_variates).to(device).eval()
    nn.init.normal_(network.out[2].weight)  # type: ignore[arg-type]
    shape = num_steps, num_variates
    visible = torch.randn(3, *shape, device=device)
    seen = torch.rand(3, *shape, device=device) < 0.6
    noised, step = torch.randn(3 * 4, *shape, device=device), torch.full((3 * 4,), 3, device=device)
    with torch.no_grad():
        shown = visible * seen, seen, visible
        said = FusedFilling(network).given(*shown)(noised, 3)
        expected = network(noised, step, network.condition(*shown))
    np.testing.assert_allclose(
        said.cpu(), expected.cpu(), rtol=0, atol=0.01 * float(expected.std())
    )


@pytest.mark.gpu
@needs_cuda
def test_fgti_fills_by_kernels_as_its_network_says() -> None:
    if not fits(CUDA, 24, 5, 64, 8, hidden=64, guided=True):
        pytest.skip("the kernels are for another GPU")
    check_filling(CUDA, 24, 5)
