"""One of two processes that train together; started by test_distributed.py.

Usage: rank.py FOLDER, with the environment that torchrun sets. Each scenario runs on both.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

import torch

from conftest import tiny_config
from mdtim.learning.distributed import RankLost, Ranks, joined_ranks
from mdtim.learning.training import Progress
from training_cases import trainer

SETTINGS = {"dropout": 0.0, "max_steps": 8, "validate_every": 2, "batch_size": 7}


def together(folder: Path) -> None:
    """Train from the beginning, with a checkpoint half-way."""
    run = trainer(tiny_config(**SETTINGS))
    run.run(checkpoint=folder / "by-two", checkpoint_every=5)
    if run.ranks.is_first:
        torch.save(run.network.state_dict(), folder / "together.pt")
        history = [(record.loss, record.validation_mae) for record in run.progress.history]
        (folder / "together.json").write_text(json.dumps(history))


def resumed(folder: Path) -> None:
    """Go on from a checkpoint that one process has written."""
    run = trainer(tiny_config(**SETTINGS))
    run.resume(folder / "by-one")
    run.run()
    if run.ranks.is_first:
        torch.save(run.network.state_dict(), folder / "resumed.pt")


def command(folder: Path) -> None:
    """Fit through the command line; the first rank writes."""
    from mdtim.cli import app

    arguments = ["fit", str(folder / "table.csv"), "-o", str(folder / "model"), "--quiet"]
    app([*arguments, "--window", "8", "--max-steps", "2"], standalone_mode=False)


def lost(folder: Path) -> None:
    """The second rank dies after three steps."""
    run = trainer(tiny_config(**SETTINGS | {"max_steps": 1_000, "validate_every": 1_000}))

    def die(progress: Progress, share: float) -> None:
        if progress.step == 3 and not run.ranks.is_first:
            os._exit(9)

    try:
        run.run(on_step=die, checkpoint=folder / "lost", checkpoint_every=1_000)
    except RankLost as loss:
        (folder / "lost.txt").write_text(str(loss))


def main() -> None:
    folder = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with joined_ranks("cpu") as (ranks, _):
        assert ranks == Ranks(int(os.environ["RANK"]), 2)
        together(folder)
        resumed(folder)
    os.environ["MASTER_PORT"] = os.environ["SECOND_PORT"]
    command(folder)
    os.environ["MASTER_PORT"] = os.environ["THIRD_PORT"]
    with joined_ranks("cpu"):
        lost(folder)


if __name__ == "__main__":
    main()
