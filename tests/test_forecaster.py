from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import tiny_config, waves
from mdtim.benchmark import experiments, forecaster, runner
from mdtim.benchmark.experiments import Cell
from mdtim.benchmark.forecaster import Forecaster, ForecasterConfig
from mdtim.benchmark.runner import run_cells
from mdtim.datasets import Dataset

pytest.importorskip("transformers")
CPU = torch.device("cpu")
TINY = ForecasterConfig(
    patch_length=4, width=8, num_heads=2, num_layers=1, ffn_width=8, batch_size=8, max_steps=2,
    validate_every=1,
)  # fmt: skip


def dataset() -> Dataset:
    offsets = np.array([0, 200])
    return Dataset("energy", waves(200, 2), offsets, (0, 150), (139, 170), (170, 200), np.ones(2))


def test_errors_are_those_of_the_forecast_against_the_rows_that_follow() -> None:
    model = Forecaster(dataset(), 12, 3, CPU, TINY)
    starts = torch.tensor([5, 40])
    past, future = model._cut(starts)
    np.testing.assert_allclose(past[1], dataset().values[40:52], rtol=1e-6)
    np.testing.assert_allclose(future[1], dataset().values[52:55], rtol=1e-6)
    absolute, squared = model.errors(past, starts)
    error = (model._predict(past) - future).detach()
    assert absolute == pytest.approx(float(error.abs().mean()), rel=1e-5)
    assert squared == pytest.approx(float((error**2).mean()), rel=1e-5)
    # Windows that reach into the validation rows with their future are no training windows.
    assert int(model._starts((0, 150)).max()) == 150 - 12 - 3


def test_training_is_repeatable_and_kept(tmp_path: Path) -> None:
    state = torch.get_rng_state()
    made = [Forecaster(dataset(), 12, 3, CPU, TINY) for _ in range(3)]
    made[0].prepare(tmp_path / "a", lambda line: None)
    made[1].prepare(tmp_path / "b", lambda line: None)
    said: list[str] = []
    made[2].prepare(tmp_path / "a", said.append)
    assert said == []  # loaded
    assert made[2].train_seconds == made[0].train_seconds
    for one, two, three in zip(*(m.network.state_dict().values() for m in made), strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)
    assert torch.equal(torch.get_rng_state(), state)


def test_one_fill_serves_its_errors_and_every_horizon_and_a_clean_window_is_forecast_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "load", lambda name, window: dataset())
    monkeypatch.setattr(experiments, "config_of", lambda name, data: tiny_config(max_steps=2))
    monkeypatch.setattr(forecaster, "ForecasterConfig", lambda: TINY)
    monkeypatch.setattr("mdtim.benchmark.rows.ForecasterConfig", lambda: TINY)
    cells = [
        Cell(f"downstream-{horizon}", "energy", 12, pattern, rate, 0, 0, method, preset)
        for horizon in (2, 3)
        for method, preset, pattern, rate in (
            ("clean", "", "none", 0.0),
            ("mdtim", "large", "uniform", 0.5),
        )
    ]
    cells.append(replace(cells[1], experiment="main"))
    path = tmp_path / "r.csv"
    assert run_cells(cells, path, tmp_path / "runs", CPU, log=lambda line: None)
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5
    filled = [row for row in rows if row["method"] == "mdtim"]
    assert len({row["impute_seconds"] for row in filled}) == 1
    model = Forecaster(dataset(), 12, 3, CPU, TINY)
    model.prepare(tmp_path / "runs", lambda line: pytest.fail("trained again"))
    starts = model._starts(dataset().test)
    expected, _ = model.errors(model._cut(starts)[0], starts)
    (clean,) = (r for r in rows if (r["experiment"], r["method"]) == ("downstream-3", "clean"))
    assert float(clean["mae"]) == pytest.approx(expected, rel=1e-4)
    assert clean["crps"] == ""
