from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import tiny_config, waves
from mdtim import missingness
from mdtim.inference import Predictor, clumping, fill_cells, windows_to_fill
from mdtim.network import FactorizedDiT, Tokens
from mdtim.runtime import keyed_uniform
from mdtim.sampling import sample_series
from mdtim.series import DeviceSeries
from mdtim.wanted import Wanted

CPU = torch.device("cpu")


def predictor(num_variates: int, **changes: object) -> Predictor:
    config = tiny_config(**changes)
    torch.manual_seed(0)
    network = FactorizedDiT(config.network, config.tokenizer, num_variates).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return Predictor(network, config)


def holey(num_steps: int, num_variates: int, seed: int = 0, share: float = 0.3) -> np.ndarray:
    values = waves(num_steps, num_variates, seed).astype(np.float32)
    values[np.random.default_rng(seed + 1).random(values.shape) < share] = np.nan
    return values


def fill(values: np.ndarray, offsets: list[int], length: int, batch: int = 8, **options: object):
    changes = {k: v for k, v in options.items() if k != "keep"}
    return fill_cells(
        predictor(values.shape[1], **changes),
        DeviceSeries.put(values, CPU),
        np.array(offsets),
        length,
        batch_size=batch,
        keep_distribution=bool(options.get("keep", True)),
    )


@given(st.integers(1, 70), st.integers(1, 20), st.integers(0, 5))
def test_every_missing_cell_is_filled_once(num_steps: int, length: int, seed: int) -> None:
    values = holey(num_steps, 2, seed)
    cells = fill(values, [0, num_steps // 2, num_steps], length)
    found = set(zip(cells.rows.tolist(), cells.variates.tolist(), strict=True))
    assert found == set(map(tuple, np.argwhere(np.isnan(values)).tolist()))
    assert len(found) == len(cells.filled)
    assert np.isfinite(cells.filled).all()


@pytest.mark.parametrize("changes", [{}, {"interpolated": False, "num_draws": 3}])
def test_the_answer_does_not_depend_on_the_batch_size(changes: dict[str, object]) -> None:
    values = holey(130, 3)
    base = fill(values, [0, 130], 16, batch=64, **changes)
    for batch in (1, 3, 7):
        other = fill(values, [0, 130], 16, batch=batch, **changes)
        assert np.array_equal(other.rows, base.rows)
        assert np.array_equal(other.filled, base.filled)
        assert base.distribution is not None
        assert other.distribution is not None
        assert torch.equal(other.distribution.quantile(0.9), base.distribution.quantile(0.9))


@pytest.mark.parametrize(("room", "batches"), [(9, [8, 8, 4]), (200, [20])])
def test_the_answer_does_not_depend_on_how_many_draws_come_together(
    room: int, batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = predictor(3, interpolated=False, num_draws=5)
    batched = Predictor(one.network, one.config, max_windows=room)
    sizes: list[int] = []
    distribution = batched._network_distribution

    def counted(tokens: Tokens, wanted: Wanted | None) -> torch.Tensor:
        sizes.append(len(tokens.sigma_B))
        return distribution(tokens, wanted)

    monkeypatch.setattr(batched, "_network_distribution", counted)
    values = torch.from_numpy(waves(16, 3).astype(np.float32)).expand(4, -1, -1)
    keys = torch.arange(values.numel()).view(values.shape)
    visible = keyed_uniform(5, 0, keys) < 0.5
    expected, scale = one.probs(values, visible, keys)
    got, got_scale = batched.probs(values, visible, keys)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    assert torch.equal(got_scale.center_B1V, scale.center_B1V)
    assert sizes == batches


def test_means_alone_are_the_means_of_the_distributions() -> None:
    values = holey(130, 3)
    means = fill(values, [0, 130], 16, keep=False)
    full = fill(values, [0, 130], 16)
    assert means.distribution is None
    np.testing.assert_allclose(means.filled, full.filled, atol=1e-12)
    assert full.distribution is not None
    np.testing.assert_allclose(full.distribution.mean(), full.filled, atol=3e-3)


def test_one_series_does_not_see_another() -> None:
    values = holey(60, 2)
    changed = values.copy()
    changed[:30] += 5
    one, two = fill(values, [0, 30, 60], 16), fill(changed, [0, 30, 60], 16)
    np.testing.assert_allclose(one.filled[one.rows >= 30], two.filled[two.rows >= 30], atol=2e-6)


def test_draws_are_averaged_and_differ_from_one() -> None:
    values = holey(60, 2)
    one = fill(values, [0, 60], 16, interpolated=False, num_draws=1)
    ten = fill(values, [0, 60], 16, interpolated=False, num_draws=10)
    exact = fill(values, [0, 60], 16, interpolated=True)
    assert not np.allclose(one.filled, ten.filled)
    assert np.abs(ten.filled - exact.filled).mean() < np.abs(one.filled - exact.filled).mean()


def test_the_continuous_ablation_fills_through_the_same_path() -> None:
    cells = fill(holey(60, 2), [0, 60], 16, continuous=True, prior="none")
    assert np.isfinite(cells.filled).all()


def test_nothing_missing_needs_no_window() -> None:
    values = waves(50, 2).astype(np.float32)
    assert len(windows_to_fill(np.isnan(values), np.array([0, 50]), 16)) == 0
    cells = fill(values, [0, 50], 16)
    assert len(cells.filled) == 0
    assert cells.distribution is not None


def test_a_joint_sample_keeps_every_anchor_and_fills_the_rest() -> None:
    values = holey(70, 2)
    series = DeviceSeries.put(values, CPU)
    drawn = [
        sample_series(predictor(2), series, np.array([0, 70]), 16, batch_size=4, sample=number)
        for number in (0, 1)
    ]
    known = ~np.isnan(values)
    for one in drawn:
        assert np.array_equal(one[known].astype(np.float32), values[known])
        assert np.isfinite(one).all()
    assert not np.allclose(drawn[0], drawn[1])


def test_a_joint_sample_does_not_depend_on_the_batch_size() -> None:
    series = DeviceSeries.put(holey(70, 2), CPU)
    one, two = (
        sample_series(predictor(2), series, np.array([0, 70]), 16, batch_size=size, sample=0)
        for size in (1, 16)
    )
    np.testing.assert_allclose(one, two, atol=1e-4)


def test_progress_counts_up_to_the_number_of_windows() -> None:
    seen: list[tuple[int, int]] = []
    fill_cells(
        predictor(2),
        DeviceSeries.put(holey(60, 2), CPU),
        np.array([0, 60]),
        16,
        batch_size=2,
        keep_distribution=False,
        on_windows=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1][0] == seen[-1][1]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_time_is_matched_to_the_masked_share_or_zero_without() -> None:
    values = torch.zeros((2, 4, 2))
    visible = torch.ones_like(values, dtype=torch.bool)
    visible[1, :2] = False
    for matched, expected in ((True, [0.0, -float(np.log(1 - 0.999 / 2))]), (False, [0.0, 0.0])):
        tokens, _ = predictor(2, matched_time=matched)._tokenize(values, visible, None, None)
        np.testing.assert_allclose(tokens.sigma_B.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("rate", [0.3, 0.5, 0.7])
def test_clumping_is_one_where_chance_masks_and_more_where_gaps_are_longer(rate: float) -> None:
    shape, generator = (300, 48, 7), np.random.default_rng(1)
    uniform, geometric = (
        clumping(torch.from_numpy(~way(shape, rate, generator)), torch.ones(shape[:2]).bool())
        for way in (missingness.uniform, missingness.geometric)
    )
    assert float(uniform.mean()) == pytest.approx(1, abs=0.02)
    # Gaps of three steps on average, but for the ends of a window that cut them.
    assert float(geometric.mean()) == pytest.approx(3 * (1 - rate), rel=0.1)


def test_clumping_knows_the_gaps_of_a_window_without_chance() -> None:
    visible = torch.ones((4, 10, 2), dtype=torch.bool)
    visible[1, 3:8, 0] = False  # one gap of five steps, where chance makes some of 1.3
    visible[2] = False
    visible[3, ::2] = False  # every second step: as many gaps as there can be
    expected = [0.0, 2 * 0.25 * (1 + 9 * 0.75), 1.0, 2 * 0.5 * (1 + 9 * 0.5) / 10]
    inside = torch.ones((4, 10), dtype=torch.bool)
    np.testing.assert_allclose(clumping(visible, inside).numpy(), expected)
    # What lies beyond the end of a series is no gap.
    longer = torch.cat([visible, torch.zeros((4, 6, 2), dtype=torch.bool)], dim=1)
    inside = torch.cat([inside, torch.zeros((4, 6), dtype=torch.bool)], dim=1)
    np.testing.assert_allclose(clumping(longer, inside).numpy(), expected)
