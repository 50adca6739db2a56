from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gpu_cases import needs_cuda
from mdtim.baselines.diffusion import Schedule
from mdtim.baselines.fgti.filters import dominant_frequencies, high_frequencies
from mdtim.baselines.fgti.imputer import FGTIImputer
from mdtim.baselines.fgti.network import GuidedAttention, GuidedNoiseNetwork, NetworkSizes
from mdtim.baselines.noise import normal
from mdtim.baselines.protocol import HeldOut, conceal
from mdtim.baselines.settings import Settings
from mdtim.kernels import Axis
from system_cases import FGTI, LIMITS, held_out, hide, tiny_system, windows

CPU = torch.device("cpu")


def test_the_filters_part_a_sum_of_waves() -> None:
    step = torch.arange(48.0)[None, :, None]
    slow, fast = torch.sin(2 * torch.pi * step / 48 * 2), torch.sin(2 * torch.pi * step / 48 * 16)
    both = 3 * slow + fast
    torch.testing.assert_close(high_frequencies(both, 0.25), fast, atol=1e-5, rtol=0)
    torch.testing.assert_close(dominant_frequencies(both, 1), 3 * slow, atol=1e-5, rtol=0)
    torch.testing.assert_close(dominant_frequencies(both, 2), both, atol=1e-5, rtol=0)
    odd = both[:, :47]
    assert high_frequencies(odd, 0.5).shape == odd.shape


def test_the_schedule_ends_in_noise_and_one_step_back_inverts_one_step() -> None:
    schedule = Schedule.quadratic(50, 1e-4, 0.5, CPU)
    assert len(schedule) == 50
    assert schedule.keep_K[0] == pytest.approx(1 - 1e-4)
    assert schedule.keep_K[-1] < 1e-3
    assert (schedule.beta_K.diff() > 0).all()
    values, noise = torch.randn(2, 4, 3), torch.randn(2, 4, 3)
    noised = schedule.noised(values, noise, torch.zeros(2, dtype=torch.long))
    back = schedule.back(noised, noise, 0, torch.full_like(noise, torch.nan))
    torch.testing.assert_close(back, values, atol=1e-4, rtol=0)


def test_a_step_back_has_the_mean_and_spread_of_the_posterior() -> None:
    schedule = Schedule.quadratic(10, 1e-3, 0.3, CPU)
    step, values = 6, torch.tensor([1.7])
    noise = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    steps = torch.full((len(noise),), step)
    noised = schedule.noised(values.expand(len(noise)), noise, steps)
    fresh = torch.randn(len(noise), generator=torch.Generator().manual_seed(1))
    back = schedule.back(noised, noise, step, fresh)
    keep = schedule.keep_K[step - 1]
    # Noising to step - 1 at once and noising to step, then one step back, are the same law.
    assert float(back.mean()) == pytest.approx(float(keep.sqrt() * 1.7), abs=0.01)
    assert float(back.var()) == pytest.approx(float(1 - keep), rel=0.02)


def test_normal_numbers_are_normal_and_belong_to_their_key() -> None:
    keys = torch.arange(100_000)
    drawn = normal(0, 3, keys)
    assert float(drawn.mean()) == pytest.approx(0, abs=0.01)
    assert float(drawn.std()) == pytest.approx(1, abs=0.01)
    assert torch.equal(normal(0, 3, keys[50:60]), drawn[50:60])
    assert not torch.equal(normal(0, 4, keys), drawn)


def sizes() -> NetworkSizes:
    known = NetworkSizes.__dataclass_fields__
    return NetworkSizes(**{name: value for name, value in FGTI.items() if name in known})


def test_the_network_uses_the_guide_in_both_layers() -> None:
    torch.manual_seed(0)
    network = GuidedNoiseNetwork(sizes(), 3)
    torch.nn.init.normal_(network.out[2].weight)  # type: ignore[arg-type]
    visible, seen = torch.randn(2, 12, 3), torch.rand(2, 12, 3) < 0.7
    condition = network.condition(visible * seen, seen, visible)
    assert condition.layers[0].temporal.key.shape == (2 * 3, 2, 2 * 12, 4)
    assert condition.layers[0].variate.key.shape == (2 * 12, 2, 2 * 3, 4)
    step = torch.tensor([1, 4])
    said = network(torch.randn(2, 12, 3), step, condition)
    assert said.shape == (2, 12, 3)
    said.sum().backward()
    for layer in network.layers:
        for attention in (layer.temporal, layer.variate):  # type: ignore[union-attr]
            assert attention.cross.in_proj_weight.grad.abs().sum() > 0
    assert network.guide_in.weight.grad is not None


@pytest.mark.parametrize("axis", ["time", "variate"])
def test_guided_attention_is_a_layer_and_a_look_of_pytorch(axis: Axis) -> None:
    torch.manual_seed(0)
    attention = GuidedAttention(8, 2, axis).eval()
    h, guide = torch.randn(2, 5, 12, 3, 8), torch.randn(2, 12, 3, 2, 8)
    said = attention(h.flatten(0, 1), attention.look(guide)).view(h.shape)
    for sample in range(5):
        x, tokens = h[:, sample], guide.movedim(3, 1)
        if axis == "time":
            x, tokens = x.transpose(1, 2), tokens.transpose(2, 3)
        x = attention.self_layer(x.reshape(-1, *x.shape[2:]))
        tokens = tokens.movedim(1, 2).reshape(len(x), -1, 8)  # of a sequence: its views
        looked, _ = attention.cross(attention.norm(x), tokens, tokens)
        expected = (x + looked).view(2, -1, *x.shape[1:])
        expected = expected.transpose(1, 2) if axis == "time" else expected
        torch.testing.assert_close(said[:, sample], expected, atol=1e-5, rtol=1e-5)


def test_the_samples_of_a_window_are_as_if_each_were_alone() -> None:
    torch.manual_seed(0)
    network = GuidedNoiseNetwork(sizes(), 3).eval()
    torch.nn.init.normal_(network.out[2].weight)  # type: ignore[arg-type]
    visible, seen = torch.randn(2, 12, 3), torch.rand(2, 12, 3) < 0.7
    condition = network.condition(visible * seen, seen, visible)
    noised, step = torch.randn(2, 4, 12, 3), torch.randint(0, 6, (2, 4))
    together = network(noised.flatten(0, 1), step.flatten(), condition).view(noised.shape)
    for sample in range(4):
        alone = network(noised[:, sample], step[:, sample], condition)
        torch.testing.assert_close(together[:, sample], alone, atol=1e-5, rtol=1e-5)


def test_the_learning_rate_drops_by_the_clock_where_time_ends_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training, _, _ = windows()
    imputer = tiny_system(
        "fgti", limits=replace(LIMITS, max_minutes=1, max_epochs=100, patience=100)
    )
    assert isinstance(imputer, FGTIImputer)
    rates: list[float] = []
    now = [0.0]

    class Spy(torch.optim.Adam):
        def step(self, closure: Any = None) -> None:
            rates.append(self.param_groups[0]["lr"])
            now[0] += 1.0  # a step takes a second

    monkeypatch.setattr(torch.optim, "Adam", Spy)
    # The module's own clock: servers of other tests sleep by the real one.
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("mdtim.baselines.training_clock.time", clock)
    imputer.fit(training[:32], held_out())
    assert rates[0] == pytest.approx(0.01)
    assert rates[50] == pytest.approx(0.001)
    assert rates[-1] == pytest.approx(0.0001)
    assert len(rates) == pytest.approx(60, abs=3)


def test_a_standstill_before_the_last_drop_ends_no_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training, _, _ = windows()
    imputer = tiny_system("fgti", limits=replace(LIMITS, max_epochs=10, patience=1))
    assert isinstance(imputer, FGTIImputer)
    errors = iter(range(10))
    monkeypatch.setattr(imputer, "_validation_error", lambda validation: float(next(errors)))
    imputer.fit(training[:32], held_out())
    assert list(errors) == [9]  # behind the last drop the first worse epoch is the last


def test_the_learning_rate_drops_by_updates_where_these_end_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training, _, _ = windows()
    imputer = tiny_system("fgti", limits=replace(LIMITS, max_minutes=60, max_epochs=10))
    assert isinstance(imputer, FGTIImputer)
    rates: list[float] = []

    class Spy(torch.optim.Adam):
        def step(self, closure: Any = None) -> None:
            rates.append(self.param_groups[0]["lr"])
            super().step()

    monkeypatch.setattr(torch.optim, "Adam", Spy)
    imputer.limits = replace(imputer.limits, patience=10)
    imputer.fit(training[: imputer.limits.batch_size], held_out())
    assert rates == pytest.approx([0.01] * 8 + [0.001, 0.0001])


def test_fgti_learns_fills_and_keeps() -> None:
    training, _, test = windows()
    hidden = hide(test, 2)
    imputer = tiny_system("fgti", limits=replace(LIMITS, max_epochs=8, patience=8))
    assert isinstance(imputer, FGTIImputer)
    imputer.fit(training, held_out())
    filled = imputer.fill(conceal(test, hidden))
    assert filled.samples_SWTV is not None
    assert filled.samples_SWTV.shape == (5, *test.shape)
    assert (filled.values_WTV[~hidden] == test[~hidden]).all()
    mean_error = np.abs(test - training.mean(axis=(0, 1)))[hidden].mean()
    assert np.abs(filled.values_WTV - test)[hidden].mean() < mean_error

    poisoned = np.where(hidden, np.float32(1e9), test)
    assert (imputer.fill(conceal(poisoned, hidden)).values_WTV == filled.values_WTV).all()
    alone = imputer.fill(conceal(test, hidden)[3:4])
    np.testing.assert_allclose(alone.values_WTV, filled.values_WTV[3:4], rtol=1e-4, atol=1e-5)
    restored = tiny_system("fgti", seed=0)
    assert isinstance(restored, FGTIImputer)
    restored.restore(imputer.state())
    assert (restored.fill(conceal(test, hidden)).values_WTV == filled.values_WTV).all()


def test_float16_of_a_gpu_gives_nearly_the_same_samples() -> None:
    _, _, test = windows()
    imputer = tiny_system("fgti")
    assert isinstance(imputer, FGTIImputer)
    torch.nn.init.normal_(imputer.network.out[2].weight)  # type: ignore[arg-type]
    visible = conceal(test[:6], hide(test[:6], 2))
    exact = imputer.fill(visible).samples_SWTV
    imputer.fill_dtype = torch.float16
    imputer.restore(imputer.state())
    near = imputer.fill(visible).samples_SWTV
    assert exact is not None
    assert near is not None
    np.testing.assert_allclose(near, exact, atol=0.02 * exact.std())


@pytest.mark.gpu
@needs_cuda
def test_a_gpu_draws_the_samples_of_a_cpu() -> None:
    _, _, test = windows()
    visible = conceal(test[:6], hide(test[:6], 2))
    samples = []
    for device in (CPU, torch.device("cuda")):
        imputer = FGTIImputer(
            Settings("fgti", dict(FGTI), LIMITS, "a test"), *test.shape[1:], 0, device
        )
        generator = torch.Generator().manual_seed(1)
        weight = torch.randn(imputer.network.out[2].weight.shape, generator=generator)
        imputer.network.out[2].weight.data.copy_(weight)
        samples.append(imputer.fill(visible).samples_SWTV)
    np.testing.assert_allclose(samples[1], samples[0], atol=0.02 * np.std(samples[0]))


def test_fgti_fills_a_variate_with_nothing_observed_and_learns_from_gaps() -> None:
    training, _, test = windows()
    training = conceal(training[:16], hide(training[:16], 5))
    imputer = tiny_system("fgti")
    imputer.fit(training, HeldOut(training, hide(training, 6)))
    empty = test[:2].copy()
    empty[:, :, 1] = np.nan
    assert np.isfinite(imputer.fill(empty).values_WTV).all()


def test_fgti_stops_by_the_clock_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    training, _, _ = windows()
    imputer = tiny_system("fgti", limits=replace(LIMITS, max_minutes=0, max_epochs=1_000))
    assert isinstance(imputer, FGTIImputer)
    steps, real = [], imputer._training_loss
    monkeypatch.setattr(imputer, "_training_loss", lambda *x: (steps.append(1), real(*x))[1])
    imputer.fit(training, held_out())
    assert len(steps) == 1
    assert np.isfinite(imputer.fill(training[:2]).values_WTV).all()
