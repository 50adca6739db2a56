"""A worker as the service sees it: started, given one task at a time, killed when need be."""

from __future__ import annotations

import asyncio
import logging
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from typing import Literal

from mdtim.service.protocol import MESSAGE, Done, Failed, Progress, Ready, Task
from mdtim.service.settings import Limits

logger = logging.getLogger("mdtim.service")
Listener = Callable[[Progress], None]
START_SECONDS = 120.0
END_SECONDS = 5.0
_MAX_LINE = 2**24
"""Bytes of the longest answer: the description of a table of many columns."""


class WorkerError(Exception):
    """A worker did not start."""


class WorkerProcess:
    """One process, which may die at any time; the next task then starts another one."""

    def __init__(
        self, command: tuple[str, ...], kind: Literal["fill", "read"], limits: Limits, threads: int
    ) -> None:
        numbers = (limits.memory_bytes, limits.result_bytes, threads)
        self._command = (*command, kind, *map(str, numbers))
        self._process: Process | None = None
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        alive = self._process is not None and self._process.returncode is None
        return self._process.pid if alive and self._process is not None else None

    async def start(self) -> None:
        """Start the process if it does not run, and wait until it is ready.

        Raises
        ------
        WorkerError
        """
        if self.pid is not None:
            return
        self.starts += 1
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=PIPE,
                stdout=PIPE,
                limit=_MAX_LINE,
                start_new_session=True,  # Ctrl+C is for the service, which ends its workers
            )
            async with asyncio.timeout(START_SECONDS):
                answer = await self._receive(None)
        except (OSError, TimeoutError) as error:
            await self.stop()
            raise WorkerError(f"a worker did not start ({error})") from error
        if isinstance(answer, Failed):
            raise WorkerError(f"a worker did not start: {answer.sentence}")

    async def perform(self, task: Task, seconds: float, listen: Listener) -> Done | Failed:
        """Do a task within a time limit; the end of the process is an answer too."""
        try:
            await self.start()
            async with asyncio.timeout(seconds):
                self._send(task)
                answer = await self._receive(listen)
                assert not isinstance(answer, Ready)
                return answer
        except WorkerError as error:
            return Failed(reason="crash", sentence=str(error))
        except TimeoutError:
            await self.stop()
            return Failed(
                reason="time",
                sentence=f"not done within the time limit of {seconds:g} s; fill fewer rows or "
                "columns, or allow less time to adapt",
            )
        except BaseException:
            await self.stop()  # an unfinished task must not answer the next one
            raise

    async def stop(self) -> None:
        """Kill the process, whatever it does."""
        self.kill()
        process = self._process
        if process is None:
            return
        try:
            async with asyncio.timeout(END_SECONDS):
                await process.wait()
        except TimeoutError:
            # asyncio waits for the pipes too, and what the process left behind may hold them.
            try:
                async with asyncio.timeout(END_SECONDS):
                    while process.returncode is None:
                        await asyncio.sleep(0.1)
            except TimeoutError:
                logger.error("the end of killed process %d was never told", process.pid)
                self._process = None  # a service must end, and the next task start another one

    def kill(self) -> None:
        """Kill the process without waiting: a task in progress gets its answer."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def _send(self, task: Task) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(task.model_dump_json().encode() + b"\n")

    async def _receive(self, listen: Listener | None) -> Ready | Done | Failed:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        while True:
            try:
                if not (line := await process.stdout.readline()):
                    break
                message = MESSAGE.validate_json(line)
            except ValueError:  # a line beyond the limit, no message of ours, or one cut short
                self.kill()
                break
            if not isinstance(message, Progress):
                return message
            if listen is not None:
                listen(message)
        try:
            # Its output has ended, so will it. A signal to a process that has just ended would
            # take its exit code away from under asyncio.
            async with asyncio.timeout(END_SECONDS):
                await process.wait()
        except TimeoutError:
            await self.stop()
        return Failed(reason="crash", sentence=_how_it_ended(process.returncode))


def _how_it_ended(code: int | None) -> str:
    if code is None:
        cause = "killed"
    else:
        cause = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
    hint = ", perhaps for want of memory" if cause == "signal SIGKILL" else ""
    return (
        f"the process that worked on this table ended unexpectedly ({cause}{hint}); "
        "other jobs are not affected, send this one again"
    )
