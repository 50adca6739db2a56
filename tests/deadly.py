"""Work that kills its worker; a module of its own, which a worker loads in a moment."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from mdtim.batch.engine import run_all
from mdtim.batch.engine_local import LocalPool


class KillOnce:
    """Work that dies in the middle of writing one part, the first time."""

    def __init__(self, inner: Any, name: str, marker: Path) -> None:
        self.inner, self.name, self.marker = inner, name, marker

    def __call__(self, task: Any) -> Any:
        if task.part.name == self.name and not self.marker.exists():
            self.marker.touch()
            pq.ParquetWriter.write_table = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        return self.inner(task)


def die(task: int) -> int:
    if task == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if task == 3:
        raise ValueError("three is wrong")
    return 10 * task


def wait_long(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(300)


if __name__ == "__main__":  # a run that will be killed, with a worker at work
    list(run_all(LocalPool(1), wait_long, sys.argv[1:]))
