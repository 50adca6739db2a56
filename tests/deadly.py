"""Work that kills its worker; a module of its own, which a worker loads in a moment."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


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
