from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from conftest import tiny_config, waves
from mdtim.benchmark import runner
from mdtim.benchmark.experiments import EXPERIMENTS, Cell, cells_of, config_of
from mdtim.benchmark.runner import finished, run_cells
from mdtim.benchmark.scoring import hidden_mask, score_windows, windows_within
from mdtim.benchmark.tables import paper_figures, render
from mdtim.cli import app
from mdtim.datasets import Dataset
from mdtim.inference import Predictor
from mdtim.network import FactorizedDiT
from mdtim.series import DeviceSeries

CPU = torch.device("cpu")


def tiny_dataset(name: str = "etth", window: int = 12) -> Dataset:
    values = waves(200, 2)
    values[50, 0] = np.nan
    return Dataset(
        name, values, np.array([0, 200]), (0, 150), (139, 170), (170, 200), np.array([1.0, 2.0])
    )


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "load", lambda name, window: tiny_dataset(name, window))
    monkeypatch.setattr(runner, "config_of", lambda name, dataset: tiny_config(max_steps=4))


def cells(count: int = 4) -> list[Cell]:
    return [
        Cell("main", "etth", 12, pattern, rate, 0, 0, "mdtim", "base")
        for pattern in ("uniform", "geometric")
        for rate in (0.3, 0.5)
    ][:count]


def scores_of(path: Path) -> list[tuple[str, ...]]:
    with path.open() as file:
        return [
            tuple(row[name] for name in ("pattern", "rate", "mae", "crps", "coverage90"))
            for row in csv.DictReader(file)
        ]


@pytest.mark.usefixtures("_tiny")
def test_a_run_in_two_pieces_gives_the_rows_of_one(tmp_path: Path) -> None:
    whole, pieces = tmp_path / "whole.csv", tmp_path / "pieces.csv"
    assert run_cells(cells(), whole, tmp_path / "a", CPU, log=lambda line: None)
    assert run_cells(cells(2), pieces, tmp_path / "b", CPU, log=lambda line: None)
    assert run_cells(cells(), pieces, tmp_path / "b", CPU, log=lambda line: None)
    assert scores_of(whole) == scores_of(pieces)
    before = pieces.read_text()
    assert run_cells(cells(), pieces, tmp_path / "b", CPU, log=lambda line: None)
    assert pieces.read_text() == before  # a finished cell is never run again


@pytest.mark.usefixtures("_tiny")
def test_a_run_out_of_time_goes_on_where_it_stopped(tmp_path: Path) -> None:
    whole, pieces = tmp_path / "whole.csv", tmp_path / "pieces.csv"
    run_cells(cells(1), whole, tmp_path / "a", CPU, log=lambda line: None)
    runs = tmp_path / "b"
    first = run_cells(cells(1), pieces, runs, CPU, max_minutes=1e-4, log=lambda line: None)
    assert not first
    assert not pieces.exists()
    while not run_cells(cells(1), pieces, runs, CPU, max_minutes=0.5, log=lambda line: None):
        pass
    assert scores_of(whole) == scores_of(pieces)


@pytest.mark.usefixtures("_tiny")
def test_a_changed_configuration_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.csv"
    run_cells(cells(1), path, tmp_path / "runs", CPU, log=lambda line: None)
    monkeypatch.setattr(runner, "config_of", lambda name, dataset: tiny_config(max_steps=5))
    run_cells(cells(1), path, tmp_path / "runs", CPU, log=lambda line: None)
    assert len(scores_of(path)) == 2


@pytest.mark.usefixtures("_tiny")
def test_a_failure_is_a_row_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str, window: int) -> Dataset:
        if name == "weather":
            raise MemoryError("too wide")
        return tiny_dataset(name, window)

    monkeypatch.setattr(runner, "load", broken)
    path = tmp_path / "r.csv"
    bad = Cell("main", "weather", 12, "uniform", 0.3, 0, 0, "mdtim", "base")
    assert not run_cells([bad, *cells(1)], path, tmp_path / "runs", CPU, log=lambda line: None)
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["error"] == "MemoryError: too wide"
    assert rows[0]["mae"] == ""
    assert rows[1]["mae"] != ""
    assert len(finished(path)) == 1  # the failed one is tried again
    assert "too wide" in render(path)


def test_the_grids_are_those_of_the_paper() -> None:
    assert len(cells_of("main")) == 4 * 2 * 3 * 3
    assert {cell.window for cell in cells_of("long")} == {96, 192}
    assert {cell.preset for cell in cells_of("faithful")} == {"paper-large"}
    for experiment in EXPERIMENTS:
        for cell in cells_of(experiment):
            if cell.method == "mdtim":
                config_of(cell.preset, cell.dataset)
    assert config_of("base", "physionet2012").diffusion.spectral_weight == 0
    with pytest.raises(ValueError, match="unknown experiment"):
        cells_of("everything")
    with pytest.raises(ValueError, match="no data set 'moon'"):
        cells_of("main", "moon")


def test_scores_equal_those_taken_cell_by_cell() -> None:
    dataset = tiny_dataset()
    config = tiny_config()
    torch.manual_seed(0)
    network = FactorizedDiT(config.network, config.tokenizer, 2).eval()
    predictor = Predictor(network, config)
    series = DeviceSeries.put(dataset.values.astype(np.float32), CPU)
    index = windows_within(dataset, dataset.test, 12)
    assert len(index) == 30 - 11
    hidden = hidden_mask("uniform", (len(index), 12, 2), 0.3, 0)
    scores = score_windows(predictor, series, index, hidden, dataset.unit, batch_size=7)
    errors = []
    for window, start in enumerate(index.starts):
        values = torch.from_numpy(dataset.values[start : start + 12].astype(np.float32))[None]
        visible = torch.from_numpy(~hidden[window])[None]
        probs, scale = predictor.probs(values, visible, torch.zeros(1, 12, 2, dtype=torch.int64))
        error = (predictor.distribution(probs, scale).mean() - values)[0].numpy() * dataset.unit
        errors += error[hidden[window]].tolist()
    assert scores.mae == pytest.approx(np.abs(errors).mean(), rel=1e-5)
    assert scores.mse == pytest.approx(np.square(errors).mean(), rel=1e-5)
    assert 0 < scores.crps < scores.mae
    with pytest.raises(ValueError, match="unknown pattern"):
        hidden_mask("stripes", (1, 2, 3), 0.1, 0)


def test_the_papers_figures_are_complete() -> None:
    mae = paper_figures("mae")
    assert len(mae) >= 18
    assert mae["MDTIM"]["etth", 48, "uniform", 0.3] == 0.127
    assert mae["SAITS"]["etth", 192, "geometric", 0.7] == 0.195
    assert mae["MDTIM"]["physionet2012", 48, "uniform", 0.3] == 0.236
    assert len(paper_figures("crps")["MDTIM"]) == 18


def test_the_tables_in_the_documents_are_those_of_the_results() -> None:
    root = Path(__file__).parents[1]
    assert (root / "docs" / "results.md").read_text() == render(root / "results" / "paper.csv")


def test_the_commands_list_render_and_refuse(tmp_path: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["benchmark", *arguments])
        return result.exit_code, result.output

    assert "main: 72 cells" in run("list")[1]
    root = Path(__file__).parents[1]
    output = tmp_path / "results.md"
    code, _ = run("tables", "--results", str(root / "results/paper.csv"), "--output", str(output))
    assert code == 0
    assert "| etth | 48 |" in output.read_text()
    code, text = run("tables", "--results", str(tmp_path / "none.csv"))
    assert code == 2
    assert "run an experiment first" in text
    code, text = run("run", "--experiment", "nothing")
    assert code == 2
    assert "unknown experiment" in text
