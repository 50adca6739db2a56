from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from conftest import tiny_config
from mdtim.bench import environment, load, speed, table
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


@pytest.mark.filterwarnings("ignore::mdtim.model.ImputationWarning")
def test_load_counts_what_clients_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With workers that only pretend, in a server of this process."""
    from service_cases import running, stub_settings

    monkeypatch.setattr(load, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(load, "MODEL", "pumps")
    (tmp_path / "models" / "pumps").mkdir(parents=True)
    (tmp_path / "models" / "pumps" / "config.json").write_text('{"kind": "imputer"}')
    settings = stub_settings(tmp_path / "jobs", models=tmp_path / "models", max_kept=2)
    counts = load._Counts()
    with running(settings) as client:
        port = client.base_url.port
        assert port is not None
        load._job(port, b"die", counts)
        with pytest.raises(AssertionError, match="cut short"):
            load._job(port, b"ok", counts)
        monkeypatch.setattr(load.time, "sleep", lambda seconds: None)
        load._job(port, b"ok", counts)
    load._job(port, b"ok", counts)
    seen = (counts.accepted, counts.failed, counts.refused, counts.server_errors)
    assert seen == (2, 1, 1, 1)
    assert len(counts.uploads) == 2


def test_tables_of_the_load_test_have_their_size_and_gaps() -> None:
    header, *rows = load._csv(1).decode().splitlines()
    assert len(rows) == load.ROWS
    assert header.count(",") == load.COLUMNS - 1
    missing = sum(row.split(",").count("") for row in rows)
    assert missing == pytest.approx(0.1 * load.ROWS * load.COLUMNS, rel=0.2)
    assert load._csv(1) == load._csv(1) != load._csv(2)
