"""What is usual at a time of the day or the week, and fills that know it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from batch_cases import same
from mdtim import MDTIMImputer
from mdtim.batch import BatchOptions, run_batch
from mdtim.closed_form.profile import Profile, ProfileSums
from mdtim.tables.table import TableOptions

HOUR = 3600.0


def hours(count: int) -> NDArray[np.datetime64]:
    return pd.date_range("2024-01-01", periods=count, freq="h").to_numpy()


def load(times: NDArray[np.datetime64], seed: int = 0) -> NDArray[np.float64]:
    """Days as of a load: high at work, low at night, another way on weekends; and a slow drift."""
    index, generator = pd.DatetimeIndex(times), np.random.default_rng(seed)
    day = np.sin(2 * np.pi * (index.hour - 8) / 24)
    at_work = np.where(index.day_of_week < 5, 1.0 + 0.5 * (abs(index.hour - 13) < 5), 0.4)
    drift = np.cumsum(generator.normal(size=len(times))) / 40
    return np.asarray(day * at_work + drift + 0.05 * generator.normal(size=len(times)))


def found(values: NDArray[np.float64], times: NDArray[np.datetime64]) -> ProfileSums | None:
    return ProfileSums.find(values, np.array([0, len(values)]), times, HOUR)


def test_a_week_a_day_and_nothing_are_told_apart() -> None:
    times, generator = hours(2_000), np.random.default_rng(1)
    day = np.sin(2 * np.pi * pd.DatetimeIndex(times).hour / 24)
    walk = np.cumsum(generator.normal(size=2_000)) / 10
    values = np.column_stack([load(times), day + 0.3 * generator.normal(size=2_000), walk])
    values[generator.random(values.shape) < 0.2] = np.nan
    sums = found(values, times)
    assert sums is not None
    usual = sums.profile().at(times)
    week, same_days, nothing = usual[: 24 * 7].reshape(7, 24, 3).transpose(2, 0, 1)
    assert np.abs(week[5] - week[1]).max() > 0.5
    assert np.abs(same_days[5] - same_days[1]).max() < 0.3
    assert not nothing.any()
    left = np.nanstd(np.diff(values - usual, axis=0), axis=0)
    assert (left < [0.2, 0.5, 1.0]).all()


def test_noise_short_tables_and_tables_without_times_have_no_profile() -> None:
    noise = np.random.default_rng(0).normal(size=(1_500, 6))
    assert found(noise, hours(1_500)) is None
    assert found(load(hours(60))[:, None], hours(60)) is None
    values, offsets = load(hours(2_000))[:, None], np.array([0, 2_000])
    assert ProfileSums.find(values, offsets, None, HOUR) is None
    assert ProfileSums.find(values, offsets, hours(2_000), 10 * 86_400.0) is None


def test_a_few_days_tell_of_the_day() -> None:
    values = load(hours(24 * 10))[:, None]
    sums = found(values, hours(24 * 10))
    assert sums is not None
    usual = sums.profile().at(hours(24 * 14))
    np.testing.assert_array_equal(usual[:24], usual[24:48])
    assert np.ptp(usual) > 0.8


def test_cells_are_taken_out_as_if_they_had_never_been_known() -> None:
    values, times = load(hours(2_000))[:, None], hours(2_000)
    sums = found(values, times)
    assert sums is not None
    rows, hidden = np.arange(600, 800), np.zeros((200, 1), dtype=bool)
    hidden[50:122] = True
    rest = ProfileSums(
        np.where(np.isin(np.arange(2_000), rows[50:122])[:, None], np.nan, sums.above_NV),
        sums.time_N,
        *(part.copy() for part in (sums.sums_PV, sums.counts_PV)),
        sums.kinds_V,
    )
    np.add.at(rest.sums_PV, sums.time_N[rows[50:122]], -sums.above_NV[rows[50:122]])
    np.add.at(rest.counts_PV, sums.time_N[rows[50:122]], -1.0)
    np.testing.assert_allclose(sums.without(rows, hidden), rest.profile().at(times)[rows])
    assert np.abs(sums.without(rows, hidden) - sums.profile().at(times)[rows]).max() > 1e-3


def test_times_that_are_not_known_have_nothing_usual() -> None:
    profile = Profile(np.ones((168, 2)))
    times = hours(3).copy()
    times[1] = np.datetime64("NaT")
    np.testing.assert_array_equal(profile.at(times), [[1, 1], [0, 0], [1, 1]])
    assert Profile.from_arrays({}) is None
    again = Profile.from_arrays(profile.arrays())
    assert again is not None
    np.testing.assert_array_equal(again.usual_PV, profile.usual_PV)


@pytest.fixture(scope="module")
def holey() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Fourteen weeks of two loads with outages of one to three days, and the truth."""
    times = hours(24 * 7 * 14)
    truth = pd.DataFrame({"when": times, "a": load(times), "b": 2 * load(times, 1)})
    seen, generator = truth.copy(), np.random.default_rng(3)
    for begin in generator.choice(len(times) // 100 - 1, size=8, replace=False) * 100:
        seen.loc[begin : begin + generator.integers(24, 72), ["a", "b"]] = np.nan
    seen.loc[generator.random(len(times)) < 0.02, "a"] = np.nan
    return seen, truth


def test_an_outage_of_days_is_filled_with_the_days_of_its_week(
    holey: tuple[pd.DataFrame, pd.DataFrame], tmp_path: Path
) -> None:
    seen, truth = holey
    imputer = MDTIMImputer(device="cpu", progress=False).fit(seen)
    result = imputer.impute(seen)
    missing, values = seen[["a", "b"]].isna(), truth[["a", "b"]]
    error = ((result.values[["a", "b"]] - values).abs() / values.std()).where(missing).stack()
    line = ((seen[["a", "b"]].interpolate() - values).abs() / values.std()).where(missing).stack()
    assert error.mean() < 0.35 * line.mean()
    low, high = (bound[["a", "b"]] for bound in result.interval(0.9))
    held = ((low <= values) & (values <= high)).where(missing).stack()
    assert 0.8 < held.mean() <= 1.0
    imputer.save(tmp_path / "model")
    again = MDTIMImputer.load(tmp_path / "model", device="cpu").impute(seen)
    pd.testing.assert_frame_equal(again.values, result.values)
    # Another table begins at another hour of another day.
    later = MDTIMImputer.load(tmp_path / "model", device="cpu").impute(seen.iloc[500:])
    moved = (later.values["a"] - result.values["a"].iloc[500:]).abs()[missing["a"].iloc[500:]]
    assert moved.iloc[100:-100].mean() < 0.05


def test_parts_know_what_is_usual_as_the_whole_table_does(
    holey: tuple[pd.DataFrame, pd.DataFrame], tmp_path: Path
) -> None:
    seen, _ = holey
    imputer = MDTIMImputer(time="when", device="cpu", progress=False).fit(seen)
    assert imputer.model_.corrections.profile is not None
    imputer.save(tmp_path / "model")
    (tmp_path / "parts").mkdir()
    for number, begin in enumerate(range(0, len(seen), 700)):
        part = seen.iloc[begin : begin + 700]
        part.to_parquet(tmp_path / "parts" / f"{number}.parquet", index=False)
    options = BatchOptions(TableOptions(time="when"), device="cpu")
    report = run_batch(tmp_path / "parts", tmp_path / "out", options, model=tmp_path / "model")
    assert not report.failures
    filled = pd.concat(
        [pd.read_parquet(path) for path in sorted((tmp_path / "out").glob("*.parquet"))],
        ignore_index=True,
    )
    same(filled, imputer.impute(seen).values)
    sampled = run_batch(tmp_path / "parts", tmp_path / "own", options)
    assert not sampled.failures
    kept = MDTIMImputer.load(tmp_path / "own" / "_mdtim" / "model", device="cpu")
    assert kept.model_.corrections.profile is not None


def test_one_absurd_reading_is_not_what_is_usual() -> None:
    times = hours(2_000)
    values = load(times)[:, None]
    faulty = values.copy()
    faulty[777] = 1e9
    sums, with_fault = found(values, times), found(faulty, times)
    assert sums is not None
    assert with_fault is not None
    usual, other = (one.profile().at(times) for one in (sums, with_fault))
    assert np.abs(usual - other).max() < 0.1
