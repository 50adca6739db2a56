"""Samples of CSDI here are those that PyPOTS's own code draws, but for the order of its sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from gpu_cases import needs_cuda
from mdtim.baselines import cuda_layers, noise
from mdtim.baselines.csdi import CSDISampler
from mdtim.baselines.noise import cell_keys, normal
from mdtim.baselines.protocol import conceal
from mdtim.baselines.pypots import PyPOTSImputer, _quiet
from mdtim.baselines.settings import settings_of
from system_cases import LIMITS, held_out, hide, tiny_system, windows

pytest.importorskip("pypots")
CPU = torch.device("cpu")
TEST = windows()[2][:6]
VISIBLE = conceal(TEST, hide(TEST, 3))


def core(**values: object) -> Any:
    """An untrained model whose last weight is not zero."""
    system = tiny_system("csdi", **values)
    assert isinstance(system, PyPOTSImputer)
    torch.manual_seed(0)
    with _quiet():
        system._build()
    model = system.model.model.eval()
    torch.nn.init.normal_(model.backbone.diff_model.output_projection2.weight)
    return model


def test_the_noise_is_what_pypots_says() -> None:
    model = core()
    sampler = CSDISampler(model, 0, CPU)
    inputs = torch.randn(len(TEST), *TEST.shape[1:], 2)
    seen = torch.rand(TEST.shape) < 0.6
    steps = torch.arange(TEST.shape[1]).expand(len(TEST), -1)
    side = model.get_side_info(steps, seen.transpose(1, 2).float())
    expected = model.backbone.diff_model(inputs.permute(0, 3, 2, 1), side, torch.tensor([4]))
    with torch.no_grad():
        said = sampler.noise(inputs, sampler._sides(seen), 4)
    torch.testing.assert_close(said, expected.transpose(1, 2), atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("channels", "heads"), [(64, 8), (128, 4)])
def test_the_kernels_say_the_same_noise_when_emulated(
    channels: int, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = core(n_channels=channels, n_heads=heads)
    for weight in model.backbone.diff_model.residual_layers.parameters():
        if weight.ndim == 1:  # untrained biases are zeros, which any mistake leaves alone
            torch.nn.init.normal_(weight, std=0.3)
    inputs, seen = torch.randn(2 * len(TEST), *TEST.shape[1:], 2), torch.rand(TEST.shape) < 0.6
    sampler = CSDISampler(model, 0, CPU)
    with torch.no_grad():
        exact = sampler.noise(inputs, sampler._sides(seen), 4)
        monkeypatch.setattr(cuda_layers, "fits", lambda *args, **options: True)
        sampler.dtype, sampler.network = torch.float16, sampler.network.half()
        said = sampler.noise(inputs, sampler._sides(seen), 4)
    assert sampler._fused is not None
    np.testing.assert_allclose(said, exact, rtol=0, atol=0.02 * float(exact.std()))


def test_samples_are_those_of_pypots_for_the_same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    model, count = core(), 3
    levels = model.backbone.n_diffusion_steps
    keys = cell_keys(VISIBLE, count).view(len(VISIBLE), count, *VISIBLE.shape[1:])
    order = [(sample, step) for sample in range(count) for step in reversed(range(1, levels + 1))]

    def next_noise(like: torch.Tensor) -> torch.Tensor:
        # First what a sample starts from, then the noise of its steps; the last step has none.
        sample, step = order.pop(0)
        return normal(7, step, keys[:, sample]).transpose(1, 2)

    drawn = CSDISampler(model, 7, CPU).draw(VISIBLE, count)
    seen = torch.from_numpy(~np.isnan(VISIBLE)).transpose(1, 2).float()
    inputs = {
        "X": torch.from_numpy(np.nan_to_num(VISIBLE)).transpose(1, 2),
        "cond_mask": seen,
        "observed_tp": torch.arange(VISIBLE.shape[1]).expand(len(VISIBLE), -1),
    }
    monkeypatch.setattr(torch, "randn_like", next_noise)
    with torch.no_grad():
        given = model(inputs, n_sampling_times=count)["reconstruction"]
    assert not order
    np.testing.assert_allclose(drawn, given.transpose(0, 1).numpy(), rtol=1e-3, atol=1e-3)


def test_float16_of_a_gpu_gives_nearly_the_same_samples() -> None:
    sampler = CSDISampler(core(), 0, CPU)
    exact = sampler.draw(VISIBLE, 2)
    sampler.dtype = torch.float16
    sampler.network = sampler.network.to(torch.float16)
    np.testing.assert_allclose(sampler.draw(VISIBLE, 2), exact, atol=0.02 * exact.std())


@pytest.mark.gpu
@needs_cuda
def test_a_gpu_draws_the_samples_of_a_cpu() -> None:
    model = core()
    exact = CSDISampler(model, 0, CPU).draw(VISIBLE, 3)
    cuda = torch.device("cuda")
    drawn = CSDISampler(model.to(cuda), 0, cuda).draw(VISIBLE, 3)
    np.testing.assert_allclose(drawn, exact, atol=0.02 * exact.std())


def test_a_window_gets_the_same_samples_in_any_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = CSDISampler(core(), 0, CPU)
    whole = sampler.draw(VISIBLE, 2)
    monkeypatch.setattr(noise, "CELLS_AT_ONCE", 1)  # a window at a time
    np.testing.assert_allclose(sampler.draw(VISIBLE[::-1].copy(), 2)[:, ::-1], whole, atol=1e-4)
    assert (whole[0] != whole[1]).any()


def test_parts_are_of_one_size_on_a_gpu_and_as_large_as_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = Mock(total_memory=2**19 * noise._BYTES_OF_A_CELL)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: memory)
    which = noise.parts(5, 2**19 // 3, torch.device("cuda"))
    assert [part.tolist() for part in which] == [[0, 1], [2, 3], [4, 0]]
    memory.total_memory *= 4
    (whole,) = noise.parts(5, 2**19 // 3, torch.device("cuda"))
    assert whole.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]


def test_a_single_variate_attends_to_nothing() -> None:
    model = core()
    sampler = CSDISampler(model, 0, CPU)
    inputs, seen = torch.randn(2, 12, 1, 2), torch.rand(2, 12, 1) < 0.5
    model.n_features = 1
    model.embed_layer = torch.nn.Embedding(1, 4)
    side = model.get_side_info(torch.arange(12).expand(2, -1), seen.transpose(1, 2).float())
    expected = model.backbone.diff_model(inputs.permute(0, 3, 2, 1), side, torch.tensor([2]))
    with torch.no_grad():
        said = sampler.noise(inputs, sampler._sides(seen), 2)
    torch.testing.assert_close(said, expected.transpose(1, 2), atol=1e-5, rtol=1e-5)


def test_the_rate_drops_as_its_authors_drop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of("csdi", "weather", "authors").values
    drops = {name: settings[name] for name in ("lr", "lr_drops", "weight_decay")}
    system = tiny_system("csdi", limits=replace(LIMITS, max_epochs=5, patience=1), **drops)
    seen: list[tuple[float, float]] = []
    step = torch.optim.Adam.step

    def watched(self: torch.optim.Adam, closure: Any = None) -> Any:
        (group,) = self.param_groups
        seen.append((group["lr"], group["weight_decay"]))
        return step(self, closure)

    monkeypatch.setattr(torch.optim.Adam, "step", watched)
    system.fit(windows()[0], held_out())
    assert len(seen) == 5 * 24
    expected = [1e-3] * 90 + [1e-4] * 18 + [1e-5] * 12
    np.testing.assert_allclose([rate for rate, _ in seen], expected)
    assert {decay for _, decay in seen} == {1e-6}
