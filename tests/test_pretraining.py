from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gpu_cases import needs_cuda
from mdtim.config import preset
from mdtim.learning.fitting import new_network
from mdtim.learning.training import Trainer
from mdtim.pretrained import card
from mdtim.pretraining import run, school, signals
from mdtim.pretraining.dice import Dice
from mdtim.pretraining.gaps import draw_gaps
from mdtim.pretraining.pool import Pool, Shape
from mdtim.pretraining.school import School
from mdtim.pretraining.tables import draw_tables

CPU = torch.device("cpu")
SMALL = (Shape(6, 24, 3), Shape(4, 32, 2))


def dice(seed: int = 0) -> Dice:
    return Dice(seed, CPU)


def test_dice_fall_as_they_should() -> None:
    uniform = dice().uniform(20_000, low=2.0, high=4.0)
    assert uniform.min() >= 2
    assert uniform.max() < 4
    assert float(uniform.mean()) == pytest.approx(3.0, abs=0.02)
    normal = dice(1).normal(50_000)
    assert float(normal.mean()) == pytest.approx(0, abs=0.02)
    assert float(normal.std()) == pytest.approx(1, abs=0.02)
    counts = torch.bincount(dice(2).choose(40_000, weights=[1.0, 0.0, 3.0]), minlength=3)
    assert counts.tolist()[1] == 0
    assert float(counts[2] / counts[0]) == pytest.approx(3, abs=0.15)
    logs = dice(3).log_uniform(20_000, low=0.01, high=1.0).log10()
    assert float(logs.mean()) == pytest.approx(-1, abs=0.03)


def test_the_same_seed_makes_the_same_tables_on_any_machine() -> None:
    tables = draw_tables(dice(7), 2, 64, 3)
    assert torch.equal(tables, draw_tables(dice(7), 2, 64, 3))
    assert not torch.equal(tables, draw_tables(dice(8), 2, 64, 3))
    # Written down once: another machine must find the same numbers, to rounding.
    seen = [round(float(value), 3) for value in tables[0, :4, 0]]
    assert seen == pytest.approx(FIRST_CELLS, abs=5e-3)


FIRST_CELLS = [-0.559, -0.506, -0.506, -0.491]


def test_tables_are_standardized_finite_and_never_flat() -> None:
    tables = draw_tables(dice(1), 40, 128, 5)
    assert torch.isfinite(tables).all()
    assert tables.mean(1).abs().max() < 0.5
    assert (tables.std(1) > 0.3).all()


def test_some_tables_hang_together_and_some_do_not() -> None:
    tables = draw_tables(dice(2), 60, 256, 4).numpy()
    tie = [np.abs(np.corrcoef(table.T)[np.triu_indices(4, 1)]).mean() for table in tables]
    assert np.quantile(tie, 0.9) > 0.6
    assert np.quantile(tie, 0.1) < 0.25


def test_colored_noise_has_spectra_from_white_to_steep() -> None:
    noise = signals.colored_noise(dice(3), 200, 512)
    power = torch.fft.rfft(noise).abs() ** 2
    low, high = power[:, 1:20].mean(1), power[:, -100:].mean(1)
    ratio = (low / high).log10()
    assert float(ratio.min()) < 0.5
    assert float(ratio.max()) > 3


def test_seasons_repeat() -> None:
    found = signals.unit_size(signals.seasons(dice(4), 60, 720))
    power = torch.fft.rfft(found).abs() ** 2
    # Most of the power sits in a handful of lines.
    top = power.sort(dim=1, descending=True).values[:, :12].sum(1) / power.sum(1)
    assert float(top.median()) > 0.7


def test_bursts_are_mostly_quiet_and_levels_mostly_constant() -> None:
    bursts = signals.bursts(dice(5), 50, 256)
    assert (bursts >= -1e-4).all()
    assert float((bursts < 0.05).float().mean()) > 0.4
    levels = signals.levels(dice(6), 50, 256)
    assert float((levels.diff() == 0).float().mean()) > 0.8
    switches = signals.switches(dice(7), 50, 256)
    assert set(switches.unique().tolist()) == {0.0, 1.0}


def test_gaps_come_in_every_way_and_leave_something_to_see() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn((600, 48, 5), generator=generator)
    hidden = draw_gaps(values, generator)
    share = hidden.float().mean((1, 2))
    assert float(share.max()) < 1
    assert float(share.quantile(0.95)) > 0.8
    assert float(share.quantile(0.1)) < 0.15
    whole = hidden.all(1)
    assert whole.any()
    assert not whole.all(1).all()
    rows = hidden.all(2).any(1)
    assert rows.any()
    # Where high values are lost, what is left is lower.
    assert float(values[hidden].mean()) > float(values[~hidden].mean())


def test_windows_bring_the_relations_of_their_table() -> None:
    shape = Shape(5, 16, 3)
    pool = Pool.draw(0, 4, shape, CPU)
    values, relations = pool.windows(shape, torch.Generator().manual_seed(0))
    assert values.shape == (5, 16, 3)
    assert relations.level_VV.shape == relations.change_VV.shape == (5, 3, 3)
    assert torch.linalg.eigvalsh(relations.level_VV.double()).min() > -1e-5
    other = Pool.draw(1, 4, shape, CPU)
    place = pool.tables_SLV.data_ptr()
    pool.replace(other)
    assert torch.equal(pool.tables_SLV, other.tables_SLV)
    assert pool.tables_SLV.data_ptr() == place


def test_a_run_of_school_learns_and_can_be_cut_in_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(school, "SHAPES", SMALL)
    monkeypatch.setattr(run, "SHAPES", SMALL)
    monkeypatch.setattr(run, "School", lambda device, seed: School(device, seed, SMALL, tables=4))
    tiny = preset("zero-mini").change(width=32, num_heads=2, num_layers=1)
    monkeypatch.setattr(run, "preset", lambda name: tiny)

    def train(folder: Path, seconds: float) -> bool:
        return run.pretrain(
            "zero-mini",
            folder,
            steps=6,
            seed=0,
            device=CPU,
            checkpoint=tmp_path / "checkpoint",
            max_seconds=seconds,
            log=said.append,
        )

    said: list[str] = []
    assert not train(tmp_path / "weights", 0.0)
    assert not (tmp_path / "weights").exists()
    assert train(tmp_path / "weights", 60.0)
    assert said
    assert "error / linear" in said[0]
    monkeypatch.setattr("mdtim.pretrained.FOLDER", tmp_path)
    (tmp_path / "weights").rename(tmp_path / "zero-mini")
    assert card("zero-mini")["steps"] == 6
    with pytest.raises(ValueError, match="cannot be pretrained"):
        run.pretrain(
            "small",
            tmp_path,
            steps=1,
            seed=0,
            device=CPU,
            checkpoint=tmp_path / "c",
            max_seconds=1,
            log=said.append,
        )


def test_lessons_depend_on_nothing_but_seed_and_step() -> None:
    config = preset("zero-mini").change(width=32, num_heads=2, num_layers=1, max_steps=4)
    losses = []
    for _ in range(2):
        network = new_network(config, 1, 0)
        trainer = Trainer(network, config, School(CPU, 3, SMALL, tables=4), 0)
        network.train()
        losses.append([float(trainer._step(0.5)) for _ in range(2)])
    assert losses[0] == losses[1]


@pytest.mark.gpu
@needs_cuda
def test_lessons_of_several_shapes_are_replayed_as_they_are_launched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(school, "RENEWED_EVERY", 2)
    config = preset("zero-mini").change(width=32, num_heads=2, num_layers=1, max_steps=24)
    runs = []
    for replayed in (False, True):
        network = new_network(config, 1, 0).cuda().train()
        lessons = School(torch.device("cuda"), 3, SMALL, tables=4)
        trainer = Trainer(network, config, lessons, 0, replay_steps=replayed)
        with trainer.stream():
            losses = []
            for _ in range(24):
                losses.append(float(trainer._step(0.5)))
                trainer.progress.step += 1
            assert not replayed or (trainer.replays and trainer.replays.graphs)
        runs.append((losses, list(network.parameters())))
    assert runs[1][0] == pytest.approx(runs[0][0], rel=1e-3)
    for one, two in zip(runs[0][1], runs[1][1], strict=True):
        torch.testing.assert_close(one, two, rtol=1e-2, atol=1e-4)
