from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from conftest import tiny_config
from gpu_cases import needs_cuda
from mdtim.bench import environment, kernels, speed, table
from mdtim.cli import app


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "preset", lambda name: tiny_config())
    monkeypatch.setattr(speed, "matmul_rate", lambda device: 1.0)


def test_arithmetic_is_counted_as_multiply_adds_times_two() -> None:
    config = tiny_config(num_layers=1, width=16, embedding_width=8)
    linear = 2 * 16 * 16 * (4 + 8) * 2
    attention = 4 * 16 * (10 + 3)
    ends = 2 * 16 * (8 + 16 + 60)
    assert speed.network_flops(config, 10, 3) == 30 * (linear + attention + ends)


def test_training_and_imputing_are_measured() -> None:
    cpu = torch.device("cpu")
    step = speed.measure_training("case", "small", 12, 2, 4, "eager", cpu, 1.0, repeats=2)
    fill = speed.measure_imputing("case", "small", 12, 2, 5, 3, "eager", cpu, 1.0, repeats=2)
    for row in (step, fill):
        assert row.milliseconds > 0
        assert row.device.startswith("CPU")
        assert "torch" in row.versions
    assert fill.draws == 3
    assert json.dumps(asdict(step))


def test_lengths_and_widths_are_swept_over_about_as_many_cells() -> None:
    rows = list(speed.run_sweep(torch.device("cpu"), 1.0, (8, 32), (1, 2), num_cells=512))
    assert [row.case for row in rows] == [
        *("window length 8", "window length 32"),
        *("variates 1", "variates 2"),
    ]
    for row in rows:
        assert 256 < row.window * row.variates * row.batch <= 512


def test_the_steps_of_a_block_do_its_arithmetic_three_times() -> None:
    shape = kernels.BlockShape(2, 12, 3, width=32, num_heads=2)
    steps = list(kernels.block_steps(shape, torch.device("cpu"), torch.float32))
    others = [step for step in steps if not step.name.startswith("attention")]
    assert sum(step.flops for step in others) == 3 * shape.num_rows * 2 * 32**2 * (4 + 2 * 4)
    forward = sum(
        step.flops
        for step in steps
        if step.name in ("attention over time", "attention over variates")
    )
    assert forward == shape.num_rows * 4 * 32 * (12 + 3)
    assert all(step.traffic >= 2 for step in steps)


@pytest.mark.gpu
@needs_cuda
def test_the_steps_of_a_block_are_measured_on_a_gpu() -> None:
    shape, device = kernels.BlockShape(2, 12, 3, width=32, num_heads=2), torch.device("cuda")
    rows = list(kernels.measure("case", shape, device, 4_000.0, 700.0))
    assert all(row.microseconds > 0 for row in rows)
    assert rows[-1].kernel == "layer of two blocks"


def test_the_command_prints_and_keeps_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    row = speed.measure_training("case", "small", 12, 2, 4, "eager", cpu, 1.0, repeats=1)
    monkeypatch.setattr(speed, "run_speed", lambda device: [row])
    output = tmp_path / "speed.csv"
    result = CliRunner().invoke(app, ["bench", "speed", "--output", str(output), "--json"])
    assert json.loads(result.stdout)[0]["case"] == "case"
    assert CliRunner().invoke(app, ["bench", "speed", "--output", str(output)]).exit_code == 0
    assert len(output.read_text().splitlines()) == 3


def test_filling_a_table_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mdtim.imputer.preset", lambda name: tiny_config())
    row = table.measure(1_000)
    assert row.seconds > 0
    assert row.missing == pytest.approx(0.3 * 7_000, rel=0.1)
    assert row.peak_memory_gb > 0


def test_a_commit_is_named_where_there_is_one() -> None:
    assert isinstance(environment.commit(), str)
