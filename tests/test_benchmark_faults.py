"""What stands in the way of an experiment is said before it begins, and is no result."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mdtim.bench.section import read_rows
from mdtim.benchmark import runner
from mdtim.benchmark.experiments import Cell
from mdtim.benchmark.rows import append
from mdtim.benchmark.runner import _row, run_cells
from mdtim.cli import app
from mdtim.datasets import Dataset
from test_benchmark import CPU, cells, tiny_dataset


def test_faults_of_the_surroundings_are_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(name: str, window: int) -> Dataset:
        raise ValueError("weather.csv is not here")

    path, quiet = tmp_path / "r.csv", {"log": lambda line: None}
    monkeypatch.setattr(runner, "load", lost)
    with pytest.raises(ValueError, match="is not here"):
        run_cells(cells(1), path, tmp_path / "runs", CPU, **quiet)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"models cannot be kept in .*file"):
        run_cells(cells(1), path, tmp_path / "file", CPU, **quiet)
    for minutes in (0.0, -5.0, float("nan")):
        with pytest.raises(ValueError, match="max_minutes must be above 0"):
            run_cells(cells(1), path, tmp_path / "runs", CPU, max_minutes=minutes, **quiet)
    assert not path.exists()
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="has other columns than experiment"):
        run_cells(cells(1), path, tmp_path / "runs", CPU, **quiet)


def test_a_kept_system_that_cannot_be_read_is_told_and_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "load", tiny_dataset)
    preset = "default+max_epochs=1+num_channels=8+num_layers=1+num_heads=2+num_samples=1"
    preset += "+num_diffusion_steps=2"
    cell = Cell("main", "etth", 12, "uniform", 0.3, 0, 0, "fgti", preset)
    path, runs = tmp_path / "r.csv", tmp_path / "runs"
    assert run_cells([cell, cell], path, runs, CPU, log=lambda line: None)
    assert len(read_rows(path)) == 1, "a cell that is named twice is run once"
    (config,) = runs.glob("*/config.json")
    config.write_text(config.read_text().replace("train_seconds", "seconds"))
    with pytest.raises(ValueError, match=r"fgti kept in .* cannot be used"):
        run_cells([cell], tmp_path / "other.csv", runs, CPU, log=lambda line: None)
    assert not (tmp_path / "other.csv").exists()


def test_rows_are_whole_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    for cell in cells(2):
        append(path, _row(cell, CPU))
    path.write_text(path.read_text().removesuffix("\n"), encoding="utf-8-sig")
    append(path, _row(cells(3)[2], CPU))
    assert [row["rate"] for row in read_rows(path)] == ["0.3", "0.5", "0.3"]
    path.write_text(path.read_text(encoding="utf-8-sig")[:-40])
    with pytest.raises(ValueError, match=r"line 4 of .* cells, not .* remove it"):
        append(path, _row(cells(1)[0], CPU))
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"r\.csv is not a text file of results"):
        read_rows(path)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--preset", "nope"], "has no preset 'nope'; it has base"),
        (["--methods", "mdtim-foo"], "unknown method 'mdtim-foo'; of mdtim there are mdtim,"),
        (["--methods", "saits", "--settings", "default+max_minutes"], "no value that can be read"),
        (["--methods", "saits", "--settings", "default+max_minutes=0"], "must be above 0"),
        (["--methods", "saits", "--settings", "default+n_layers=2.5"], "not of the kind of 3"),
        (["--methods", "csdi", "--settings", "default+num_samples=null"], "not of the kind of 10"),
        (["--methods", "mdtim-argmax", "--settings", "base+num_bins=abc"], "cannot be"),
        (["--methods", "mdtim-argmax", "--settings", "base+foo"], "no value that can be read"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_sentence(
    arguments: list[str], says: str, tmp_path: Path
) -> None:
    common = ["benchmark", "run", "--experiment", "main", "--dataset", "sine", "--device", "cpu"]
    places = ["--results", str(tmp_path / "r.csv"), "--runs", str(tmp_path / "runs")]
    done = CliRunner().invoke(app, [*common, *arguments, *places])
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())
    assert not (tmp_path / "r.csv").exists()
