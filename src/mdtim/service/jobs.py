"""The queue of jobs and the workers that take from it; all of it runs in one event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from mdtim.service.bodies import Upload
from mdtim.service.metrics import Metrics
from mdtim.service.process import WorkerError, WorkerProcess
from mdtim.service.protocol import Done, Failed, Progress, Task
from mdtim.service.schemas import ADAPT_MINUTES, FillChoices, JobStatus
from mdtim.service.settings import ServiceSettings
from mdtim.service.store import GRACE_SECONDS, JobRecord, JobStore, now

logger = logging.getLogger("mdtim.service")
SWEEP_SECONDS = 30.0


class QueueFull(Exception):
    """No place is left; try again after `seconds`."""

    def __init__(self, sentence: str, seconds: int) -> None:
        super().__init__(sentence)
        self.seconds = seconds


@dataclass(eq=False)
class Job:
    """A job of this run of the service: its record, and what only matters while it lasts."""

    record: JobRecord
    keep_seconds: float
    share: float = 0.0
    text: str = "waiting"
    stage: tuple[float, float] | None = None
    """When the present stage of the work began, and the share that was done by then."""
    worker: WorkerProcess | None = None
    is_cancelled: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def seconds_left(self) -> float | None:
        """Estimate from the pace of the present stage."""
        if self.record.state != "running" or self.stage is None:
            return None
        began, since = self.stage
        done = self.share - since
        if done < 0.02:
            return None
        return round((time.monotonic() - began) * (1 - self.share) / done, 1)

    def listen(self, progress: Progress) -> None:
        """Note how far the work is."""
        if self.stage is None or self.stage[1] != progress.since:
            self.stage = (time.monotonic(), progress.since)
        self.share, self.text = progress.share, progress.text


class JobQueue:
    """Jobs in order of arrival, workers that do them, results until they expire."""

    def __init__(self, settings: ServiceSettings, store: JobStore, metrics: Metrics) -> None:
        self._settings = settings
        self._store = store
        self._metrics = metrics
        self._jobs: dict[str, Job] = {}
        self._waiting: deque[Job] = deque()
        self._arrived = asyncio.Condition()
        self._reserved = 0
        self._recent_seconds: deque[float] = deque(maxlen=20)
        threads = max(1, (os.cpu_count() or 1) // settings.workers)
        limits, command = settings.limits, settings.worker_command
        self.workers = [
            WorkerProcess(command, "fill", limits, threads) for _ in range(settings.workers)
        ]
        self._reader = WorkerProcess(command, "read", limits, 1)
        self._reader_turn = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        for record in store.load(3600 * settings.keep_hours):
            self._add(Job(record, keep_seconds=0.0)).ended.set()

    # -- running ----------------------------------------------------------------------------

    def start(self) -> None:
        """Start the workers; they get ready while the service already answers."""
        self._tasks = [asyncio.create_task(self._work(worker)) for worker in self.workers]
        self._tasks.append(asyncio.create_task(self._sweep()))

    async def stop(self) -> None:
        """End the workers; what is unfinished is marked as failed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in (*self.workers, self._reader):
            await worker.stop()
        for job in list(self._jobs.values()):
            if not job.record.is_finished:
                sentence = "the service was stopped before this job ended; send it again"
                self._finish(job, Failed(reason="crash", sentence=sentence))

    async def _work(self, worker: WorkerProcess) -> None:
        while True:
            try:
                await worker.start()  # ahead of the next job, which then need not wait for it
            except WorkerError as error:
                logger.error("%s", error)
            async with self._arrived:
                await self._arrived.wait_for(lambda: self._waiting)
                job = self._waiting.popleft()
            try:
                await self._run(job, worker)
            except Exception:  # else this worker would never take a job again
                logger.exception("a fault at job %s", job.record.id[:6])
                await worker.stop()
                job.worker = None
                sentence = "a fault inside the service; its log says more"
                self._finish(job, Failed(reason="error", sentence=sentence))

    async def _run(self, job: Job, worker: WorkerProcess) -> None:
        began = time.monotonic()
        job.worker, job.stage = worker, (began, 0.0)
        job.record.state, job.text = "running", "starting"
        self._save(job)

        def listen(progress: Progress) -> None:
            job.listen(progress)
            if job.is_cancelled:  # while the worker was being started
                worker.kill()

        task = self._task("fill", self._store.folder(job.record.id), job.record)
        answer = await worker.perform(task, self._settings.limits.job_seconds, listen)
        job.worker = None
        self._recent_seconds.append(time.monotonic() - began)
        self._metrics.job_seconds.observe(self._recent_seconds[-1])
        self._finish(job, answer)

    def _finish(self, job: Job, answer: Done | Failed) -> None:
        record = job.record
        if job.is_cancelled:
            record.state, record.message = "cancelled", "cancelled"
        elif isinstance(answer, Failed):
            record.state, record.reason, record.message = "failed", answer.reason, answer.sentence
            logger.info("job %s failed (%s)", record.id[:6], answer.reason)
        else:
            record.state, record.facts, record.notes = "done", answer.facts, answer.notes
            job.share, job.text = 1.0, "done"
        record.expires = now() + timedelta(seconds=job.keep_seconds)
        self._save(job)
        self._metrics.jobs.labels(record.state).inc()
        job.ended.set()

    def _save(self, job: Job) -> None:
        try:
            self._store.save(job.record)
        except OSError:  # a full disk must not stop a worker; the caller still gets the answer
            logger.exception("the record of job %s could not be written", job.record.id[:6])

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            limit = now() - timedelta(seconds=GRACE_SECONDS)
            for job in list(self._jobs.values()):
                expires = job.record.expires
                if job.record.is_finished and expires is not None and expires < limit:
                    try:
                        self._forget(job)
                    except OSError:
                        logger.exception("job %s could not be removed", job.record.id[:6])

    # -- taking on --------------------------------------------------------------------------

    @contextmanager
    def place(self) -> Iterator[Path]:
        """Hold a place in the queue and a folder while a table is uploaded and checked.

        The folder is removed at the end unless `submit` made it a job's.

        Raises
        ------
        QueueFull
        """
        if len(self._waiting) + self._reserved >= self._settings.queue_length:
            raise QueueFull("the queue is full; try again later", self._retry_seconds())
        if len(self._jobs) >= self._settings.max_kept:
            raise QueueFull("the service keeps as many results as it may; delete some", 600)
        folder = self._store.new_folder()
        self._reserved += 1
        try:
            yield folder
        finally:
            self._reserved -= 1
            if folder.name not in self._jobs:
                self._store.remove(folder.name)

    def _retry_seconds(self) -> int:
        recent = self._recent_seconds or [5.0]
        return max(1, round(sum(recent) / len(recent) / self._settings.workers))

    async def read(
        self, kind: Literal["check", "preview"], upload: Upload, choices: FillChoices
    ) -> Done | Failed:
        """Have a table read outside this process; one at a time."""
        record = JobRecord.new(upload.path, choices, name=upload.name)
        task = self._task(kind, upload.path.parent, record)
        async with self._reader_turn:
            seconds = self._settings.limits.inspect_seconds
            return await self._reader.perform(task, seconds, lambda progress: None)

    async def submit(self, record: JobRecord, keep_seconds: float | None = None) -> Job:
        """Append a job whose table lies in its folder.

        Parameters
        ----------
        keep_seconds : how long the result is kept; the service's setting without
        """
        keep = 3600 * self._settings.keep_hours if keep_seconds is None else keep_seconds
        self._store.save(record)
        job = self._add(Job(record, keep))
        async with self._arrived:
            self._waiting.append(job)
            self._arrived.notify()
        return job

    def _task(self, kind: Literal["check", "preview", "fill"], folder: Path, r: JobRecord) -> Task:
        settings, choices = self._settings, r.choices
        imputer: dict[str, Any] = {"seed": choices.seed or 0}
        if choices.adapt:
            minutes = choices.max_minutes or ADAPT_MINUTES
            limit = settings.limits.adapt_minutes
            imputer |= {"adapt": True, "max_minutes": min(minutes, limit)}
        model = None
        if choices.model is not None:
            assert settings.models is not None
            model = settings.models / choices.model
        return Task(
            kind=kind,
            source=folder / r.source,
            name=r.name,
            choices=choices,
            limits=settings.limits,
            imputer={**imputer, **settings.imputer},
            model=model,
            formats=r.formats,
            with_pictures=r.with_pictures,
        )

    # -- asking -----------------------------------------------------------------------------

    @property
    def num_queued(self) -> int:
        """Jobs that wait."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Jobs that are being done."""
        return sum(job.record.state == "running" for job in self._jobs.values())

    def get(self, job: str) -> Job | None:
        """Find a job; None where there is none, or its result has expired."""
        found = self._jobs.get(job)
        if found is None or not found.record.is_finished:
            return found
        assert found.record.expires is not None
        return found if found.record.expires > now() else None

    def status(self, job: Job) -> JobStatus:
        """Where a job stands."""
        kept = {"id", "name", "state", "message", "notes", "facts", "created", "expires"}
        ahead = self._waiting.index(job) if job.record.state == "queued" else 0
        return JobStatus(
            **job.record.model_dump(include=kept),
            share=1.0 if job.record.state == "done" else round(job.share, 4),
            text=job.record.state if job.record.is_finished else job.text,
            seconds_left=job.seconds_left(),
            ahead=ahead,
        )

    def cancel(self, job: Job) -> None:
        """End a job that is not finished; its worker is killed if it has one."""
        if job.record.is_finished:
            return
        job.is_cancelled = True
        if job.worker is not None:
            job.worker.kill()
        elif job in self._waiting:
            self._waiting.remove(job)
            self._finish(job, Failed(reason="crash", sentence="cancelled"))

    async def remove(self, job: Job) -> None:
        """Cancel a job if need be, and forget it with all of its files."""
        self.cancel(job)
        await job.ended.wait()
        self._forget(job)

    def _add(self, job: Job) -> Job:
        self._jobs[job.record.id] = job
        return job

    def _forget(self, job: Job) -> None:
        if job.record.id in self._jobs:
            self._store.remove(job.record.id)  # if that fails, the next sweep tries again
            del self._jobs[job.record.id]
