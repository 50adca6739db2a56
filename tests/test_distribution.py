from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mdtim.calibration import NUM_GAPS, Calibration, LevelMap, Levels, Places
from mdtim.distribution import (
    BinDistribution,
    GaussianDistribution,
    SampleDistribution,
    mix,
)
from mdtim.metrics import sample_crps


def random_distribution(seed: int, cells: int = 5, bins: int = 12) -> BinDistribution:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn((cells, bins), generator=generator, dtype=torch.float64)
    low = torch.randn(cells, generator=generator, dtype=torch.float64)
    step = torch.rand(cells, generator=generator, dtype=torch.float64) + 0.1
    return BinDistribution(logits.softmax(-1), low, step)


def drawn(distribution: BinDistribution, count: int) -> np.ndarray:
    """Evenly spaced quantiles: a sample without noise."""
    levels = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    shape = (count, *distribution.low.shape)
    often = BinDistribution(
        distribution.probs.expand(*shape, -1),
        distribution.low.expand(shape),
        distribution.step.expand(shape),
    )
    return often.quantile(levels[:, None].expand(shape)).numpy()


@given(st.integers(0, 200))
def test_mean_and_std_are_those_of_its_samples(seed: int) -> None:
    distribution = random_distribution(seed)
    samples = drawn(distribution, 4_000)
    np.testing.assert_allclose(distribution.mean().numpy(), samples.mean(0), atol=2e-3)
    np.testing.assert_allclose(distribution.std().numpy(), samples.std(0), atol=5e-3)


@given(st.integers(0, 200), st.floats(0.01, 0.99))
def test_quantile_and_cdf_are_inverse(seed: int, level: float) -> None:
    distribution = random_distribution(seed)
    back = distribution.cdf(distribution.quantile(level))
    np.testing.assert_allclose(back.numpy(), level, atol=1e-9)


@given(st.integers(0, 200), st.floats(-4, 8))
def test_exact_crps_is_the_limit_of_the_sample_formula(seed: int, truth: float) -> None:
    distribution = random_distribution(seed)
    known = torch.full((5,), truth, dtype=torch.float64)
    exact = distribution.crps(known).numpy()
    samples = drawn(distribution, 2_000)
    for cell in range(5):
        estimate = sample_crps([truth], samples[:, cell : cell + 1], np.array([True]))
        assert exact[cell] == pytest.approx(estimate, abs=5e-3)


def test_masses_that_do_not_sum_to_one_change_no_score() -> None:
    whole = random_distribution(3)
    short = BinDistribution(0.98 * whole.probs, whole.low, whole.step)
    truth = torch.linspace(-3, 5, 5, dtype=torch.float64)
    torch.testing.assert_close(short.crps(truth), whole.crps(truth))
    torch.testing.assert_close(short.cdf(truth), whole.cdf(truth))


def test_a_known_constant_is_a_step() -> None:
    low = torch.full((3,), 5.0, dtype=torch.float64)
    constant = BinDistribution(random_distribution(0).probs[:3], low, torch.zeros_like(low))
    points = torch.tensor([4.9, 5.0, 5.2], dtype=torch.float64)
    assert constant.cdf(points).tolist() == [0.0, 1.0, 1.0]


@pytest.mark.parametrize(("first", "mass"), [(58, 0.3), (40, 0.45)])
def test_half_precision_masses_do_not_spoil_the_spread(first: int, mass: float) -> None:
    probs = torch.zeros(1, 60, dtype=torch.float16)
    probs[0, first], probs[0, first + 1] = mass, 1 - mass
    one = torch.ones(1, dtype=torch.float64)
    narrow = BinDistribution(probs, one, one)
    assert float(narrow.std()) == pytest.approx((mass * (1 - mass) + 1 / 12) ** 0.5, rel=1e-3)


def test_a_constant_is_certain() -> None:
    probs = torch.zeros(1, 4)
    probs[0, 0] = 1
    constant = BinDistribution(probs, torch.tensor([5.0]).double(), torch.tensor([0.0]).double())
    assert float(constant.mean()) == 5.0
    assert float(constant.std()) == 0.0
    assert float(constant.quantile(0.9)) == 5.0
    assert float(constant.crps(torch.tensor([7.0]))) == 2.0


@given(st.integers(0, 200))
def test_a_mixture_keeps_the_mean_and_has_the_quantiles_of_its_parts(seed: int) -> None:
    one, two = random_distribution(seed), random_distribution(seed + 1_000)
    weight = torch.tensor([[0.25, 0.75]], dtype=torch.float64).expand(5, 2)
    mixed = mix(
        weight,
        torch.stack([one.probs, two.probs], 1),
        torch.stack([one.low, two.low], 1),
        torch.stack([one.step, two.step], 1),
    )
    expected = 0.25 * one.mean() + 0.75 * two.mean()
    np.testing.assert_allclose(mixed.mean().numpy(), expected.numpy(), atol=1e-9)
    np.testing.assert_allclose(mixed.probs.sum(-1).numpy(), 1.0)
    middle = mixed.quantile(0.5)
    level = 0.25 * one.cdf(middle) + 0.75 * two.cdf(middle)
    # Putting both on one grid smears a mass by at most a bin to each side.
    edges = [
        0.25 * one.cdf(middle + s * 2 * mixed.step) + 0.75 * two.cdf(middle + s * 2 * mixed.step)
        for s in (-1, 1)
    ]
    assert ((edges[0] <= 0.5 + 1e-9) & (edges[1] >= 0.5 - 1e-9)).all(), level


def test_a_mixture_of_one_part_is_that_part() -> None:
    one = random_distribution(3)
    weight = torch.tensor([[2.0, 0.0]], dtype=torch.float64).expand(5, 2)
    mixed = mix(
        weight,
        torch.stack([one.probs, torch.zeros_like(one.probs)], 1),
        torch.stack([one.low, torch.zeros_like(one.low)], 1),
        torch.stack([one.step, torch.zeros_like(one.step)], 1),
    )
    np.testing.assert_allclose(mixed.probs.numpy(), one.probs.numpy(), atol=1e-12)
    assert torch.equal(mixed.low, one.low)


def gaussian_bins(count: int, spread: float) -> BinDistribution:
    """`count` cells that are all said to be normal around 0 with the given spread."""
    centers = torch.linspace(-6, 6, 60, dtype=torch.float64)
    probs = torch.exp(-0.5 * (centers / spread) ** 2)
    low = torch.full((count,), -6.0, dtype=torch.float64)
    return BinDistribution((probs / probs.sum()).expand(count, 60), low, low / -6 * 12 / 59)


def normal(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def places(
    count: int,
    share: torch.Tensor | None = None,
    clumping: torch.Tensor | None = None,
    gap: torch.Tensor | None = None,
    variate: torch.Tensor | None = None,
) -> Places:
    """Cells that differ in nothing but what is given."""
    return Places(
        torch.zeros(count) if share is None else share,
        torch.ones(count) if clumping is None else clumping,
        torch.ones(count) if gap is None else gap,
        torch.zeros(count, dtype=torch.int64) if variate is None else variate,
    )


@pytest.mark.parametrize("spread", [0.5, 2.0])
def test_calibration_makes_intervals_cover_what_they_promise(spread: float) -> None:
    wrong = gaussian_bins(10_000, spread)
    calibration = Calibration.fit(wrong, normal(10_000), places(10_000), 0.0, 1)
    right = calibration.apply(wrong, places(10_000))
    truth = normal(10_000, seed=1)
    for coverage in (0.5, 0.8, 0.9, 0.95):
        lower, upper = right.quantile((1 - coverage) / 2), right.quantile((1 + coverage) / 2)
        inside = ((truth >= lower) & (truth <= upper)).double().mean()
        assert float(inside) == pytest.approx(coverage, abs=0.02)
    assert right.crps(truth).mean() < wrong.crps(truth).mean()


def test_a_known_blur_is_taken_away_and_the_mean_stays() -> None:
    distribution = random_distribution(1)
    sharp = distribution.sharpened(blur=0.5, floor=0.1)
    np.testing.assert_allclose(sharp.mean().numpy(), distribution.mean().numpy(), atol=1e-12)
    before, after = ((one.std() / distribution.step).numpy() ** 2 for one in (distribution, sharp))
    expected = np.maximum(before - 1 / 12 - 0.5, 0.1**2)
    np.testing.assert_allclose(after, expected, atol=1e-9)


def test_predictions_finer_than_a_bin_get_intervals_finer_than_a_bin() -> None:
    truth = 0.01 * normal(5_000)
    probs = torch.zeros((5_000, 11), dtype=torch.float64)
    probs[:, 3:8] = torch.tensor([0.135, 0.607, 1.0, 0.607, 0.135], dtype=torch.float64) / 2.484
    low = torch.full((5_000,), -5.0, dtype=torch.float64)
    blurred = BinDistribution(probs, low, torch.ones_like(low))
    calibration = Calibration.fit(blurred, truth, places(5_000), 0.92 + 1 / 6, 1)
    sharp = calibration.apply(blurred, places(5_000))
    lower, upper = sharp.quantile(0.05), sharp.quantile(0.95)
    assert float((upper - lower).mean()) < 0.06
    assert float(((truth >= lower) & (truth <= upper)).double().mean()) == pytest.approx(
        0.9, abs=0.03
    )


@given(st.integers(0, 200), st.floats(0.3, 3.0))
def test_a_mapped_distribution_has_the_mapped_levels_between_its_old_bins_too(
    seed: int, power: float
) -> None:
    distribution = random_distribution(seed)
    mapped = distribution.mapped(lambda level: level**power)
    assert mapped.probs.shape == distribution.probs.shape
    np.testing.assert_allclose(mapped.probs.sum(-1).numpy(), 1, atol=1e-9)
    # Exact at the edges of the new bins, but for the tails outside of them.
    edges = mapped.low[:, None] + mapped.step[:, None] * (torch.arange(11) + 0.5)
    np.testing.assert_allclose(
        mapped.cdf_at(edges).numpy(), distribution.cdf_at(edges).numpy() ** power, atol=1e-9
    )
    assert (mapped.step <= distribution.step).all()


def test_sharp_predictions_are_calibrated_inside_a_bin() -> None:
    # Heavy tails: half of the cells lie much closer to the centre than a bin's even mass says.
    truth, fresh = (0.02 * x * x.abs() for x in (normal(20_000), normal(20_000, seed=5)))
    probs = torch.zeros((20_000, 61), dtype=torch.float64)
    probs[:, 29:32] = torch.tensor([0.1, 0.8, 0.1], dtype=torch.float64)
    low = torch.full((20_000,), -30.0, dtype=torch.float64)
    said = BinDistribution(probs, low, torch.ones_like(low))
    calibration = Calibration.fit(said, truth, places(20_000), 0.15, 1)
    right = calibration.apply(said, places(20_000))
    level = right.cdf(fresh)
    for coverage in (0.5, 0.8, 0.9):
        inside = (level - 0.5).abs() <= coverage / 2
        assert float(inside.double().mean()) == pytest.approx(coverage, abs=0.02)


def test_a_perfect_distribution_is_left_alone() -> None:
    perfect = gaussian_bins(20_000, 1.0)
    fitted = Calibration.fit(perfect, normal(20_000), places(20_000), 0.0, 1)
    (calibration,) = set(fitted.by_place)
    levels = torch.linspace(0, 1, 101, dtype=torch.float64)
    mapped = calibration.apply(levels, torch.zeros_like(levels))
    np.testing.assert_allclose(mapped.numpy(), levels.numpy(), atol=0.02)


def everyone(count: int) -> torch.Tensor:
    return torch.ones(count, dtype=torch.bool)


@given(st.integers(1, 200), st.integers(0, 20))
def test_a_calibration_is_monotone_and_keeps_the_ends(count: int, seed: int) -> None:
    said, share = gaussian_bins(count, 1.0), torch.rand(count)
    calibration = Levels.fit(said, normal(count, seed), share, everyone(count), blur=1.0)
    grid = torch.linspace(0, 1, 101, dtype=torch.float64)
    mapped = calibration.apply(grid, torch.full_like(grid, 0.3))
    assert (mapped.diff() >= -1e-12).all()
    assert float(mapped[0]) == pytest.approx(0, abs=1e-5)
    assert float(mapped[-1]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("count", "maps"), [(80, 1), (299, 1), (700, 2), (1_500, 5), (9_000, 5)])
def test_many_cells_make_more_maps_and_knots_at_the_ends_of_intervals(
    count: int, maps: int
) -> None:
    share = torch.linspace(0, 1, count, dtype=torch.float64)
    fitted = Levels.fit(gaussian_bins(count, 1.0), normal(count), share, everyone(count), blur=0.0)
    assert len(fitted.maps) == len(fitted.shares) == maps
    for one in fitted.maps:
        assert ({0.025, 0.05, 0.95, 0.975} <= set(one.actual)) is (count >= 100)
        assert list(one.actual) == sorted(set(one.actual))


def test_calibration_follows_the_masked_share_of_the_window() -> None:
    share = torch.rand(30_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    # Too wide where little is masked, too narrow where much is.
    truth = normal(30_000) * (0.5 + share)
    said = gaussian_bins(30_000, 1.0)
    at = places(30_000, share=share)
    right = Calibration.fit(said, truth, at, 0.0, 1).apply(said, at)
    lower, upper = right.quantile(0.05), right.quantile(0.95)
    for low, high in ((0.1, 0.25), (0.4, 0.6), (0.75, 0.9)):
        chosen = (share >= low) & (share < high)
        inside = ((truth >= lower) & (truth <= upper) & chosen).sum() / chosen.sum()
        assert float(inside) == pytest.approx(0.9, abs=0.03)


@pytest.mark.parametrize("far", [30, 3_000])
def test_single_cells_and_open_ends_are_calibrated_apart(far: int) -> None:
    gap = torch.ones(9_000)
    gap[-far:] = torch.inf
    at = places(9_000, gap=gap)
    # Sure of the far cells, though they are hard.
    truth = normal(9_000) * torch.where(gap > 1, 3.0, 0.5)
    said = gaussian_bins(9_000, 1.0)
    calibration = Calibration.fit(said, truth, at, 0.0, 1)
    right = calibration.apply(said, at)
    level = right.cdf(truth)
    inside = (level >= 0.05) & (level <= 0.95)
    assert float(inside[gap == 1].double().mean()) == pytest.approx(0.9, abs=0.015)
    if far < 200:  # too few to be judged by themselves
        assert calibration.by_place[3] == calibration.by_place[2]
    else:
        assert float(inside[gap > 1].double().mean()) == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize("clumped", [50, 4_000])
def test_windows_whose_gaps_come_in_clumps_are_calibrated_apart(clumped: int) -> None:
    clumping = torch.ones(9_000)
    clumping[-clumped:] = 2.0
    gap = torch.where(torch.arange(9_000) % 2 == 0, 1.0, 5.0)
    at = places(9_000, clumping=clumping, gap=gap)
    truth = normal(9_000) * torch.where(clumping > 1, 1.4, 0.8)
    said = gaussian_bins(9_000, 1.0)
    calibration = Calibration.fit(said, truth, at, 0.0, 1)
    level = calibration.apply(said, at).cdf(truth)
    inside = (level - 0.5).abs() <= 0.45
    assert float(inside[clumping == 1].double().mean()) == pytest.approx(0.9, abs=0.015)
    if clumped < 200:  # too few to be judged by themselves: with all of the same gap
        of_gap = gap == 1
        alike = Calibration.fit(said.take(of_gap), truth[of_gap], places(4_500), 0.0, 1)
        assert calibration.by_place[NUM_GAPS] == alike.by_place[0]
    else:
        assert float(inside[clumping > 1].double().mean()) == pytest.approx(0.9, abs=0.015)


def test_every_variate_gets_intervals_that_cover_what_they_promise() -> None:
    variate = torch.arange(60_000) % 3
    at = places(60_000, variate=variate)
    # Sure of the second, unsure of the third; the first is mostly zero, as rain is.
    truth = normal(60_000) * torch.tensor([1.0, 2.0, 0.5])[variate]
    truth[(variate == 0) & (torch.arange(60_000) % 10 > 0)] = 0.0
    said = gaussian_bins(60_000, 1.0)
    right = Calibration.fit(said, truth, at, 0.0, 3).apply(said, at)
    level = right.cdf(truth)
    for number in (1, 2):
        for coverage in (0.5, 0.9):
            inside = (level - 0.5).abs() <= coverage / 2
            share = float(inside[variate == number].double().mean())
            assert share == pytest.approx(coverage, abs=0.03)


def test_a_column_of_one_value_does_not_narrow_the_intervals_of_the_others() -> None:
    variate = torch.arange(6_000) % 2
    at = places(6_000, variate=variate)
    truth = normal(6_000)
    truth[(variate == 1) & (torch.arange(6_000) % 10 > 1)] = 0.0
    said = gaussian_bins(6_000, 1.0)
    alone, both = (
        Calibration.fit(said.take(chosen), truth[chosen], at.take(chosen), 0.0, 2)
        for chosen in (variate == 0, variate >= 0)
    )
    assert both.by_place == alone.by_place
    # Where there is no other column, it speaks for itself.
    chosen = variate == 1
    only = Calibration.fit(said.take(chosen), truth[chosen], at.take(chosen), 0.0, 2)
    assert only.by_place != alone.by_place


def test_a_column_of_one_value_has_a_map_only_where_it_helps_other_cells() -> None:
    cell = torch.arange(8_000)
    variate = cell % 2
    # The second is mostly one value, but on each half of the table another: a map that was fitted
    # to one half is wrong on the other.
    truth = normal(8_000) * torch.where(variate == 0, 0.5, 0.1)
    mostly = (variate == 1) & ((cell < 4_000) | (cell % 10 < 3))
    truth[mostly] = 1.5
    truth[(variate == 1) & (cell >= 4_000) & ~mostly] -= 1.5
    at = places(8_000, variate=variate)
    calibration = Calibration.fit(gaussian_bins(8_000, 1.0), truth, at, 0.0, 2)
    nothing = LevelMap.none(Calibration.KNOTS)
    assert calibration.by_variate[1] == nothing
    # One that tells the same everywhere is kept.
    truth[variate == 1] = 1.5
    kept = Calibration.fit(gaussian_bins(8_000, 1.0), truth, at, 0.0, 2)
    assert kept.by_variate[1] != nothing


def test_a_calibration_survives_json() -> None:
    none_of_the_second = places(2_000)
    calibration = Calibration.fit(
        gaussian_bins(2_000, 1.0), normal(2_000), none_of_the_second, 1.0, 2
    )
    assert calibration.by_variate[1] == LevelMap.none(Calibration.KNOTS)
    assert Calibration.from_dict(json.loads(json.dumps(asdict(calibration)))) == calibration
    assert Calibration.from_dict(None) is None


def test_the_mode_is_the_centre_of_the_likeliest_bin() -> None:
    probs = torch.tensor([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]])
    law = BinDistribution(probs, torch.tensor([1.0, -1.0]).double(), torch.tensor([2.0, 1.0]))
    assert law.mode().tolist() == [3.0, -1.0]


@given(st.integers(0, 100))
def test_the_distribution_function_at_many_points_is_that_at_each(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand(4, 6, generator=generator).softmax(-1)
    law = BinDistribution(probs, torch.zeros(4).double(), torch.full((4,), 0.5).double())
    points = 6 * torch.rand(4, 9, generator=generator).double() - 2
    found = law.cdf_at(points)
    for place in range(9):
        torch.testing.assert_close(found[:, place], law.cdf(points[:, place]))
    # Rising from nothing to all, and the inverse of the quantiles.
    order = points.argsort(-1)
    assert (found.gather(-1, order).diff(dim=-1) >= 0).all()
    levels = torch.rand(4, generator=generator).double()
    torch.testing.assert_close(law.cdf(law.quantile(levels)), levels, atol=1e-6, rtol=0)


def test_a_gaussian_without_spread_is_a_known_value() -> None:
    center, truth = torch.tensor([1.0, 2.0]).double(), torch.tensor([1.0, 2.5]).double()
    law = GaussianDistribution(center, torch.tensor([0.0, 0.0]).double())
    assert law.crps(truth).tolist() == [0.0, 0.5]
    one = GaussianDistribution(center, torch.tensor([1.0, 2.0]).double())
    torch.testing.assert_close(one.cdf(one.quantile(0.95)), torch.full((2,), 0.95).double())
    assert one.std().tolist() == [1.0, 2.0]


@given(st.integers(0, 200), st.integers(1, 40), st.floats(-3, 3))
def test_samples_are_scored_by_the_one_step_function_they_make(
    seed: int, count: int, truth: float
) -> None:
    samples = np.random.default_rng(seed).normal(size=(count, 4)).round(1)  # with equal ones
    said = SampleDistribution.of(torch.from_numpy(samples.T))
    known = torch.full((4,), truth, dtype=torch.float64)
    np.testing.assert_array_equal(said.cdf(known).numpy(), (samples <= truth).mean(axis=0))
    crps = sample_crps(np.full(4, truth), samples, np.ones(4, dtype=bool))
    assert float(said.crps(known).mean()) == pytest.approx(crps, abs=1e-12)
    np.testing.assert_allclose(said.std().numpy(), samples.std(axis=0), atol=1e-12)
    for level in (0.05, 0.5, 0.95):
        lower = np.quantile(samples, level, axis=0, method="inverted_cdf")
        np.testing.assert_array_equal(said.quantile(level).numpy(), lower)
