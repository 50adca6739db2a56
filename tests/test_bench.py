from __future__ import annotations

import json
import re
import warnings
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from conftest import tiny_config
from gpu_cases import needs_cuda
from mdtim.bench import (
    environment,
    file,
    file_page,
    kernels,
    load,
    report,
    scale,
    scale_page,
    service_page,
    speed,
    speed_page,
    table,
)
from mdtim.bench.section import append_rows
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
    row = table.measure(1_000, "small", 7, 0.3)
    assert row.seconds > 0
    assert row.missing == pytest.approx(0.3 * 7_000, rel=0.1)
    assert row.peak_memory_gb > 0


def test_a_commit_is_named_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MDTIM_COMMIT", raising=False)
    there = (Path(__file__).parents[1] / ".git").exists()
    assert re.fullmatch(r"[0-9a-f]{12,}(-dirty)?" if there else "", environment.commit())


def test_a_tree_that_travels_says_its_commit_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDTIM_COMMIT", "abc")
    assert environment.commit() == "abc"


@pytest.mark.filterwarnings("ignore::mdtim.doubts.ImputationWarning")
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
        load._job(port, b"ok", counts)  # a result that is cut short
        monkeypatch.setattr(load.time, "sleep", lambda seconds: None)
        load._job(port, b"ok", counts)
    load._job(port, b"ok", counts)
    seen = (counts.accepted, counts.failed, counts.refused, counts.server_errors)
    assert seen == (2, 2, 1, 1)
    assert len(counts.uploads) == 2


def test_the_report_of_a_table_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = report.run_report(300, 2)
    assert (row.rows, row.columns) == (300, 2)
    assert 0 < row.gaps <= row.missing < 600
    assert 1 < row.megabytes < 3  # Bokeh's script alone is more than one
    assert "bokeh" in row.versions
    monkeypatch.setattr(report, "run_report", lambda: row)
    output = tmp_path / "report.csv"
    result = CliRunner().invoke(app, ["bench", "report", "--output", str(output), "--json"])
    assert json.loads(result.stdout)[0]["megabytes"] == row.megabytes
    assert len(output.read_text().splitlines()) == 2


def test_tables_of_the_load_test_have_their_size_and_gaps() -> None:
    header, *rows = load._csv(1).decode().splitlines()
    assert len(rows) == load.ROWS
    assert header.count(",") == load.COLUMNS - 1
    missing = sum(row.split(",").count("") for row in rows)
    assert missing == pytest.approx(0.1 * load.ROWS * load.COLUMNS, rel=0.2)
    assert load._csv(1) == load._csv(1) != load._csv(2)


def test_a_data_set_in_parts_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mdtim.batch.engine import Inline

    monkeypatch.setattr("mdtim.batch.engine.Pooled", lambda pool: Inline())  # no processes here
    one, two = scale.run_scale(rows=600, variates=2, parts=3, folder=tmp_path / "scale")
    assert (one.workers, two.workers) == (1, 2)
    assert one.speedup == 1
    assert two.speedup == pytest.approx(two.rows_per_second / one.rows_per_second, abs=0.01)
    assert one.last_memory_gb >= one.first_memory_gb > 0
    filled = [
        sorted((tmp_path / "scale" / f"filled-by-{count}").glob("*.parquet")) for count in (1, 2)
    ]
    assert [path.read_bytes() for path in filled[0]] == [path.read_bytes() for path in filled[1]]
    assert len(filled[0]) == 3


def test_the_measured_section_of_the_page_is_that_of_the_results(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    page = tmp_path / "scale.md"
    page.write_text((root / "docs" / "scale.md").read_text())
    scale_page.update(page, root / "results" / "scale.csv")
    assert page.read_text() == (root / "docs" / "scale.md").read_text()
    page.write_text("nothing")
    with pytest.raises(ValueError, match="no section to render"):
        scale_page.update(page, root / "results" / "scale.csv")


def test_the_measured_section_of_the_speed_is_that_of_the_results(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    page = tmp_path / "speed.md"
    page.write_text((root / "docs" / "speed.md").read_text())
    speed_page.update(page, root / "results")
    assert page.read_text() == (root / "docs" / "speed.md").read_text()


def test_the_rendered_sections_of_the_pretrained_networks_are_those_of_the_results(
    tmp_path: Path,
) -> None:
    root = Path(__file__).parents[1]
    readme, page = tmp_path / "README.md", tmp_path / "pretrained.md"
    readme.write_text((root / "README.md").read_text())
    page.write_text((root / "docs" / "pretrained.md").read_text())
    file_page.update(readme, page, root / "results" / "file.csv")
    assert readme.read_text() == (root / "README.md").read_text()
    assert page.read_text() == (root / "docs" / "pretrained.md").read_text()


def test_the_measured_sections_of_the_service_are_those_of_the_results(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    page = tmp_path / "service.md"
    page.write_text((root / "docs" / "service.md").read_text())
    service_page.update(page, root / "results" / "load.csv", root / "results" / "report.csv")
    assert page.read_text() == (root / "docs" / "service.md").read_text()


def test_a_file_is_filled_and_scored_beside_interpolation(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = np.arange(400)[:, None]
    waves = np.sin(steps / [5.0, 7.0]) + 0.01 * np.random.default_rng(0).normal(size=(400, 2))
    monkeypatch.setattr(file, "load", lambda name: SimpleNamespace(values=waves))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in ("random", "blocks"):
            mine, straight = file.run_file(
                case, "zero-mini", adapt=False, device="cpu", minutes=1.0
            )
            assert (mine.case, mine.steps, straight.method) == (case, 0, "linear")
            assert mine.mae > 0
            assert mine.cover90 is not None
            assert straight.cover90 is None
    with pytest.raises(ValueError, match="unknown case"):
        file.run_file("stripes", "zero-mini", adapt=False, device="cpu", minutes=1.0)


def test_blocks_reach_their_share_in_every_variate() -> None:
    hidden = file.hidden_blocks((5_000, 3), np.random.default_rng(0))
    assert (hidden.mean(0) >= 0.3).all()
    assert (hidden.mean(0) < 0.33).all()


def test_hours_follow_from_cells_and_speed(tmp_path: Path) -> None:
    path = tmp_path / "scale.csv"
    row = {
        **{"rows": 100, "variates": 10, "parts": 1, "size": "small", "device": "CPU, 1 thread"},
        **{"workers": 1, "rows_per_second": 500, "rows_per_cpu_second": 1000, "speedup": 1},
        **{"first_memory_gb": 1, "last_memory_gb": 1, "load": 1, "cores": 2, "commit": "c"},
    }
    path.write_text(",".join(row) + "\n" + ",".join(f'"{value}"' for value in row.values()) + "\n")
    assert "10^9 / 10 / 1,000 / 3600 = 27.8 hours of one core" in scale_page.render(path)


def test_rows_are_not_put_under_the_names_of_others(tmp_path: Path) -> None:
    path = tmp_path / "results" / "rows.csv"
    append_rows(path, [{"a": 1, "b": 2}])
    append_rows(path, [{"a": 3, "b": 4}])
    assert path.read_text() == "a,b\n1,2\n3,4\n"
    with pytest.raises(ValueError, match="has other columns than a, c"):
        append_rows(path, [{"a": 5, "c": 6}])
    assert path.read_text().count("\n") == 3
