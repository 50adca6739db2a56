from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import tiny_config, waves
from mdtim.imputer import MDTIMImputer
from mdtim.learning import distributed
from mdtim.learning.distributed import RankLost, Ranks
from mdtim.learning.training import Progress
from rank import SETTINGS
from training_cases import trainer

HERE = Path(__file__).parent


def free_ports(count: int) -> list[str]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [str(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def interrupt_at(step: int):
    def stop(progress: Progress, share: float) -> None:
        if progress.step == step:
            raise KeyboardInterrupt

    return stop


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks, run through all scenarios once."""
    folder = tmp_path_factory.mktemp("ranks")
    np.savetxt(folder / "table.csv", waves(80, 2), delimiter=",", header="x,y", comments="")
    one = trainer(tiny_config(**SETTINGS))
    assert one.run(on_step=interrupt_at(5), checkpoint=folder / "by-one") == "interrupted"
    first, second, third = free_ports(3)
    paths = os.pathsep.join([str(Path(distributed.__file__).parents[1]), str(HERE)])
    ranks = []
    for rank in range(2):
        environment = {
            **os.environ,
            **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": first, "SECOND_PORT": second},
            **{"THIRD_PORT": third, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        }
        ranks.append(
            subprocess.Popen(
                [sys.executable, str(HERE / "rank.py"), str(folder)],
                env=environment,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    errors = [rank.communicate(timeout=300)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 9], errors
    return folder


@pytest.fixture(scope="module")
def alone() -> tuple[list[tuple[float, float]], dict[str, torch.Tensor]]:
    run = trainer(tiny_config(**SETTINGS))
    run.run()
    history = [(record.loss, record.validation_mae) for record in run.progress.history]
    return history, run.network.state_dict()


def close(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-4, atol=1e-5)


def test_two_ranks_learn_what_one_does(folder: Path, alone) -> None:
    history = json.loads((folder / "together.json").read_text())
    np.testing.assert_allclose(history, alone[0], rtol=1e-4)
    close(alone[1], torch.load(folder / "together.pt", weights_only=True))


def test_a_run_saved_by_two_ranks_goes_on_with_one(folder: Path, alone) -> None:
    run = trainer(tiny_config(**SETTINGS))
    run.resume(folder / "by-two")
    assert run.progress.step == 5
    run.run()
    close(alone[1], run.network.state_dict())


def test_a_run_saved_by_one_rank_goes_on_with_two(folder: Path, alone) -> None:
    close(alone[1], torch.load(folder / "resumed.pt", weights_only=True))


def test_the_command_joins_the_ranks_and_the_first_writes(folder: Path) -> None:
    imputer = MDTIMImputer.load(folder / "model", device="cpu")
    assert imputer.report_.steps == 2


def test_a_lost_rank_ends_the_run_with_a_checkpoint(folder: Path) -> None:
    said = (folder / "lost.txt").read_text()
    assert "training ended after step 3" in said
    assert str(folder / "lost") in said
    run = trainer(tiny_config(**SETTINGS | {"max_steps": 1_000, "validate_every": 1_000}))
    run.resume(folder / "lost")
    assert run.progress.step == 3


def test_shares_are_disjoint_and_complete() -> None:
    for size, count in ((7, 2), (8, 3), (5, 5)):
        shares = [range(size)[Ranks(index, count).share(size)] for index in range(count)]
        assert [window for share in shares for window in share] == list(range(size))
        assert all(shares)
    with pytest.raises(ValueError, match="cannot be shared by 9 processes"):
        Ranks(0, 9).share(8)


def test_a_process_that_is_told_to_end_stops_before_its_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "_told_to_end", True)
    with pytest.raises(RankLost, match=r"after step 0: the launcher told .* name a folder"):
        trainer(tiny_config()).run()
    with pytest.raises(RankLost, match="run the same command again"):
        trainer(tiny_config()).run(checkpoint=tmp_path / "run")
    assert (tmp_path / "run" / "config.json").exists()
