"""Series of very different size in one table: each is seen, filled and scored in its own scale."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_cases import LEVELS, same
from conftest import tiny_config, waves
from mdtim import MDTIMImputer
from mdtim.baselines.simple import interpolate
from mdtim.batch import BatchOptions, run_batch
from mdtim.doubts import ImputationWarning, of_series
from mdtim.evaluation import hide_share, score, without
from mdtim.panel import FloatArray, Panel
from mdtim.scaling import Standardizer
from mdtim.series_scales import PanelScales, SeriesScales
from mdtim.tables.table import TableOptions

STEPS = 300


def panel_of(sizes: list[float], names: str = "abcdef", variates: int = 2) -> Panel:
    """Series of noisy waves, each of its own size, about twice as high as they swing."""
    values = np.concatenate(
        [size * (2 + waves(STEPS, variates, seed)) for seed, size in enumerate(sizes)]
    )
    columns = tuple(f"x{number}" for number in range(variates))
    offsets = STEPS * np.arange(len(sizes) + 1)
    return Panel(values, offsets, columns, names=tuple(names[: len(sizes)]))


def frame_of(sizes: list[float], share: float = 0.15, steps: int = STEPS) -> pd.DataFrame:
    """The same as a table with a column of names, and gaps."""
    frames = []
    for seed, size in enumerate(sizes):
        values = size * (2 + waves(steps, 2, seed))
        values[np.random.default_rng(seed).random(values.shape) < share] = np.nan
        frame = pd.DataFrame(values, columns=["x", "y"])
        frame.insert(0, "shop", f"shop {seed}")
        frame.insert(0, "day", pd.date_range("2020", periods=steps, freq="D"))
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def imputer(**options: object) -> MDTIMImputer:
    changes = {"preset": "zero-mini", "id": "shop", "time": "day", **options}
    return MDTIMImputer(device="cpu", progress=False, **changes)


def standardized(panel: Panel) -> FloatArray:
    return PanelScales.fit(panel).forward(panel.values, panel.series_of_rows()).astype(float)


@given(st.lists(st.sampled_from([1e-6, 0.01, 3.0, 400.0, 1e9]), min_size=2, max_size=4))
def test_a_series_is_the_same_numbers_whatever_its_size_is(sizes: list[float]) -> None:
    sizes = [*sizes, 1e4 * max(sizes)]  # so that they do differ
    alone = np.concatenate([standardized(panel_of([1.0, 1e9]))[:STEPS]])
    np.testing.assert_allclose(standardized(panel_of(sizes))[:STEPS], alone, atol=2**-15)


@given(st.lists(st.sampled_from([1e-6, 1.0, 1e9]), min_size=1, max_size=4), st.integers(0, 3))
def test_standardized_values_go_back(sizes: list[float], seed: int) -> None:
    panel = panel_of(sizes)
    scales = PanelScales.fit(panel)
    rows = np.random.default_rng(seed).integers(len(panel.values), size=50)
    variates = rows % 2
    series = panel.series_of_rows()[rows]
    back = scales.back(standardized(panel)[rows, variates], series, variates)
    np.testing.assert_allclose(back, panel.values[rows, variates], rtol=1e-5)


def test_series_of_about_one_size_share_the_scale_of_their_column() -> None:
    panel = panel_of([1.0, 1.3, 0.8])
    assert SeriesScales.fit(panel, Standardizer.fit(panel.values)) is None
    expected = Standardizer.fit(panel.values).forward(panel.values)
    np.testing.assert_array_equal(standardized(panel), expected)


def test_a_huge_series_among_small_ones_has_its_own_scale_too() -> None:
    panel = panel_of([1.0] * 5 + [1e4])
    scales = SeriesScales.fit(panel, Standardizer.fit(panel.values))
    assert scales is not None
    assert scales.apart.all()
    assert np.abs(standardized(panel)).max() < 5


def test_only_columns_in_which_series_differ_are_taken_apart() -> None:
    panel = panel_of([1.0, 1.0])
    panel.values[STEPS:, 1] *= 1e3
    scales = SeriesScales.fit(panel, Standardizer.fit(panel.values))
    assert scales is not None
    assert scales.apart.tolist() == [False, True]


def test_windows_of_an_array_and_a_single_series_have_no_scales_of_their_own() -> None:
    panel = panel_of([1.0, 1e6])
    columns = Standardizer.fit(panel.values)
    assert SeriesScales.fit(replace(panel, are_windows=True), columns) is None
    whole = Panel(panel.values, np.array([0, 2 * STEPS]), panel.variates)
    assert SeriesScales.fit(whole, columns) is None


def test_series_keep_the_scale_of_the_fit_and_new_ones_get_their_own() -> None:
    panel = panel_of([1.0, 1e6])
    columns = Standardizer.fit(panel.values)
    fitted = SeriesScales.fit(panel, columns)
    assert fitted is not None
    calm = 2 + 0.01 * waves(STEPS, 2)
    later = Panel(
        np.concatenate([calm, 50 * calm, 1e6 * calm[:5]]),
        np.array([0, STEPS, 2 * STEPS, 2 * STEPS + 5]),
        panel.variates,
        names=("a", "new", "short"),
    )
    scales = PanelScales.of(later, columns, fitted)
    np.testing.assert_array_equal(scales.std[0], fitted.std[0])
    np.testing.assert_allclose(scales.std[1], 0.5 * fitted.std[0], rtol=0.1)
    np.testing.assert_array_equal(scales.std[2], columns.std)
    assert scales.rough.tolist() == [[False, False], [False, False], [True, True]]


def test_a_series_that_never_varies_lies_at_zero() -> None:
    panel = panel_of([5.0, 1.0, 1e4])
    panel.values[:STEPS, 0] = 3.3
    assert (standardized(panel)[:STEPS, 0] == 0).all()


@pytest.fixture(scope="module")
def fitted() -> tuple[pd.DataFrame, MDTIMImputer]:
    frame = frame_of([1.0, 1e4])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="in column")
        return frame, imputer().fit(frame)


def test_a_small_series_is_filled_as_well_as_a_large_one(
    fitted: tuple[pd.DataFrame, MDTIMImputer],
) -> None:
    frame, model = fitted
    whole = frame_of([1.0, 1e4], share=0.0)
    missing = frame["x"].isna() & (frame["shop"] == "shop 0")
    error = (model.transform(frame)["x"] - whole["x"])[missing].abs().mean()
    assert error < 0.15  # the waves swing by 1; in the scale of both it would be hundreds


def test_a_saved_model_fills_alike(
    fitted: tuple[pd.DataFrame, MDTIMImputer], tmp_path: Path
) -> None:
    frame, model = fitted
    model.save(tmp_path / "model")
    again = MDTIMImputer.load(tmp_path / "model", device="cpu")
    pd.testing.assert_frame_equal(again.transform(frame), model.transform(frame))


def test_a_known_small_series_by_itself_is_no_other_table(
    fitted: tuple[pd.DataFrame, MDTIMImputer],
) -> None:
    frame, model = fitted
    small = frame[frame["shop"] == "shop 0"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", ImputationWarning)
        alone = model.transform(small)
    pd.testing.assert_frame_equal(alone, model.transform(frame).loc[small.index])


def test_draws_of_a_small_series_are_of_its_size(
    fitted: tuple[pd.DataFrame, MDTIMImputer],
) -> None:
    frame, model = fitted
    small = frame[frame["shop"] == "shop 0"]
    (drawn,) = model.impute(small).samples(1, joint=True)
    assert drawn["x"].between(0, 4).all()


def test_series_that_tell_too_little_of_their_size_are_named(
    fitted: tuple[pd.DataFrame, MDTIMImputer],
) -> None:
    frame, model = fitted
    short = frame[:10].assign(shop="new")
    short.loc[short.index[4:], "y"] = np.nan
    with pytest.warns(ImputationWarning, match="'y' .* 1 of 1, such as 'new', have fewer than 8"):
        model.transform(short)


def test_a_series_in_other_units_is_told_and_filled_in_these(
    fitted: tuple[pd.DataFrame, MDTIMImputer],
) -> None:
    frame, model = fitted
    small = frame[frame["shop"] == "shop 0"]
    grams = small.assign(x=1_000 * small["x"])
    with pytest.warns(ImputationWarning, match="'x' .* 'shop 0', vary far more than when"):
        filled = model.transform(grams)
    np.testing.assert_allclose(filled["x"] / 1_000, model.transform(small)["x"], rtol=0.15)


@pytest.mark.filterwarnings("ignore:on held-out")
def test_a_fit_tells_readings_that_are_absurd_for_their_series() -> None:
    frame = frame_of([1.0, 1e5])
    frame.loc[17, "x"] = 5e4  # usual for the other shop
    with pytest.warns(ImputationWarning, match="'x' holds 1 readings far .* such as 50000"):
        imputer(preset=tiny_config(max_steps=2), window=16).fit(frame)


def test_errors_are_scored_in_the_scale_of_each_series(
    fitted: tuple[pd.DataFrame, MDTIMImputer],
) -> None:
    _, model = fitted
    panel = panel_of([1.0, 1e4])
    panel = replace(panel, names=("shop 0", "shop 1"), variates=("x", "y"))
    hidden = hide_share(panel, 0.1, 0)
    shown = without(panel, hidden)
    cells = model.model_.fill(shown, keep_distribution=True)
    linear = next(row for row in score(panel, hidden, cells, 0.1).rows if row.method == "linear")
    errors = np.abs(interpolate(shown.values, panel.offsets) - panel.values).reshape(2, STEPS, 2)
    own_std = panel.values.reshape(2, STEPS, 2).std(axis=1, keepdims=True)
    expected = (errors / own_std)[hidden.reshape(2, STEPS, 2)].mean()
    assert linear.mae == pytest.approx(expected, rel=0.02)


def test_new_series_in_parts_are_filled_as_in_one_table(tmp_path: Path) -> None:
    known, frame = frame_of([1.0, 1e4]), frame_of([30.0, 1e4])
    frame["shop"] = frame["shop"].replace({"shop 0": "new"})
    model = imputer(preset=tiny_config(max_steps=2), window=16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(known).save(tmp_path / "model")
        filled = model.impute(frame)
    (tmp_path / "source").mkdir()
    part = (frame["day"] - frame["day"].min()).dt.days // 110
    for number, rows in frame.groupby(part):
        rows.to_parquet(tmp_path / "source" / f"{number}.parquet", index=False)
    options = BatchOptions(TableOptions(time="day", id="shop"), LEVELS, device="cpu")
    report = run_batch(
        str(tmp_path / "source"), str(tmp_path / "out"), options, model=tmp_path / "model"
    )
    assert not report.failures
    paths = sorted((tmp_path / "out").glob("*.parquet"))
    parts = pd.concat([pd.read_parquet(path) for path in paths])
    parts = parts.sort_values(["shop", "day"]).reset_index(drop=True)
    extra = {f"q{level:g}": filled.panel_quantile(level) for level in LEVELS}
    whole = filled.table.with_columns(filled.values, extra)
    whole = whole.sort_values(["shop", "day"]).reset_index(drop=True)
    is_known = parts["shop"] == "shop 1"
    same(parts[is_known], whole[is_known])
    pd.testing.assert_frame_equal(parts, whole, rtol=1e-2)


@pytest.mark.filterwarnings("ignore::mdtim.doubts.ImputationWarning")
def test_a_model_of_a_sample_knows_that_series_differ(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    frame = frame_of([1.0, 1e4])
    for name, rows in frame.groupby("shop"):
        rows.to_parquet(tmp_path / "source" / f"{name}.parquet", index=False)
    options = BatchOptions(TableOptions(time="day", id="shop"), device="cpu", sample_rows=300)
    estimator = MDTIMImputer(16, tiny_config(max_steps=2), device="cpu", progress=False)
    run_batch(str(tmp_path / "source"), str(tmp_path / "out"), options, estimator=estimator)
    scales = MDTIMImputer.load(tmp_path / "out" / "_mdtim" / "model").model_.series_scales
    assert scales is not None
    assert scales.names == ("shop 0", "shop 1")
    filled = pd.read_parquet(tmp_path / "out" / "shop 0.parquet")
    assert filled["x"].between(0, 4).all()


def test_a_series_that_lay_still_at_the_fit_gets_its_own_scale_when_it_moves() -> None:
    panel = panel_of([1.0, 1e4, 1e3])
    still = panel.values.copy()
    still[:STEPS] = 0.0
    fitted = SeriesScales.fit(replace(panel, values=still), Standardizer.fit(still))
    assert fitted is not None
    columns = Standardizer.fit(still)
    scales = PanelScales.of(panel, columns, fitted)
    assert not scales.outgrown.any()
    np.testing.assert_allclose(scales.std[0], panel.values[:STEPS].std(axis=0), rtol=0.2)
    lying = PanelScales.of(replace(panel, values=still), columns, fitted)
    np.testing.assert_array_equal(lying.std[0], columns.std)
    np.testing.assert_array_equal(lying.mean[0], 0.0)


def test_a_table_of_one_nameless_series_is_told_without_a_name() -> None:
    panel = panel_of([1.0, 1e4])
    columns = Standardizer.fit(panel.values)
    few = panel.values[:6].copy()
    few[2] = np.nan
    nameless = Panel(few, np.array([0, 6]), panel.variates)
    scales = PanelScales.of(nameless, columns, SeriesScales.fit(panel, columns))
    with pytest.warns(ImputationWarning, match="1 of 1 have fewer than 8 known values"):
        of_series(nameless, scales)


def test_of_many_notes_on_parts_the_first_are_told_and_the_others_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mdtim.batch.run.MAX_NOTES", 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        imputer().fit(frame_of([1.0, 1e4])).save(tmp_path / "model")
    (tmp_path / "parts").mkdir()
    for number in range(5):
        few = frame_of([30.0], steps=12).assign(shop=f"new {number}")
        few.loc[4:, "x"] = np.nan
        few.to_parquet(tmp_path / "parts" / f"{number}.parquet", index=False)
    options = BatchOptions(TableOptions(time="day", id="shop"), device="cpu")
    report = run_batch(tmp_path / "parts", tmp_path / "out", options, model=tmp_path / "model")
    assert not report.failures
    assert len(report.notes) == 3
    assert "and 3 more notes on single parts" in report.notes[-1]


def test_parts_without_names_are_refused_where_the_model_knows_series(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        imputer(time="day").fit(frame_of([1.0, 1e4])).save(tmp_path / "model")
    (tmp_path / "parts").mkdir()
    frame_of([30.0]).drop(columns="shop").to_parquet(tmp_path / "parts" / "0.parquet", index=False)
    options = BatchOptions(TableOptions(time="day"), device="cpu")
    with pytest.raises(ValueError, match=r"here none is named; give the column that names them"):
        run_batch(tmp_path / "parts", tmp_path / "out", options, model=tmp_path / "model")
