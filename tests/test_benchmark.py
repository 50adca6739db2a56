from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from conftest import tiny_config, waves
from mdtim.benchmark import experiments, runner, trained
from mdtim.benchmark.experiments import ABLATIONS, EXPERIMENTS, Cell, cells_of, config_of
from mdtim.benchmark.methods import Ensemble, network_says, optimum_says
from mdtim.benchmark.rows import append, finished, key_of
from mdtim.benchmark.runner import _row, run_cells
from mdtim.benchmark.scoring import HiddenBatch, Said, TestWindows, hidden_mask, window_crps
from mdtim.benchmark.tables import render
from mdtim.cli import app
from mdtim.config import ModelConfig
from mdtim.datasets import Dataset, load
from mdtim.distribution import BinDistribution, GaussianDistribution
from mdtim.inference import Predictor
from mdtim.learning.training import Trainer
from mdtim.missingness import RATES
from mdtim.network import FactorizedDiT
from mdtim.series import WindowBatch

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
    monkeypatch.setattr(experiments, "config_of", lambda name, dataset: tiny_config(max_steps=4))


def cells(count: int = 4) -> list[Cell]:
    return [
        Cell("main", "etth", 12, pattern, rate, 0, 0, "mdtim", "large")
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


def test_a_cell_is_known_by_its_row(tmp_path: Path) -> None:
    every = [cell for name in EXPERIMENTS for cell in cells_of(name)]
    for cell in every:
        append(tmp_path / "r.csv", _row(cell, CPU, error=""))
    assert {key_of(cell) for cell in every} == finished(tmp_path / "r.csv")


@pytest.mark.usefixtures("_tiny")
def test_every_rate_has_its_first_mask_before_any_has_a_second(tmp_path: Path) -> None:
    asked = [replace(cells(1)[0], rate=rate, mask_seed=seed) for rate in RATES for seed in (0, 1)]
    run_cells(asked, tmp_path / "rows.csv", tmp_path / "runs", CPU, log=lambda line: None)
    with (tmp_path / "rows.csv").open() as file:
        order = [(row["mask_seed"], row["rate"]) for row in csv.DictReader(file)]
    assert order == [(seed, str(rate)) for seed in "01" for rate in RATES]


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


class Killed(BaseException):
    """What ends a process: nothing in the code under test may catch it."""


@pytest.mark.usefixtures("_tiny")
def test_a_killed_run_goes_on_and_gives_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, pieces, runs = tmp_path / "whole.csv", tmp_path / "pieces.csv", tmp_path / "b"
    run_cells(cells(3), whole, tmp_path / "a", CPU, log=lambda line: None)
    monkeypatch.setattr(trained, "CHECKPOINT_EVERY", 2)
    real_step, steps = Trainer._step, []

    def step_then_die(self: Trainer, share: float) -> torch.Tensor:
        steps.append(self.progress.step)
        if steps == [0, 1, 2, 3]:  # one step after the checkpoint, one before the end
            raise Killed
        return real_step(self, share)

    def die_at_the_second_row(line: str) -> None:
        if "mask" in line and len(scores_of(pieces)) == 2:
            raise Killed

    monkeypatch.setattr(Trainer, "_step", step_then_die)
    with pytest.raises(Killed):
        run_cells(cells(3), pieces, runs, CPU, log=lambda line: None)
    assert not pieces.exists()
    with pytest.raises(Killed):
        run_cells(cells(3), pieces, runs, CPU, log=die_at_the_second_row)
    assert len(scores_of(pieces)) == 2
    assert run_cells(cells(3), pieces, runs, CPU, log=lambda line: None)
    assert scores_of(whole) == scores_of(pieces)
    assert steps == [0, 1, 2, 3, 2, 3]  # what the checkpoint holds is not trained again
    assert not list(runs.glob("*/checkpoint"))


@pytest.mark.usefixtures("_tiny")
def test_all_ways_to_use_a_model_share_its_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings = []
    real_run = Trainer.run

    def count(self: Trainer, **options: object) -> str:
        trainings.append(self.seed)
        return real_run(self, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Trainer, "run", count)
    path, runs = tmp_path / "r.csv", tmp_path / "runs"
    methods = ("mdtim", "mdtim-argmax", "mdtim-ensemble")
    every = [replace(cell, method=method) for method in methods for cell in cells()]
    assert run_cells(every, path, runs, CPU, log=lambda line: None)
    assert trainings == [0, 1, 2]  # the ensemble adds two
    with path.open() as file:
        rows = list(csv.DictReader(file))
    by_method = {m: [row for row in rows if row["method"] == m] for m in methods}
    assert len({row["mae"] for row in rows}) == len(rows)
    one, ensemble = by_method["mdtim"][0], by_method["mdtim-ensemble"][0]
    assert int(ensemble["params"]) == 3 * int(one["params"])
    assert by_method["mdtim-argmax"][0]["crps"] == one["crps"]
    # Half hidden, mask 0: a few windows are kept for the pictures.
    assert len(list((runs / "predictions").glob("etth-12-large-0-*.npz"))) == 3


def test_an_ensemble_of_one_model_is_that_model() -> None:
    predictor = tiny_predictor(tiny_config())
    test = TestWindows.put(tiny_dataset(), 12, CPU)
    hidden = hidden_mask("geometric", test.shape, 0.5, 0)
    one = test.fill(network_says(predictor), hidden).scores()
    many = test.fill(network_says(Ensemble([predictor, predictor])), hidden).scores()
    assert many.mae == pytest.approx(one.mae, rel=1e-6)
    assert many.crps == pytest.approx(one.crps, rel=1e-6)


def test_no_fill_beats_the_optimum_where_it_is_known() -> None:
    test = TestWindows.put(load("linear_gaussian"), 48, CPU).take(np.arange(0, 4_000, 40))
    hidden = hidden_mask("geometric", test.shape, 0.5, 0)
    best = test.fill(optimum_says, hidden).scores()

    def shrunk(batch: WindowBatch, visible: torch.Tensor, scored: torch.Tensor) -> Said:
        said = optimum_says(batch, visible, scored)
        wider = GaussianDistribution(0.9 * said.estimate, 1.3 * said.distribution().std())
        return Said(0.9 * said.estimate, lambda: wider)

    other = test.fill(shrunk, hidden).scores()
    assert best.coverage90 == pytest.approx(0.9, abs=0.02)
    assert best.crps is not None
    assert other.crps is not None
    assert best.crps < other.crps
    assert best.mse < other.mse
    assert best.crps == pytest.approx(best.mae / 2**0.5, rel=0.03)  # as for any Gaussian law


@pytest.mark.usefixtures("_tiny")
def test_a_changed_configuration_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.csv"
    run_cells(cells(1), path, tmp_path / "runs", CPU, log=lambda line: None)
    monkeypatch.setattr(experiments, "config_of", lambda name, dataset: tiny_config(max_steps=5))
    run_cells(cells(1), path, tmp_path / "runs", CPU, log=lambda line: None)
    assert len(scores_of(path)) == 2


@pytest.mark.usefixtures("_tiny")
def test_a_failure_is_a_row_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(cell: Cell, *arguments: Any) -> Any:
        if cell.dataset == "weather":
            raise MemoryError("too wide")
        return prepare(cell, *arguments)

    prepare = runner.prepare
    monkeypatch.setattr(runner, "load", tiny_dataset)
    monkeypatch.setattr(runner, "prepare", broken)
    path = tmp_path / "r.csv"
    bad = Cell("main", "weather", 12, "uniform", 0.3, 0, 0, "mdtim", "large")
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
    assert {cell.method for cell in cells_of("limit")} == {"mdtim", "optimum"}
    assert {cell.horizon for cell in cells_of("downstream")} == {4, 6, 8, 12}
    assert len(set(ABLATIONS.values())) == len(ABLATIONS)
    for experiment in EXPERIMENTS:
        every = cells_of(experiment)
        assert len(set(every)) == len(every)
        free = ("optimum", "clean")
        assert all(cell.model_config or cell.settings or cell.method in free for cell in every)
    assert config_of("base", "physionet2012").diffusion.spectral_weight == 0
    with pytest.raises(ValueError, match="unknown experiment"):
        cells_of("everything")
    with pytest.raises(ValueError, match="no data set 'moon'"):
        cells_of("main", "moon")


def tiny_predictor(config: ModelConfig) -> Predictor:
    torch.manual_seed(0)
    return Predictor(FactorizedDiT(config.network, config.tokenizer, 2).eval(), config)


def test_scores_equal_those_taken_cell_by_cell() -> None:
    dataset = tiny_dataset()
    predictor = tiny_predictor(tiny_config())
    test = TestWindows.put(dataset, 12, CPU)
    assert test.shape == (30 - 11, 12, 2)
    hidden = hidden_mask("uniform", test.shape, 0.3, 0)
    scores = test.fill(network_says(predictor), hidden, batch_size=7).scores()
    errors = []
    for window, start in enumerate(test.index.starts):
        values = torch.from_numpy(dataset.values[start : start + 12].astype(np.float32))[None]
        visible = torch.from_numpy(~hidden[window])[None]
        probs, scale = predictor.probs(values, visible, torch.zeros(1, 12, 2, dtype=torch.int64))
        error = (predictor.distribution(probs, scale).mean() - values)[0].numpy() * dataset.unit
        errors += error[hidden[window]].tolist()
    assert scores.mae == pytest.approx(np.abs(errors).mean(), rel=1e-5)
    assert scores.mse == pytest.approx(np.square(errors).mean(), rel=1e-5)
    assert scores.crps is not None
    assert 0 < scores.crps < scores.mae
    with pytest.raises(ValueError, match="unknown pattern"):
        hidden_mask("stripes", (1, 2, 3), 0.1, 0)


def test_no_hidden_value_reaches_the_network() -> None:
    say = network_says(tiny_predictor(tiny_config()))
    test = TestWindows.put(tiny_dataset(), 12, CPU)
    for part in test.hide(hidden_mask("uniform", test.shape, 0.5, 0)):
        poisoned = torch.where(part.scored_BTV, 1e9, part.batch.values_BTV)
        other = replace(part.batch, values_BTV=poisoned)
        said, again = (
            say(batch, part.visible_BTV, part.scored_BTV) for batch in (part.batch, other)
        )
        assert torch.equal(said.estimate, again.estimate)
        assert said.distribution is not None
        assert again.distribution is not None
        truth = part.batch.values_BTV[part.scored_BTV].double()
        assert torch.equal(said.distribution().crps(truth), again.distribution().crps(truth))


def one_window(values: list[float], hidden: int) -> HiddenBatch:
    scored = torch.zeros(1, len(values), 1, dtype=torch.bool)
    scored[0, hidden] = True
    values_BTV = torch.tensor(values)[None, :, None]
    rows, inside = torch.arange(len(values))[None], torch.ones(1, len(values), dtype=torch.bool)
    return HiddenBatch(WindowBatch(values_BTV, ~scored, rows, inside, rows), ~scored, scored)


def test_the_window_crps_is_the_sum_over_the_bins_of_the_window() -> None:
    part = one_window([10.0, 17.0, 14.0, 20.0], hidden=1)
    truth = torch.tensor([17.0], dtype=torch.float64)
    # The visible cells span 10 to 20: the window's unit is 5, its centre 15.
    said = GaussianDistribution(torch.tensor([16.0]).double(), torch.tensor([2.0]).double())
    bins = np.linspace(-1.5, 1.5, 60)
    law = np.array([NormalDist(0.2, 0.4).cdf(point) for point in bins])
    expected = np.sum((law - (bins >= 0.4)) ** 2) * (3 / 59)
    unit = torch.ones(1)
    assert float(window_crps(said, truth, part, unit)) == pytest.approx(expected)
    # A fine enough sum is the integral, in units of the window.
    assert expected == pytest.approx(float(said.crps(truth)) / 5, rel=0.05)
    # A truth beyond the grid counts as its end.
    far = window_crps(said, torch.tensor([99.0]).double(), part, unit)
    assert float(far) == pytest.approx(float(np.sum((law - (bins >= 1.5)) ** 2) * (3 / 59)))


def test_the_window_crps_does_not_depend_on_the_grid_a_distribution_is_held_on() -> None:
    part = one_window([0.0, 0.5, 1.0], hidden=1)
    truth = torch.tensor([0.5], dtype=torch.float64)
    one = torch.ones(1, 1)
    coarse = BinDistribution(one, torch.tensor([0.5]).double(), torch.tensor([0.1]).double())
    fine = BinDistribution(
        one.expand(1, 50) / 50,
        torch.tensor([0.451]).double(),
        torch.tensor([0.002]).double(),
    )
    unit = torch.ones(1)
    assert float(window_crps(coarse, truth, part, unit)) == pytest.approx(
        float(window_crps(fine, truth, part, unit)), abs=1e-6
    )


def test_a_window_is_at_least_one_unit_of_the_score_wide() -> None:
    part = one_window([0.0, 0.1, 0.2], hidden=1)  # flat: 0.2 wide, 0.4 in units of the score
    truth = torch.tensor([0.1], dtype=torch.float64)
    said = GaussianDistribution(torch.tensor([0.1]).double(), torch.tensor([0.05]).double())
    unit = torch.tensor([2.0])
    bins = np.linspace(-1.5, 1.5, 60)
    law = np.array([NormalDist(0.0, 0.05 / 0.25).cdf(point) for point in bins])
    expected = np.sum((law - (bins >= 0.0)) ** 2) * (3 / 59)
    assert float(window_crps(said, truth, part, unit)) == pytest.approx(expected)


def test_each_estimate_reads_the_same_distributions() -> None:
    test = TestWindows.put(tiny_dataset(), 12, CPU)
    (part,) = test.hide(hidden_mask("uniform", test.shape, 0.3, 0))
    given = (part.batch, part.visible_BTV, part.scored_BTV)
    said = {
        estimate: network_says(tiny_predictor(tiny_config(estimate=estimate)))(*given)
        for estimate in ("mean", "median", "mode")
    }
    law = said["mean"].distribution()
    assert isinstance(law, BinDistribution)
    assert torch.equal(said["mean"].estimate, law.mean())
    assert torch.equal(said["median"].estimate, law.quantile(0.5))
    assert torch.equal(said["mode"].estimate, law.mode())
    for one in said.values():
        assert torch.equal(one.distribution().std(), law.std())


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
