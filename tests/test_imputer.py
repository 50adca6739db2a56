from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from conftest import tiny_config, waves
from mdtim import Imputation, ImputationWarning, MDTIMImputer, ModelConfig
from mdtim.learning.lessons import TrainingData
from mdtim.learning.training import Trainer


def imputer(**options: object) -> MDTIMImputer:
    changes = options.pop("changes", {})
    assert isinstance(changes, dict)
    settings = {"window": 24, "preset": tiny_config(**changes), "progress": False, **options}
    return MDTIMImputer(**settings)


@pytest.fixture(autouse=True)
def _six_steps_need_not_beat_interpolation() -> None:
    warnings.filterwarnings("ignore", message="on held-out cells", category=ImputationWarning)


@pytest.fixture
def table(gappy: np.ndarray) -> pd.DataFrame:
    index = pd.date_range("2024-03-30", periods=len(gappy), freq="h", tz="Europe/Berlin")
    frame = pd.DataFrame(gappy, columns=["temperature", "load", "flow"], index=index)
    frame["count"] = pd.array(np.arange(len(gappy)) % 7, dtype="Int64")
    frame.loc[frame.index[[3, 50]], "count"] = pd.NA
    frame.insert(1, "station", "north")
    return frame


def test_a_filled_frame_has_no_gap_and_is_otherwise_the_same(table: pd.DataFrame) -> None:
    filled = imputer().fit_transform(table)
    assert not filled.isna().any().any()
    assert (filled.dtypes == table.dtypes).all()
    assert filled.index.equals(table.index)
    assert list(filled.columns) == list(table.columns)
    for column in table:
        known = table[column].notna()
        pd.testing.assert_series_equal(filled.loc[known, column], table.loc[known, column])


def test_an_imputation_offers_values_spread_quantiles_intervals_and_samples(
    table: pd.DataFrame,
) -> None:
    model = imputer().fit(table)
    result = model.impute(table)
    assert isinstance(result, Imputation)
    pd.testing.assert_frame_equal(result.values, model.transform(table))
    missing = table[["temperature", "load", "flow", "count"]].isna()
    assert ((result.std > 0) == missing).all().all()
    lower, upper = result.interval(0.9)
    assert (lower <= upper).all().all()
    inner_lower, inner_upper = result.interval(0.5)
    assert ((inner_lower >= lower) & (inner_upper <= upper)).all().all()
    pd.testing.assert_frame_equal(result.quantile(0.95), upper)
    assert "4 variates" in repr(result)
    for joint in (False, True):
        samples = result.samples(3, joint=joint)
        assert len(samples) == 3
        assert not samples[0].isna().any().any()
        assert not samples[0].equals(samples[1])
        known = table["load"].notna()
        assert (samples[0].loc[known, "load"] == table.loc[known, "load"]).all()


def test_marginal_samples_follow_the_distribution(gappy: np.ndarray) -> None:
    result = imputer().fit(gappy).impute(gappy)
    missing = np.isnan(gappy)
    drawn = np.stack(result.samples(200))[:, missing]
    spread = result.std[missing]
    error = (drawn.mean(0) - result.distribution.mean().numpy()[np.argsort(_flat(result))]) / spread
    assert np.abs(error).mean() < 0.15


def _flat(result: Imputation) -> np.ndarray:
    return result.cells.rows * result.missing.shape[1] + result.cells.variates


@given(st.integers(0, 1_000))
def test_changing_a_value_that_is_not_there_changes_nothing(seed: int) -> None:
    values = torch.from_numpy(waves(24, 2)).float()[None]
    generator = torch.Generator().manual_seed(seed)
    visible = torch.rand(values.shape, generator=generator) < 0.7
    poisoned = torch.where(visible, values, torch.full_like(values, 1e9))
    keys = torch.arange(48).view(1, 24, 2)
    model = _fitted_once().model_
    predictor = model._predictor(model.corrections)
    (one, scale), (two, other) = (
        predictor.probs(given, visible, keys) for given in (values, poisoned)
    )
    assert torch.equal(one, two)
    assert torch.equal(scale.half_B1V, other.half_B1V)


_MODELS: list[MDTIMImputer] = []


def _fitted_once() -> MDTIMImputer:
    if not _MODELS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _MODELS.append(imputer().fit(waves(240, 2)))
    return _MODELS[0]


@pytest.mark.parametrize(
    ("scale", "offset"), [(1e-9, 0.0), (1e12, 0.0), (1.0, 1e6), (-2.5, 40.0), (3e-4, 7.0)]
)
def test_the_result_moves_with_the_data(gappy: np.ndarray, scale: float, offset: float) -> None:
    plain = imputer().fit_transform(gappy)
    moved = imputer().fit_transform(scale * gappy + offset)
    spread = np.nanstd(gappy)
    tolerance = 0.2 if scale < 0 else 1e-3  # a mirrored table draws other random numbers
    np.testing.assert_allclose((moved - offset) / scale, plain, atol=tolerance * spread)


def test_the_same_seed_gives_the_same_result(gappy: np.ndarray) -> None:
    one, two = (imputer(seed=5).fit_transform(gappy) for _ in range(2))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, imputer(seed=6).fit_transform(gappy))


def test_a_saved_model_answers_the_same(tmp_path: Path, table: pd.DataFrame) -> None:
    model = imputer(columns=["load", "flow"]).fit(table)
    model.save(tmp_path / "model")
    loaded = MDTIMImputer.load(tmp_path / "model")
    pd.testing.assert_frame_equal(loaded.transform(table), model.transform(table))
    assert loaded.report_ == model.report_
    assert isinstance(loaded.preset, ModelConfig)
    first, second = model.impute(table), loaded.impute(table)
    pd.testing.assert_frame_equal(first.quantile(0.05), second.quantile(0.05))


def test_a_damaged_model_or_a_checkpoint_is_refused(tmp_path: Path, gappy: np.ndarray) -> None:
    model = imputer(checkpoint=tmp_path / "run", checkpoint_every=2).fit(gappy)
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match="training checkpoint"):
        MDTIMImputer.load(tmp_path / "run")
    config = tmp_path / "model" / "config.json"
    config.write_text(config.read_text().replace('"window": 24', '"fenster": 24'))
    with pytest.raises(ValueError, match="damaged"):
        MDTIMImputer.load(tmp_path / "model")


def test_a_fit_that_was_interrupted_goes_on_from_its_checkpoint(
    tmp_path: Path, gappy: np.ndarray
) -> None:
    whole = imputer(changes={"max_steps": 6}).fit(gappy)
    folder = tmp_path / "run"
    folder.mkdir()  # empty, so that there is nothing to go on from
    imputer(changes={"max_steps": 6}, checkpoint=folder, checkpoint_every=4).fit(gappy)
    again = imputer(changes={"max_steps": 6}, checkpoint=folder, checkpoint_every=4).fit(gappy)
    assert np.array_equal(again.transform(gappy), whole.transform(gappy))


def test_cells_that_score_a_small_table_are_never_shown_to_training(
    gappy: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[TrainingData] = []

    class Watched(Trainer):
        def __init__(self, network: Any, config: Any, data: Any, seed: int) -> None:
            seen.append(data)
            super().__init__(network, config, data, seed)

    monkeypatch.setattr("mdtim.learning.fitting.Trainer", Watched)
    small, large = imputer().fit(gappy[:30]), imputer().fit(gappy)
    assert not small.report_.held_out
    assert large.report_.held_out
    (tight, roomy) = seen
    assert roomy.taught is None
    assert tight.taught is not None
    windows = tight.validation
    shown = tight.taught.gather(windows.starts, windows.ends, windows.length).observed_BTV
    assert tight.hidden_WTV.any()
    assert not (shown & tight.hidden_WTV).any()
    # What one window scores, the others that it lies in do not show either.
    scored = torch.zeros_like(tight.series.observed_NV)
    for start, hidden_TV in zip(windows.starts.tolist(), tight.hidden_WTV, strict=True):
        scored[start : start + windows.length] |= hidden_TV
    assert torch.equal(tight.taught.observed_NV, tight.series.observed_NV & ~scored)


def test_series_shorter_and_longer_than_the_window_are_filled(gappy: np.ndarray) -> None:
    model = imputer().fit(gappy)
    for num_steps in (1, 5, 24, 25, 100):
        part = gappy[:num_steps].copy()
        part[0, 0] = np.nan
        assert not np.isnan(model.transform(part)).any()


def test_a_gap_longer_than_the_window_is_filled_and_its_interval_widens(gappy: np.ndarray) -> None:
    model = imputer(changes={"max_steps": 30}).fit(gappy)
    values = waves(240, 3)
    values[80:160] = np.nan
    result = model.impute(values)
    assert not np.isnan(result.values).any()
    spread = result.std[80:160].mean(axis=1)
    assert spread[30:50].mean() > spread[[0, 1, -2, -1]].mean()


def test_windows_by_steps_by_variates_come_back_as_such() -> None:
    values = np.stack([waves(20, 2, seed) for seed in range(12)])
    values[:, 5, 0] = np.nan
    filled = imputer(window="auto").fit_transform(values)
    assert filled.shape == values.shape
    assert not np.isnan(filled).any()


def test_polars_in_polars_out(gappy: np.ndarray) -> None:
    frame = pl.DataFrame(gappy, schema=["a", "b", "c"]).with_columns(pl.lit("x").alias("name"))
    filled = imputer().fit_transform(frame)
    assert isinstance(filled, pl.DataFrame)
    assert filled.columns == frame.columns
    assert not np.isnan(filled.select("a", "b", "c").to_numpy()).any()


# -- bad input: a clear error or a right answer ---------------------------------------------


def test_a_column_with_nothing_observed_is_left_missing_with_a_warning(table: pd.DataFrame) -> None:
    table["dead"] = np.nan
    with pytest.warns(ImputationWarning, match="'dead'"):
        model = imputer().fit(table)
    filled = model.transform(table)
    assert filled["dead"].isna().all()
    assert not filled.drop(columns="dead").isna().any().any()
    later = table.assign(dead=table["flow"])
    with pytest.warns(ImputationWarning, match="'dead'.* were empty when the model was fitted"):
        assert model.transform(later)["dead"].isna().any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": "flow"}, "columns is a list of names, got 'flow'"),
        ({"missing_values": -999}, "missing_values is a list of what means missing, got -999"),
        ({"missing_values": None}, "missing_values is a list of what means missing, got None"),
        ({"missing_values": ["-999"]}, "missing_values are numbers, got '-999'"),
        ({"validation_share": 2}, "validation_share lies between 0 and 1, got 2"),
        ({"validation_share": 0}, "validation_share lies between 0 and 1, got 0"),
        ({"validation_share": None}, "validation_share lies between 0 and 1, got None"),
        ({"max_steps": 2.5}, "max_steps must be a whole number from 0 on, got 2.5"),
        ({"checkpoint_every": 0}, "checkpoint_every must be a whole number from 1 on, got 0"),
        ({"window": None}, "window must be .auto. or a positive whole number: None"),
        ({"window": True}, "window must be .auto. or a positive whole number: True"),
        ({"max_minutes": -1}, "max_minutes must be positive, got -1"),
        ({"seed": -1}, "seed must be a whole number from 0 on, got -1"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(
    table: pd.DataFrame, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        imputer(**options).fit(table)


def test_a_column_with_a_single_known_value_says_that_its_intervals_mean_nothing(
    table: pd.DataFrame,
) -> None:
    table["once"] = np.nan
    table.loc[table.index[7], "once"] = 3.0
    with pytest.warns(ImputationWarning, match="'once'.* have a single known value"):
        model = imputer().fit(table)
    assert (model.transform(table)["once"] == 3.0).all()


def test_a_column_the_model_knows_is_filled_even_where_nothing_is_observed(
    table: pd.DataFrame,
) -> None:
    model = imputer().fit(table)
    later = table.assign(flow=np.nan)
    assert not model.transform(later)["flow"].isna().any()


def test_a_constant_column_is_filled_with_its_constant(gappy: np.ndarray) -> None:
    gappy[:, 1] = 5.0
    gappy[10:20, 1] = np.nan
    model = imputer().fit(gappy)
    result = model.impute(gappy)
    assert (result.values[:, 1] == 5.0).all()
    assert (result.std[10:20, 1] == 0).all()
    gappy[30, 1] = 6.0
    with pytest.warns(ImputationWarning, match="were constant"):
        model.transform(gappy)


def test_a_table_in_which_nothing_varies_needs_no_network() -> None:
    values = np.full((10, 2), 3.0)
    values[4, 0] = np.nan
    model = imputer().fit(values)
    assert (model.transform(values) == 3.0).all()
    assert model.report_.steps == 0
    assert (model.impute(values).samples(1, joint=True)[0] == 3.0).all()


@pytest.mark.filterwarnings("ignore:.*fewer than 20 known values")
@pytest.mark.filterwarnings("ignore:no observed cell could be held out")
@pytest.mark.parametrize("share", [0.7, 0.99])
def test_very_sparse_tables_are_filled(share: float) -> None:
    values = waves(300, 3)
    values[np.random.default_rng(0).random(values.shape) < share] = np.nan
    filled = imputer().fit_transform(values)
    assert not np.isnan(filled).any()
    assert np.abs(filled).max() < 10


def test_one_row_and_ten_rows_are_filled() -> None:
    values = waves(10, 3)
    values[2, 1] = np.nan
    assert not np.isnan(imputer(window="auto").fit_transform(values)).any()
    one = np.array([[1.0, 2.0]])
    assert np.array_equal(imputer(window="auto").fit_transform(one), one)


@pytest.mark.parametrize("num_rows", [2, 3, 4, 5, 30])
def test_a_table_of_a_few_rows_is_told_from_one_that_can_be_filled(num_rows: int) -> None:
    values = waves(num_rows, 2)
    values[1, 0] = np.nan
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        imputer(window="auto").fit(values)
    texts = " ".join(str(warning.message) for warning in said)
    assert ("little more than a guess" in texts) == (num_rows < 5)
    assert ("no series has 8 steps or more" in texts) == (num_rows == 5)


def test_nothing_missing_comes_back_as_it_is(gappy: np.ndarray) -> None:
    model = imputer().fit(gappy)
    whole = waves(100, 3)
    filled = model.transform(whole)
    assert np.array_equal(filled, whole)
    assert filled is not whole
    assert repr(model.impute(whole)) == "Imputation(100 steps × 3 variates, 0 filled)"


def test_infinite_values_are_named(table: pd.DataFrame) -> None:
    table.iloc[7, 0] = np.inf
    with pytest.raises(ValueError, match=r"temperature.*7"):
        imputer().fit(table)
    assert np.isfinite(imputer(inf_as_missing=True).fit_transform(table)["temperature"]).all()


def test_wrong_columns_at_transform_are_named(table: pd.DataFrame) -> None:
    model = imputer().fit(table)
    with pytest.raises(ValueError, match=r"missing[\s\S]*flow"):
        model.transform(table.drop(columns="flow"))
    with pytest.raises(ValueError, match=r"unseen[\s\S]*extra"):
        model.transform(table.assign(extra=1.0))
    with pytest.raises(ValueError, match="same order"):
        model.transform(table[table.columns[::-1]])


def test_a_column_that_turned_into_text_is_named(table: pd.DataFrame) -> None:
    model = imputer().fit(table)
    with pytest.raises(ValueError, match=r"'flow' .* not numeric"):
        model.transform(table.assign(flow="much"))


def test_impossible_settings_are_refused(gappy: np.ndarray) -> None:
    with pytest.raises(ValueError, match="window must be"):
        imputer(window="long").fit(gappy)
    with pytest.raises(ValueError, match="unknown preset"):
        imputer(preset="huge").fit(gappy)
    with pytest.raises(ValueError, match="progress must be"):
        imputer(progress="loud").fit(gappy)
    result = imputer().fit(gappy).impute(gappy)
    with pytest.raises(ValueError, match="quantile level"):
        result.quantile(1.5)
    with pytest.raises(ValueError, match="coverage"):
        result.interval(90)
    with pytest.raises(ValueError, match="count"):
        result.samples(0)


def test_a_model_worse_than_interpolation_says_so() -> None:
    generator = np.random.default_rng(0)
    noise = np.cumsum(generator.normal(size=(400, 2)), axis=0)
    noise[generator.random(noise.shape) < 0.2] = np.nan
    with pytest.warns(ImputationWarning, match="not below that of linear interpolation"):
        imputer(changes={"max_steps": 2, "prior": "none"}).fit(noise)


def test_the_report_of_a_fit_names_its_score_beside_interpolation(gappy: np.ndarray) -> None:
    report = imputer().fit(gappy).report_
    assert report.validation_mae is not None
    assert report.linear_mae is not None
    assert report.validation_mae > 0
    assert report.linear_mae > 0
    assert report.held_out
    assert report.steps == 6


# -- scikit-learn manners -------------------------------------------------------------------


def test_clone_pickle_pipeline_and_set_output(table: pd.DataFrame, gappy: np.ndarray) -> None:
    model = imputer()
    assert clone(model).get_params()["window"] == 24
    model.fit(gappy)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.transform(gappy), model.transform(gappy))
    pipeline = make_pipeline(imputer(), StandardScaler())
    assert not np.isnan(pipeline.fit_transform(gappy)).any()
    framed = imputer().set_output(transform="pandas").fit_transform(gappy)
    assert isinstance(framed, pd.DataFrame)
    assert list(framed.columns) == ["x0", "x1", "x2"]


def test_real_weather_with_real_gaps_is_filled(nyc: pd.DataFrame) -> None:
    part = nyc.iloc[:600].sample(frac=1, random_state=0)  # rows in any order
    model = imputer(id="origin", time="time_hour", columns=["temp", "pressure", "wind_dir"])
    filled = model.fit_transform(part)
    assert filled.index.equals(part.index)
    assert filled["wind_dir"].dtype == part["wind_dir"].dtype
    assert not filled[["temp", "pressure", "wind_dir"]].isna().any().any()
    pd.testing.assert_series_equal(filled["wind_gust"], part["wind_gust"])  # not asked for
