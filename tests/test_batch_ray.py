from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batch_cases import Case, read_parts, same, write_parts
from mdtim.batch import work
from mdtim.batch.engine import run_all
from mdtim.batch.engine_ray import RayPool, ray_pool
from mdtim.cli import app

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own, about sockets and versions


@pytest.fixture(scope="module")
def pool() -> Iterator[RayPool]:
    """One cluster for all tests."""
    paths = os.pathsep.join([str(Path(work.__file__).parents[2]), str(Path(__file__).parent)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", paths)
        with ray_pool(None, 2, "cpu") as pool:
            yield pool


def test_a_cluster_gives_the_cells_of_one_process(
    case: Case, tmp_path: Path, pool: RayPool
) -> None:
    write_parts(case.frame, tmp_path / "source")
    arguments = [
        *("batch", str(tmp_path / "source"), "-o", str(tmp_path / "target")),
        *("--engine", "ray", "--workers", str(pool.size), "--model", str(case.model)),
        *("--time", "time", "--id", "sensor", "--quantiles", "0.1,0.9", "--device", "cpu"),
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "4 parts filled" in result.stdout
    same(read_parts(tmp_path / "target"), case.expected)
    assert ray.is_initialized()  # a cluster that was there before is left alone


def test_a_killed_actor_is_replaced_and_a_deadly_task_given_up(pool: RayPool) -> None:
    from deadly import die

    outcomes = {outcome.task: outcome for outcome in run_all(pool, die, [1, 2, 3, 4])}
    assert [outcomes[task].result for task in (1, 4)] == [10, 40]
    assert "3 workers died" in str(outcomes[2].error)
    assert outcomes[3].error == "three is wrong"


def test_a_cluster_without_the_device_is_refused(pool: RayPool) -> None:
    with pytest.raises(ValueError, match="no GPU"), ray_pool(None, 1, "cuda"):
        pass
