"""The seam to whatever runs the work: a pool of workers, and one loop that feeds it.

A worker that dies takes only its task with it: it is replaced, and the task is done again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

MAX_ATTEMPTS = 3
"""A task that took so many workers with it is given up."""

Work = Callable[[Any], Any]
"""Task to result. Made once and sent to each worker, so it must be plain data."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of a task."""

    task: Any
    result: Any = None
    error: str | None = None
    """One sentence, if the task could not be done."""


class WorkerLost(Exception):
    """A worker died with its task."""


class Pool(Protocol):
    """Workers of an engine, each of which does one task at a time."""

    size: int

    def start(self, work: Work) -> Any:
        """Start a worker."""

    def submit(self, worker: Any, task: Any) -> Any:
        """Give a task to a worker; returns a ticket at once, or raises `WorkerLost`."""

    def wait(self, tickets: Sequence[Any]) -> Any:
        """Wait for any of the tickets and return it."""

    def outcome(self, ticket: Any, task: Any) -> Outcome:
        """What became of a ticket that was waited for; raises `WorkerLost`."""

    def stop(self, worker: Any) -> None:
        """Let go of a worker, dead or alive."""


def attempt(work: Work, task: Any) -> Outcome:
    """Do a task; what is wrong with its part becomes a sentence, a fault of ours an exception."""
    try:
        return Outcome(task, work(task))
    except (ValueError, OSError, pa.ArrowException) as error:
        return Outcome(task, error=str(error))


def run_all(pool: Pool, work: Work, tasks: Sequence[Any]) -> Iterator[Outcome]:
    """Yield what becomes of all tasks, as they end."""
    waiting = deque((task, 1) for task in tasks)
    idle: list[Any] = []
    busy: dict[Any, tuple[Any, Any, int]] = {}
    try:
        for _ in range(min(pool.size, len(tasks))):
            idle.append(pool.start(work))
        while waiting or busy:
            while waiting and idle:
                worker = idle.pop()
                task, attempts = waiting[0]
                try:
                    busy[pool.submit(worker, task)] = worker, task, attempts
                except WorkerLost:  # while it was idle: no task is to blame
                    pool.stop(worker)
                    idle.append(pool.start(work))
                else:
                    waiting.popleft()
            ticket = pool.wait(list(busy))
            worker, task, attempts = busy[ticket]
            try:
                outcome = pool.outcome(ticket, task)
            except WorkerLost as loss:
                pool.stop(worker)
                worker = pool.start(work)
                if attempts < MAX_ATTEMPTS:
                    waiting.append((task, attempts + 1))
                    outcome = None
                else:
                    outcome = Outcome(
                        task,
                        error=f"{attempts} workers died of it ({loss}); it may need more memory, "
                        "or smaller pieces",
                    )
            del busy[ticket]
            idle.append(worker)
            if outcome is not None:
                yield outcome
    finally:
        for worker in [*idle, *(worker for worker, _, _ in busy.values())]:
            pool.stop(worker)


class Inline:
    """The simplest engine: tasks one after the other, in this process."""

    def run(self, work: Work, tasks: Sequence[Any]) -> Iterator[Outcome]:
        """Yield what becomes of all tasks."""
        return (attempt(work, task) for task in tasks)


class Pooled:
    """An engine that feeds a pool of workers."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def run(self, work: Work, tasks: Sequence[Any]) -> Iterator[Outcome]:
        """Yield what becomes of all tasks, as they end."""
        return run_all(self.pool, work, tasks)


Engine = Inline | Pooled
