"""Workers as processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from mdtim.batch.engine import Outcome, Work, WorkerLost, attempt

_work: Work | None = None
"""What this process does, if it is a worker."""


def _begin(work: Work) -> None:
    global _work
    _work = work
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose run was killed would wait for its next task for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _do(task: Any) -> Outcome:
    assert _work is not None
    return attempt(_work, task)


class LocalPool:
    """One executor for each worker, so that a dead process is told from its neighbours."""

    def __init__(self, size: int) -> None:
        self.size = size

    def start(self, work: Work) -> ProcessPoolExecutor:
        """Start a worker; a fresh process, since PyTorch's threads do not survive a fork."""
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(1, context, initializer=_begin, initargs=(work,))

    def submit(self, worker: ProcessPoolExecutor, task: Any) -> Future[Outcome]:
        """Give a task to a worker."""
        try:
            return worker.submit(_do, task)
        except BrokenProcessPool as error:
            raise WorkerLost("the process ended abruptly") from error

    def wait(self, tickets: Sequence[Future[Outcome]]) -> Future[Outcome]:
        """Wait for any of the tickets."""
        return next(iter(wait(tickets, return_when=FIRST_COMPLETED).done))

    def outcome(self, ticket: Future[Outcome], task: Any) -> Outcome:
        """What became of a ticket."""
        try:
            # Without the task, which needs no way back.
            done = ticket.result()
        except BrokenProcessPool as error:
            raise WorkerLost("the process ended abruptly") from error
        return Outcome(task, done.result, done.error)

    def stop(self, worker: ProcessPoolExecutor) -> None:
        """Let go of a worker; one that is still at work ends with its task."""
        worker.shutdown(wait=True, cancel_futures=True)
