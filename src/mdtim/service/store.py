"""Jobs on disk: a folder each, with a JSON file that says how the job stands.

A finished job is as good after a restart as before. What was unfinished then is marked as failed,
and folders that never became a job are removed.
"""

from __future__ import annotations

import re
import secrets
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError

from mdtim.atomic import atomic_path
from mdtim.service.schemas import JOB_ID, FillChoices, Format, Reason, State

RECORD = "job.json"
GRACE_SECONDS = 120.0
"""A result stays this much longer than promised, so that a download under way can end."""


class JobRecord(BaseModel):
    """What is kept of a job."""

    id: str
    source: str
    """Name of the uploaded table in the job's folder."""
    name: str | None = None
    """What its sender calls it."""
    choices: FillChoices
    formats: tuple[Format, ...]
    with_pictures: bool
    state: State = "queued"
    created: datetime
    expires: datetime | None = None
    reason: Reason | None = None
    message: str | None = None
    notes: list[str] = []
    facts: dict[str, Any] = {}

    @classmethod
    def new(
        cls,
        source: Path,
        choices: FillChoices,
        formats: tuple[Format, ...] = (),
        *,
        name: str | None = None,
        with_pictures: bool = False,
    ) -> JobRecord:
        """Describe a job for a table that lies in the job's folder."""
        return cls(
            id=source.parent.name,
            source=source.name,
            name=name,
            choices=choices,
            formats=formats,
            with_pictures=with_pictures,
            created=now(),
        )

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will happen to the job."""
        return self.state in ("done", "failed", "cancelled")


class JobStore:
    """The folder of the service; one service at a time."""

    def __init__(self, folder: Path) -> None:
        # A folder of our own inside it: what else lies there is nobody's but its owner's.
        self.root = folder / "jobs"
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = FileLock(folder / ".lock", timeout=0, thread_local=False)
        try:
            self._lock.acquire()
        except Timeout as error:
            raise ValueError(
                f"another service uses {folder}; stop it, or name another folder"
            ) from error

    def close(self) -> None:
        """Let another service have the folder."""
        self._lock.release()

    def load(self, keep_seconds: float) -> list[JobRecord]:
        """Read what an earlier service left, and clear up after it; oldest first.

        Parameters
        ----------
        keep_seconds : how long the message of an unfinished job is kept
        """
        records = []
        for folder in self.root.iterdir():
            if not re.fullmatch(JOB_ID, folder.name) or not folder.is_dir():
                continue  # not ours
            try:
                record = JobRecord.model_validate_json((folder / RECORD).read_bytes())
            except (FileNotFoundError, ValidationError):
                shutil.rmtree(folder)
                continue
            if not record.is_finished:
                record.state, record.reason = "failed", "crash"
                record.message = "the service was restarted before this job ended; send it again"
                record.expires = now() + timedelta(seconds=keep_seconds)
                self.save(record)
            records.append(record)
        return sorted(records, key=lambda record: record.created)

    def new_folder(self) -> Path:
        """Make a folder under a random name, for a table about to be uploaded."""
        folder = self.root / secrets.token_urlsafe(16)
        folder.mkdir(mode=0o700)
        return folder

    def folder(self, job: str) -> Path:
        """Folder of a job."""
        assert re.fullmatch(JOB_ID, job)
        return self.root / job

    def save(self, record: JobRecord) -> None:
        """Write how a job stands; the table itself goes when the job is finished."""
        folder = self.folder(record.id)
        with atomic_path(folder / RECORD) as temporary:
            temporary.write_text(record.model_dump_json(), encoding="utf-8")
        if record.is_finished:
            (folder / record.source).unlink(missing_ok=True)

    def remove(self, job: str) -> None:
        """Remove a job and all of its files."""
        shutil.rmtree(self.folder(job))


def now() -> datetime:
    """The time, to the second, in UTC."""
    return datetime.now(UTC).replace(microsecond=0)
