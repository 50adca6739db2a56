"""Reruns, dead workers and killed runs of a batch: nothing lost, nothing twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from batch_cases import OPTIONS, Case, fill, read_parts, same
from deadly import KillOnce, die
from mdtim.batch import run_batch, work
from mdtim.batch.engine import Outcome, run_all
from mdtim.batch.engine_local import LocalPool
from mdtim.cli import app


def test_a_rerun_does_only_what_is_missing_or_changed(
    case: Case, source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    fill(source, target, case)
    assert fill(source, target, case).kept_parts == 4

    (target / "part-0.parquet").unlink()
    assert fill(source, target, case).filled_parts == 1

    path = source / "part-3.parquet"
    frame = pd.read_parquet(path)
    path.write_bytes(path.read_bytes())  # another date, the same content
    assert fill(source, target, case).filled_parts == 0

    frame["x"] = frame["x"] + 1
    frame.to_parquet(path, index=False)
    report = fill(source, target, case)
    # The changed part and those whose windows or interpolation reach into it.
    assert 2 <= report.filled_parts <= 3
    untouched = fill(source, tmp_path / "fresh", case)
    assert untouched.filled_parts == 4
    same(read_parts(target), read_parts(tmp_path / "fresh"))

    assert fill(source, target, case, levels=(0.5,)).filled_parts == 4


class KillingEngine:
    """A pool of one worker, which is killed when it fills a certain part."""

    def __init__(self, name: str, marker: Path) -> None:
        self.name, self.marker = name, marker

    def run(self, inner: Any, tasks: Sequence[Any]) -> Iterator[Outcome]:
        if isinstance(inner, work.Scanner):
            return (Outcome(task, inner(task)) for task in tasks)
        return run_all(LocalPool(1), KillOnce(inner, self.name, self.marker), tasks)


def test_a_killed_worker_is_replaced_and_its_part_done_again(
    case: Case, source: Path, tmp_path: Path
) -> None:
    engine: Any = KillingEngine("part-1.parquet", tmp_path / "killed")
    target = tmp_path / "target"
    report = run_batch(str(source), str(target), OPTIONS, model=case.model, engine=engine)
    assert (tmp_path / "killed").exists()
    assert (report.filled_parts, report.failures) == (4, {})
    same(read_parts(target), case.expected)


def test_work_that_always_kills_its_worker_is_given_up() -> None:
    outcomes = {outcome.task: outcome for outcome in run_all(LocalPool(2), die, [1, 2, 3, 4])}
    assert [outcomes[task].result for task in (1, 4)] == [10, 40]
    assert "3 workers died" in str(outcomes[2].error)
    assert outcomes[3].error == "three is wrong"


def test_a_worker_that_dies_idle_is_replaced() -> None:
    class Careless(LocalPool):
        def wait(self, tickets: Any) -> Any:
            ticket = super().wait(tickets)
            ticket.result()
            for process in (self.first._processes or {}).values():
                process.kill()
                process.join()
            while not self.first._broken:  # until the executor has noticed
                time.sleep(0.01)
            return ticket

        def start(self, work: Any) -> Any:
            worker = super().start(work)
            self.first = getattr(self, "first", worker)
            return worker

    outcomes = list(run_all(Careless(1), die, [1, 4, 5]))
    assert [outcome.result for outcome in outcomes] == [10, 40, 50]


def test_a_single_file_may_be_filled_beside_itself(
    case: Case, source: Path, tmp_path: Path
) -> None:
    single = source / "part-1.parquet"
    report = run_batch(str(single), str(source / "filled"), OPTIONS, model=case.model)
    assert (report.filled_parts, report.failures) == (1, {})
    with pytest.raises(ValueError, match="is the source or lies in it"):
        run_batch(str(single), str(source), OPTIONS, model=case.model)


def test_workers_end_with_a_killed_run(tmp_path: Path) -> None:
    note = tmp_path / "worker"
    script = [sys.executable, str(Path(__file__).with_name("deadly.py")), str(note)]
    run = subprocess.Popen(script, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    while run.poll() is None and not (note.exists() and note.read_text()):
        time.sleep(0.01)
    run.kill()
    run.wait()
    ended = time.monotonic() + 60
    while time.monotonic() < ended:
        status = Path(f"/proc/{note.read_text()}/status")
        if not status.exists() or "State:\tZ" in status.read_text():
            return
        time.sleep(0.05)
    pytest.fail("the worker outlives its run")


def test_a_killed_run_is_finished_by_the_next(case: Case, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    arguments = [
        *("batch", str(source), "-o", str(target), "--model", str(case.model)),
        *("--time", "time", "--id", "sensor", "--quantiles", "0.1,0.9", "--device", "cpu"),
    ]
    run = subprocess.Popen([sys.executable, "-m", "mdtim", *arguments], stderr=subprocess.DEVNULL)
    records = target / "_mdtim" / "parts"
    while run.poll() is None and not (records.is_dir() and any(records.iterdir())):
        time.sleep(0.002)
    run.kill()
    run.wait()
    done = {path.name for path in records.iterdir()}
    assert done
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["kept_parts"] == len(done)
    assert said["filled_parts"] == 4 - len(done)
    assert not any((target / "_mdtim" / "partial").iterdir())
    same(read_parts(target), case.expected)


def test_parts_that_the_source_has_no_more_are_named(
    case: Case, source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    assert not any("earlier run" in note for note in fill(source, target, case).notes)
    (source / "part-1.parquet").unlink()
    (note,) = [note for note in fill(source, target, case).notes if "earlier run" in note]
    assert "still holds part-1.parquet of an earlier run" in note
