from __future__ import annotations

import csv
import json
import time
from dataclasses import fields
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import CubicSpline
from typer.testing import CliRunner

from conftest import tiny_config, waves
from mdtim import metrics
from mdtim.baselines.protocol import Filled, HeldOut, OutOfTime, Windows, conceal, keep_observed
from mdtim.baselines.pypots import MODELS
from mdtim.baselines.registry import REFERENCES, build
from mdtim.baselines.settings import Limits, Settings, methods, settings_of
from mdtim.benchmark import experiments, runner, systems
from mdtim.benchmark.experiments import COSTS, Cell, cells_of, with_methods
from mdtim.benchmark.rows import Row, fingerprint
from mdtim.benchmark.runner import run_cells
from mdtim.benchmark.scoring import TestWindows, hidden_mask
from mdtim.benchmark.tables import render
from mdtim.benchmark.trained import TrainedModel
from mdtim.cli import app
from mdtim.datasets import Dataset
from system_cases import held_out, hide, windows

CPU = torch.device("cpu")
CHEAP = (*REFERENCES, "knn", "iterative")


def cheap_system(method: str, num_steps: int = 12):  # type: ignore[no-untyped-def]
    settings = settings_of(method, "etth")
    if method == "seasonal":
        settings.values["season"] = 4
    return build(settings, num_steps, 3, 0, CPU)


@pytest.mark.parametrize("method", CHEAP)
def test_a_reference_fills_what_is_hidden_and_keeps_the_rest(method: str) -> None:
    training, _, test = windows()
    hidden = hide(test, 2)
    imputer = cheap_system(method)
    imputer.fit(training, held_out())
    filled = imputer.fill(conceal(test, hidden)).values_WTV
    assert (filled[~hidden] == test[~hidden]).all()
    error = np.abs(filled - test)[hidden].mean()
    mean_error = np.abs(test - training.mean(axis=(0, 1)))[hidden].mean()
    if method in ("mean", "median"):
        assert error == pytest.approx(mean_error, rel=0.05)
    else:
        assert error < mean_error
    poisoned = np.where(hidden, np.float32(1e9), test)
    assert (imputer.fill(conceal(poisoned, hidden)).values_WTV == filled).all()
    parts = [
        imputer.fill(conceal(test, hidden)[part]).values_WTV for part in (slice(7), slice(7, None))
    ]
    np.testing.assert_allclose(np.concatenate(parts), filled, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", CHEAP)
def test_a_window_that_knows_nothing_of_a_variate_is_filled_all_the_same(method: str) -> None:
    training, _, test = windows()
    imputer = cheap_system(method)
    imputer.fit(training, held_out())
    empty = test[:2].copy()
    empty[:, :, 1] = np.nan
    filled = imputer.fill(empty).values_WTV
    if method in ("locf", "linear", "spline", "seasonal", "mean"):
        np.testing.assert_allclose(filled[:, :, 1], training[:, :, 1].mean(), rtol=1e-5)
    assert np.isfinite(filled).all()


def test_rules_along_time_equal_pandas_and_scipy_window_by_window() -> None:
    training, _, test = windows()
    visible = conceal(test, hide(test, 3))
    fills = {}
    for method in ("locf", "linear", "spline", "seasonal"):
        imputer = cheap_system(method)
        imputer.fit(training, held_out())
        fills[method] = imputer.fill(visible).values_WTV
    for number, window in enumerate(visible):
        frame = pd.DataFrame(window.astype(np.float64))
        np.testing.assert_allclose(fills["locf"][number], frame.ffill().bfill(), rtol=1e-6)
        line = frame.interpolate(limit_direction="both")
        np.testing.assert_allclose(fills["linear"][number], line, rtol=1e-6)
        for column in range(3):
            series = frame[column]
            known = series.dropna()
            curve = CubicSpline(known.index, known, bc_type="natural")
            inside = np.clip(series.index, known.index[0], known.index[-1])
            gaps = series.isna().to_numpy()
            found = fills["spline"][number][gaps, column]
            np.testing.assert_allclose(found, curve(inside)[gaps], rtol=1e-5, atol=1e-6)
            for step in np.flatnonzero(gaps):
                before = [series[s] for s in range(step - 4, -1, -4) if not np.isnan(series[s])]
                if before:
                    expected = before[0]
                    assert fills["seasonal"][number, step, column] == pytest.approx(expected)


def test_a_season_that_a_window_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="144 steps does not fit into a window of 48"):
        build(settings_of("seasonal", "energy"), 48, 28, 0, CPU)
    with pytest.raises(ValueError, match="no season"):
        build(settings_of("seasonal", "sine"), 48, 5, 0, CPU)


@given(st.integers(0, 2**32 - 1))
def test_what_is_kept_is_what_was_known(seed: int) -> None:
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(2, 5, 3)).astype(np.float32)
    hidden = generator.random(values.shape) < 0.5
    kept = keep_observed(conceal(values, hidden), np.full((4, *values.shape), 7.0))
    assert kept.shape == (4, *values.shape)
    assert (kept[:, ~hidden] == values[~hidden]).all()
    assert (kept[:, hidden] == 7.0).all()


def test_an_unfilled_cell_is_an_error() -> None:
    gap = np.full((1, 2, 1), np.nan)
    with pytest.raises(ValueError, match="1 of 2 filled cells"):
        keep_observed(gap, np.array([[[1.0], [np.inf]]]))


# -- settings -----------------------------------------------------------------------------------


def test_every_system_has_settings_with_a_source_for_every_data_set() -> None:
    assert set(methods()) == {*MODELS, "fgti", *CHEAP}
    for method in methods():
        for dataset in ("etth", "energy", "weather", "sine", "physionet2012", "nycweather"):
            assert settings_of(method, dataset).source
    text = (files("mdtim.baselines") / "settings.json").read_text()
    rows = json.loads(text)["rows"]
    keys = [(row["method"], row["data"], row["name"]) for row in rows]
    assert len(keys) == len(set(keys))


def test_a_change_of_settings_changes_their_fingerprint_and_nothing_else() -> None:
    def hashed(dataset: str, preset: str = "default", experiment: str = "main") -> str:
        return fingerprint(Cell(experiment, dataset, 48, "uniform", 0.3, 0, 0, "saits", preset))

    plain = settings_of("saits", "etth")
    changed = settings_of("saits", "etth", "default+dropout=0.3+max_minutes=5")
    assert changed.values == {**plain.values, "dropout": 0.3}
    assert changed.limits.max_minutes == 5
    assert hashed("etth", "default+dropout=0.3+max_minutes=5") != hashed("etth") == hashed("sine")
    assert hashed("etth", experiment="downstream-4") != hashed("etth")  # a forecaster's as well
    assert settings_of("saits", "physionet2012").values != plain.values
    assert (
        settings_of("saits", "etth", "default+hide_training=False").values["hide_training"] is False
    )
    for ways in (True, 4):
        changed = settings_of("csdi", "etth", f"default+hide_training={ways}")
        assert changed.values["hide_training"] == ways
    with pytest.raises(ValueError, match="no setting 'depth'"):
        settings_of("saits", "etth", "default+depth=3")
    with pytest.raises(ValueError, match="unknown method 'magic'"):
        settings_of("magic", "etth")
    with pytest.raises(ValueError, match="no settings 'huge' for etth"):
        settings_of("saits", "etth", "huge")


def test_the_limits_are_kept_in_whole_epochs() -> None:
    limits = Limits(batch_size=32, max_epochs=100, max_steps=1_000, max_minutes=1, patience=3)
    assert limits.epochs(320) == 100
    assert limits.epochs(3_200) == 10
    assert limits.epochs(320_000) == 1


# -- experiments --------------------------------------------------------------------------------


def tiny_dataset(name: str = "etth", window: int = 12) -> Dataset:
    values = waves(200, 2)
    values[50, 0] = values[180, 1] = np.nan
    return Dataset(
        name, values, np.array([0, 200]), (0, 150), (139, 170), (170, 200), np.array([1.0, 2.0])
    )


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "load", lambda name, window: tiny_dataset(name, window))
    monkeypatch.setattr(experiments, "config_of", lambda name, dataset: tiny_config(max_steps=4))


def cells(method: str) -> list[Cell]:
    return [
        Cell("main", "etth", 12, pattern, 0.3, 0, 0, method, "default")
        for pattern in ("uniform", "geometric")
    ]


class Spy:
    """Keeps what it is given, and fills with zeros and ones."""

    num_parameters = 7

    def __init__(self) -> None:
        self.seen: list[Windows] = []

    def fit(self, training_WTV: Windows, validation: HeldOut) -> None:
        self.training, self.validation = training_WTV, validation

    def fill(self, visible_WTV: Windows) -> Filled:
        self.seen.append(visible_WTV)
        samples = np.stack([np.zeros_like(visible_WTV), np.ones_like(visible_WTV)])
        samples = keep_observed(visible_WTV, samples)
        return Filled(samples.mean(axis=0), samples)


@pytest.mark.usefixtures("_tiny")
def test_a_system_gets_the_windows_and_masks_that_mdtim_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy()
    monkeypatch.setattr(systems, "build", lambda *arguments: spy)
    assert run_cells(cells("linear"), tmp_path / "r.csv", tmp_path, CPU, log=lambda line: None)
    dataset = tiny_dataset()
    mdtim = Cell("main", "etth", 12, "uniform", 0.3, 0, 0, "mdtim", "large")
    series = TestWindows.put(dataset, 12, CPU).series
    data = TrainedModel(mdtim, dataset, series, tmp_path / "m").training_data()
    assert (spy.validation.hidden_WTV == data.hidden_WTV.numpy()).all()
    starts = data.validation.starts.numpy()
    expected = np.stack([dataset.values[start : start + 12] for start in starts])
    np.testing.assert_array_equal(spy.validation.values_WTV, expected.astype(np.float32))
    assert len(spy.training) == len(data.training)

    test = np.stack([dataset.values[start : start + 12] for start in range(170, 189)])
    assert len(spy.seen) == 2  # once for each mask: samples are dear
    for number, pattern in enumerate(("uniform", "geometric")):
        hidden = hidden_mask(pattern, test.shape, 0.3, 0)
        seen = spy.seen[number]
        np.testing.assert_array_equal(np.isnan(seen), hidden | np.isnan(test))
        known = ~np.isnan(seen)
        np.testing.assert_array_equal(seen[known], test.astype(np.float32)[known])

        scored = hidden & ~np.isnan(test)
        unit, half = dataset.unit, np.full(test.shape, 0.5)
        with (tmp_path / "r.csv").open() as file:
            row = list(csv.DictReader(file))[number]
        assert float(row["mae"]) == pytest.approx(
            metrics.mae(test * unit, half * unit, scored), rel=1e-4
        )
        samples = np.stack([np.zeros(test.shape), np.ones(test.shape)]) * unit
        assert float(row["crps"]) == pytest.approx(
            metrics.sample_crps(test * unit, samples, scored), rel=1e-4
        )
        inside = (test >= 0) & (test < 1)
        assert float(row["coverage90"]) == pytest.approx(inside[scored].mean(), rel=1e-4)
        assert float(row["crps_window"]) > 0
        assert row["params"] == "7"


@pytest.mark.usefixtures("_tiny")
def test_a_trained_system_is_kept_and_not_trained_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = []

    def small(settings: object, num_steps: int, num_variates: int, seed: int, device: object):  # type: ignore[no-untyped-def]
        imputer = tiny_fgti()
        real = imputer.fit
        monkeypatch.setattr(imputer, "fit", lambda *sets: (fits.append(1), real(*sets)))
        return imputer

    def tiny_fgti():  # type: ignore[no-untyped-def]
        from mdtim.baselines.fgti.imputer import FGTIImputer
        from mdtim.baselines.settings import Settings
        from system_cases import FGTI, LIMITS

        return FGTIImputer(Settings("fgti", dict(FGTI), LIMITS, ""), 12, 2, 0, CPU)

    monkeypatch.setattr(systems, "build", small)
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    assert run_cells(cells("fgti")[:1], first, tmp_path / "runs", CPU, log=lambda line: None)
    assert run_cells(cells("fgti"), second, tmp_path / "runs", CPU, log=lambda line: None)
    assert len(fits) == 1
    rows = [list(csv.DictReader(path.read_text().splitlines())) for path in (first, second)]
    assert rows[0][0]["mae"] == rows[1][0]["mae"]
    assert rows[0][0]["train_seconds"] == rows[1][0]["train_seconds"]
    # Its rate drops by the clock, so that with less time it would be another system.
    other = tmp_path / "other"
    assert not run_cells(
        cells("fgti"), tmp_path / "c.csv", other, CPU, max_minutes=10, log=lambda line: None
    )
    assert len(fits) == 1
    assert not (tmp_path / "c.csv").exists()


@pytest.mark.usefixtures("_tiny")
def test_a_run_without_the_time_for_a_fit_leaves_no_half_trained_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes: list[float] = []

    class Slow(Spy):
        def fit(self, training_WTV: Windows, validation: HeldOut) -> None:
            time.sleep(1.5)

    def slow(settings: Settings, *shape: object) -> Slow:
        minutes.append(settings.limits.max_minutes)
        return Slow()

    monkeypatch.setattr(systems, "build", slow)
    path, runs = tmp_path / "r.csv", tmp_path / "runs"
    assert not run_cells(cells("saits"), path, runs, CPU, max_minutes=0.02, log=lambda line: None)
    assert minutes[0] == 30
    assert minutes[-1] < 0.02
    assert not path.exists()
    assert not list(runs.glob("*"))


@pytest.mark.usefixtures("_tiny")
def test_a_fit_without_an_epoch_is_a_failure_only_if_it_had_all_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(Spy):
        def fit(self, training_WTV: Windows, validation: HeldOut) -> None:
            raise OutOfTime("no epoch ended")

    monkeypatch.setattr(systems, "build", lambda *arguments: Late())
    path, runs = tmp_path / "r.csv", tmp_path / "runs"
    assert not run_cells(cells("saits"), path, runs, CPU, max_minutes=1, log=lambda line: None)
    assert not path.exists()
    assert not run_cells(cells("saits"), path, runs, CPU, log=lambda line: None)
    with path.open() as file:
        assert {row["error"] for row in csv.DictReader(file)} == {"OutOfTime: no epoch ended"}


@pytest.mark.usefixtures("_tiny")
def test_a_system_that_fails_is_a_row_and_the_others_go_on(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    chosen = cells("seasonal") + cells("linear")
    assert not run_cells(chosen, path, tmp_path / "runs", CPU, log=lambda line: None)
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert ["does not fit" in row["error"] for row in rows] == [True, True, False, False]
    assert "(2 cells)" in render(path)
    assert not run_cells(chosen, path, tmp_path / "runs", CPU, log=lambda line: None)
    assert "(2 cells)" in render(path)  # tried again, failed again
    # Values alone have no CRPS and no coverage.
    assert all(row["mae"] and not row["crps"] and not row["coverage90"] for row in rows[2:])


def test_methods_are_chosen_on_the_masks_of_the_experiment() -> None:
    main = cells_of("main", "etth")
    both = with_methods(main, ["mdtim", "saits"], "default+max_minutes=5")
    assert both[:18] == main
    filled = with_methods(cells_of("downstream"), ["linear"])
    assert {cell.pattern for cell in filled} == {"uniform", "geometric"}
    assert {cell.preset for cell in both[18:]} == {"default+max_minutes=5"}
    masks = [(cell.pattern, cell.rate, cell.mask_seed) for cell in main]
    assert [(cell.pattern, cell.rate, cell.mask_seed) for cell in both[18:]] == masks
    with pytest.raises(ValueError, match="no cells of 'clean'"):
        with_methods(main, ["clean"])
    costs = cells_of("efficiency")
    assert {cell.method for cell in costs} == {"mdtim", "brits", "saits", "csdi", "linear"}
    scales = {cell.preset.partition("+")[0] for cell in with_methods(costs, ["csdi"])}
    assert scales == {"small", "large"}
    for cell in costs:
        assert cell.method == "mdtim" or settings_of(cell.method, cell.dataset, cell.preset)


def test_an_unknown_method_is_one_sentence(tmp_path: Path) -> None:
    arguments = ["--experiment", "main", "--dataset", "etth", "--methods", "magic"]
    arguments += ["--results", str(tmp_path / "r.csv"), "--device", "cpu"]
    result = CliRunner().invoke(app, ["benchmark", "run", *arguments])
    assert result.exit_code == 2
    assert "unknown method 'magic'" in result.output


def rendered(folder: Path, rows: list[dict[str, object]]) -> str:
    """The tables of a results file with some rows."""
    path = folder / "r.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows(rows)
    return render(path)


def result_row(**changes: object) -> dict[str, str]:
    row = dict.fromkeys((field.name for field in fields(Row)), "")
    known = {
        **{"experiment": "main", "dataset": "etth", "window": 48, "pattern": "uniform"},
        **{"rate": 0.3, "mask_seed": 0, "train_seed": 0, "method": "mdtim", "preset": "base"},
        **{"mae": 0.12, "mse": 0.04, "coverage90": 0.9, "params": 650_000, "device": "CPU"},
    }
    return row | {name: str(value) for name, value in {**known, **changes}.items()}


def test_the_tables_show_systems_beside_the_papers_figures(tmp_path: Path) -> None:
    cost = {"experiment": "efficiency", "dataset": "energy", "impute_seconds": 3.25}
    small = next(preset for method, preset in COSTS if method == "mdtim")
    large = [preset for method, preset in COSTS if method == "csdi"][-1]
    rows = [
        result_row(crps=0.08),
        result_row(method="saits", preset="default", mae=0.15, coverage90=""),
        result_row(method="csdi", preset="default", mae=0.16, crps=0.11, coverage90=0.85),
        result_row(**cost, preset=small, mae=0.05),
        result_row(**cost, method="csdi", preset=large, mae=0.07),
    ]
    text = rendered(tmp_path, rows)
    assert "| saits | 0.1500¹ (0.14) |" in text  # of one mask
    assert text.index("| mdtim | 0.1200¹ (0.127)") < text.index("| saits | 0.1500")
    assert "| etth | csdi | uniform | 30% | 0.1100¹ | 85.0%¹ |" in text
    assert "| mdtim, batch_size=64, max_steps=10000, validate_every=500 | small | 0.0500 |" in text
    assert "| csdi, max_minutes=12 | large | 0.0700 |  |  | 0.65 |" in text
    assert "| *csdi, paper* | large | 0.074 | 0.093 | 0.128 | 4.49 |  | 894.76 |  |" in text
    main = text[: text.index("## All systems")]
    assert "0.1200" in main
    assert "0.1500" not in main  # the table of mdtim stays mdtim's


def test_zero_shot_figures_stand_beside_interpolation_and_a_trained_model(tmp_path: Path) -> None:
    zero = {"experiment": "zeroshot", "preset": "zero-mini+max_steps=0", "crps": 0.1}
    rows = [
        result_row(**zero, mae=0.15),
        result_row(method="linear", preset="default", mae=0.225, coverage90=""),
    ]
    text = rendered(tmp_path, rows)
    assert "### zero-mini\n" in text
    assert "| 0.1500 | 0.2250 | 0.667 | 0.1400 | 1.071 |" in text
    assert "Geometric means, measured data: 0.667 of linear, 1.071 of SAITS." in text
