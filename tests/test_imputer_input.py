"""What goes into an imputer: nothing of it is lost or misread on the way."""

from __future__ import annotations

import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.exceptions import NotFittedError

from conftest import tiny_config
from mdtim import ImputationWarning, MDTIMImputer
from mdtim.evaluation import evaluate
from mdtim.tables.columns import clear_placeholders

pytestmark = pytest.mark.filterwarnings("ignore:on held-out cells")


def imputer(**options: object) -> MDTIMImputer:
    settings = {"window": 24, "preset": tiny_config(), "progress": False, **options}
    return MDTIMImputer(**settings)


def test_a_masked_array_is_refused_rather_than_stripped(gappy: np.ndarray) -> None:
    masked = np.ma.masked_invalid(gappy)
    with pytest.raises(ValueError, match=r"masked one; pass it as .filled\(np.nan\)"):
        imputer().fit(masked)


def test_nested_lists_of_windows_are_windows(gappy: np.ndarray) -> None:
    windows = gappy.reshape(10, 24, 3)
    model = imputer().fit(windows)
    np.testing.assert_array_equal(model.transform(windows.tolist()), model.transform(windows))


def test_objects_come_back_as_objects_and_unchanged(gappy: np.ndarray) -> None:
    objects = gappy.astype(object)
    objects[np.isnan(gappy)] = None
    large = 2**60 + 1
    objects[:, 0] = [large + 2 * row for row in range(len(gappy))]
    filled = imputer().fit_transform(objects)
    assert filled.dtype == object
    assert filled[0, 0] == large
    assert imputer().fit_transform(gappy.tolist()).dtype == np.float64


def test_columns_may_be_named_by_the_numbers_they_are(gappy: np.ndarray) -> None:
    frame = pd.DataFrame(gappy)
    filled = imputer(columns=[0, 2]).fit_transform(frame)
    assert filled.isna().any().tolist() == [False, bool(frame[1].isna().any()), False]


def test_a_level_that_tells_series_apart_is_proposed(gappy: np.ndarray) -> None:
    stamps = pd.date_range("2024-01-01", periods=len(gappy) // 2, freq="h")
    index = pd.MultiIndex.from_product([["north", "south"], stamps], names=["station", "when"])
    frame = pd.DataFrame(gappy, columns=["a", "b", "c"], index=index)
    with pytest.raises(ValueError, match="several series, pass id='station'"):
        imputer().fit(frame)
    assert not imputer(id="station").fit_transform(frame).isna().any().any()


def test_names_that_repeat_are_told_in_our_words(gappy: np.ndarray) -> None:
    with pytest.raises(ValueError, match="several columns are called 'a'"):
        imputer().fit(pd.DataFrame(gappy, columns=["a", "a", "b"]))


def test_the_time_of_the_fit_stays_the_time(gappy: np.ndarray, tmp_path: Path) -> None:
    frame = pd.DataFrame(gappy, columns=["a", "b", "c"])
    frame.insert(0, "time", 60 * np.arange(len(frame)))
    model = imputer().fit(frame)
    # With a row left out the column alone would not look like a clock.
    later = frame.drop(range(50, 60))
    assert not model.transform(later).isna().any().any()
    model.save(tmp_path / "model")
    loaded = MDTIMImputer.load(tmp_path / "model", device="cpu")
    pd.testing.assert_frame_equal(loaded.transform(later), model.transform(later))


@pytest.mark.parametrize("name", [None, "when"])
def test_times_in_an_index_of_text_order_the_rows(gappy: np.ndarray, name: str | None) -> None:
    stamps = pd.date_range("2024-01-01", periods=len(gappy), freq="h", name=name)
    sorted_frame = pd.DataFrame(gappy, columns=["a", "b", "c"], index=stamps)
    model = imputer().fit(sorted_frame)
    text = sorted_frame.set_axis(pd.Index(stamps.astype(str), name=name))
    shuffled = text.sample(frac=1, random_state=0)
    expected = model.transform(sorted_frame)
    got = model.transform(shuffled).sort_index()
    np.testing.assert_array_equal(got.to_numpy(), expected.to_numpy())


def test_numbers_of_numpy_and_torch_devices_are_kept(gappy: np.ndarray, tmp_path: Path) -> None:
    options = {"window": np.int64(24), "seed": np.int64(3), "missing_values": np.array([-999.0])}
    model = imputer(device=torch.device("cpu"), **options).fit(gappy)
    model.save(tmp_path / "model")
    loaded = MDTIMImputer.load(tmp_path / "model", device="cpu")
    assert (loaded.window, loaded.seed, list(loaded.missing_values)) == (24, 3, [-999.0])


def test_options_are_checked_whoever_fits(gappy: np.ndarray) -> None:
    with pytest.raises(ValueError, match="seed must be a whole number from 0 on, got None"):
        imputer(seed=None).fit(gappy)
    with pytest.raises(ValueError, match="max_minutes must be positive"):
        evaluate(imputer(max_minutes=-1), gappy, fit=True)
    with pytest.raises(NotFittedError):
        evaluate(imputer(), gappy, fit=False)


def test_a_checkpoint_of_other_data_is_refused(gappy: np.ndarray, tmp_path: Path) -> None:
    options = {"checkpoint": tmp_path / "run", "checkpoint_every": 2}
    imputer(**options).fit(gappy)
    with pytest.raises(ValueError, match=r"another run \(data differs\)"):
        imputer(**options).fit(1 - gappy**2)


def test_what_was_not_trained_is_not_called_pretrained(gappy: np.ndarray) -> None:
    assert imputer(max_steps=0).fit(gappy).report_.reason == "not trained"


def test_levels_that_would_share_a_name_are_refused(gappy: np.ndarray) -> None:
    result = imputer().fit(gappy).impute(gappy)
    with pytest.raises(ValueError, match="levels must differ"):
        result.with_quantiles([0.1, 0.1])


def test_a_series_is_sampled_alike_in_any_table(gappy: np.ndarray) -> None:
    stamps = pd.date_range("2024-01-01", periods=len(gappy), freq="h")
    series = [
        pd.DataFrame({"when": stamps, "who": name, "x": gappy[:, column]})
        for column, name in enumerate("pq")
    ]
    both = pd.concat(series, ignore_index=True)
    model = imputer(id="who").fit(both)
    (together,) = model.impute(both).samples(1)
    (alone,) = model.impute(series[1]).samples(1)
    np.testing.assert_allclose(together["x"].iloc[len(gappy) :], alone["x"], rtol=1e-9)


@pytest.mark.parametrize("rows", [20, 40, 60])  # one window, two, three and more
def test_a_series_is_sampled_jointly_alike_below_any_other(gappy: np.ndarray, rows: int) -> None:
    stamps = pd.date_range("2024-01-01", periods=len(gappy), freq="h")
    above, below = (
        pd.DataFrame({"when": stamps, "who": name, "x": gappy[:, column]})
        for column, name in enumerate("pq")
    )
    model = imputer(id="who").fit(below)
    both = pd.concat([above.iloc[:rows], below], ignore_index=True)
    (together,) = model.impute(both).samples(1, joint=True)
    (alone,) = model.impute(below).samples(1, joint=True)
    np.testing.assert_allclose(together["x"].iloc[rows:], alone["x"], rtol=1e-6)


def test_rows_that_lie_farther_apart_than_in_the_fit_are_told(
    gappy: np.ndarray, tmp_path: Path
) -> None:
    frame = pd.DataFrame(gappy, columns=["a", "b", "c"])
    at = {
        freq: pd.date_range("2024-01-01", periods=len(frame), freq=freq) for freq in ("10min", "h")
    }
    imputer().fit(frame.set_axis(at["10min"])).save(tmp_path / "model")
    model = MDTIMImputer.load(tmp_path / "model", device="cpu")
    with pytest.warns(ImputationWarning, match="3600 s apart, those of the fit 600 s"):
        model.transform(frame.set_axis(at["h"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.transform(frame.set_axis(at["10min"]))
        model.transform(frame)  # no times, no doubt


def test_readings_beyond_reason_are_told_and_spoil_no_other_gap(gappy: np.ndarray) -> None:
    faulty = gappy.copy()
    faulty[[30, 90, 150, 200], 0] = 1e6
    with pytest.warns(ImputationWarning, match="'x0' holds 4 readings far .* such as 1e"):
        model = imputer().fit(faulty)
    far_from_them = np.abs(np.arange(len(gappy))[:, None] - [30, 90, 150, 200]).min(axis=1) > 24
    filled = model.transform(faulty)[far_from_them, 0]
    assert np.abs(filled).max() < 10 * np.nanmax(np.abs(gappy[:, 0]))


def test_a_column_with_few_known_values_is_told(gappy: np.ndarray) -> None:
    sparse = gappy.copy()
    sparse[7:, 1] = np.nan
    with pytest.warns(ImputationWarning, match=r"\['x1'\] have fewer than 20 known values"):
        imputer().fit(sparse)


def test_an_imputation_can_be_sent_to_another_process(gappy: np.ndarray) -> None:
    result = imputer().fit(gappy).impute(gappy)
    again = pickle.loads(pickle.dumps(result))
    np.testing.assert_array_equal(again.values, result.values)
    np.testing.assert_array_equal(again.samples(1, joint=True), result.samples(1, joint=True))


def test_a_window_far_beyond_the_table_is_cut_and_told(gappy: np.ndarray) -> None:
    with pytest.warns(ImputationWarning, match="at most 240 steps; 512 are taken"):
        model = imputer(window=20_000, max_steps=1).fit(gappy)
    assert model.window_ == 512


def test_a_column_that_the_fit_took_for_text_may_be_empty_later(gappy: np.ndarray) -> None:
    frame = pd.DataFrame(gappy, columns=["a", "b", "c"]).assign(note=["x", None] * 120)
    model = imputer().fit(frame)
    for note in (np.nan, None, 1.5):
        filled = model.transform(frame.assign(note=note))
        np.testing.assert_array_equal(
            filled[["a", "b", "c"]], model.transform(frame)[["a", "b", "c"]]
        )
    assert not model.transform(frame.assign(b=None))["b"].isna().any()


def test_a_fit_that_fails_leaves_no_model_of_other_columns(gappy: np.ndarray) -> None:
    model = imputer().fit(pd.DataFrame(gappy, columns=["a", "b", "c"]))
    with pytest.raises(ValueError, match="infinite"):
        model.fit(pd.DataFrame({"a": [1.0, np.inf, 2.0]}))
    with pytest.raises(NotFittedError):
        model.transform(pd.DataFrame({"a": [1.0, 2.0]}))


def test_the_callers_random_state_stays_as_it_was(gappy: np.ndarray, tmp_path: Path) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    MDTIMImputer(device="cpu", progress=False).fit(gappy).save(tmp_path / "model")
    MDTIMImputer.load(tmp_path / "model", device="cpu").transform(gappy)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_what_is_no_number_stands_for_nothing(gappy: np.ndarray, number: float) -> None:
    with pytest.raises(ValueError, match="missing_values has"):
        imputer(missing_values=[number], inf_as_missing=True).fit(gappy)


def test_fits_in_threads_are_those_of_one_after_the_other(gappy: np.ndarray) -> None:
    def filled(seed: int) -> np.ndarray:
        model = imputer(preset=tiny_config(max_steps=4, dropout=0.2), seed=seed)
        return model.fit_transform(gappy)

    before = torch.get_rng_state()
    alone = [filled(seed) for seed in (0, 1)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(filled, (0, 1, 0, 1)))
    for number, values in enumerate(together):
        np.testing.assert_array_equal(values, alone[number % 2])
    assert torch.equal(torch.get_rng_state(), before)


def test_only_the_number_itself_stands_for_missing() -> None:
    column = np.array([9999999.0, 9999991.0, 9999998.0, 10000004.0, -99.9, np.float32(-99.9)])
    clear_placeholders(column, [9999999, -99.9])
    assert np.isnan(column).tolist() == [True, False, False, False, True, True]
    # What models of the climate, GDAL and netCDF fill with, in single precision.
    usual = [1e20, -3.4028235e38, 9.96921e36]
    column = np.array([*usual, 1.0], dtype=np.float32).astype(np.float64)
    clear_placeholders(column, [*usual, 1e300])
    assert np.isnan(column).tolist() == [True, True, True, False]


def test_a_result_of_an_array_does_not_change_with_the_array(gappy: Any) -> None:
    array = np.asarray(gappy, dtype=np.float64).copy()
    before, known = array.copy(), ~np.isnan(array)
    result = MDTIMImputer(window=16, device="cpu").fit(array).impute(array)
    array[:] = 0
    assert np.array_equal(result.samples(1)[0][known], before[known])


def test_a_bound_of_the_fit_that_another_table_breaks_is_none() -> None:
    steps = np.arange(480)
    temperature = np.round(3 + 4 * np.sin(steps * np.pi / 12)).clip(-2, 7)
    winter = pd.DataFrame({"temp": temperature, "load": 50 + 10 * np.cos(steps * np.pi / 12)})
    summer = winter.assign(temp=winter["temp"] + 15)
    truth = summer.loc[300:311, "temp"].to_numpy(copy=True)
    summer.loc[300:311, "temp"] = np.nan
    imputer = MDTIMImputer(window=48, device="cpu").fit(winter)
    result = imputer.impute(summer)
    filled = result.values.loc[300:311, "temp"].to_numpy()
    assert np.abs(filled - truth).mean() < 3
    lower, upper = (bound.loc[300:311, "temp"].to_numpy() for bound in result.interval(0.9))
    assert (upper > lower).all()
    assert (upper > 7).all()
    joint = result.samples(1, joint=True)[0].loc[300:311, "temp"]
    assert (joint > 7).any()
    # Where it holds, it stays.
    again = winter.mask(summer.isna())
    assert imputer.impute(again).interval(0.99)[1]["temp"].max() <= 7


def test_levels_may_be_an_array_and_an_id_a_number() -> None:
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 2))).mask(lambda x: x > 1.5)
    frame[2] = ["A"] * 30 + ["B"] * 30
    result = MDTIMImputer(window=8, id=2, device="cpu").fit(frame).impute(frame)
    assert "0_q0.05" in map(str, result.with_quantiles(np.array([0.05, 0.95])).columns)


@pytest.mark.parametrize("kind", ["datetime64[ns]", "timedelta64[ns]", "string", "category"])
def test_a_column_of_nothing_that_holds_no_numbers_is_refused(kind: str) -> None:
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 2)), columns=["a", "b"])
    imputer = MDTIMImputer(window=8, device="cpu").fit(frame)
    empty = frame.assign(b=pd.Series([None] * 60, dtype=kind))
    with pytest.raises(ValueError, match=r"column 'b' holds nothing and is of type .* to float"):
        imputer.transform(empty)


def test_a_polars_column_of_nothing_is_filled_as_any_other() -> None:
    values = np.random.default_rng(0).normal(size=(60, 2))
    frame = pl.DataFrame({"a": values[:, 0], "b": values[:, 1]})
    imputer = MDTIMImputer(window=8, device="cpu").fit(frame)
    filled = imputer.transform(frame.with_columns(b=pl.lit(None)))
    assert filled["b"].null_count() == 0
    assert filled.schema == frame.schema
