"""Everything the service is told at its start, as frozen data."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one request may ask for; what is beyond is refused with a sentence."""

    upload_bytes: int = 64 * 2**20
    """Of the body of a request."""
    upload_seconds: float = 120.0
    """To send the body of a request."""
    unpacked_bytes: int = 512 * 2**20
    """Of a table, decompressed."""
    rows: int = 1_000_000
    columns: int = 500
    cells: int = 20_000_000
    """Rows times columns, skipped steps included."""
    memory_bytes: int = 4 * 2**30
    """Of a worker, on top of what it needs to start."""
    result_bytes: int = 2**30
    """Of one file that a job writes."""
    inspect_seconds: float = 60.0
    """To read a table and look at its gaps."""
    job_seconds: float = 1800.0
    """From the start of a job to its result."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            if getattr(self, limit.name) <= 0:
                raise ValueError(f"{limit.name} must be above 0, got {getattr(self, limit.name)}")

    @property
    def adapt_minutes(self) -> float:
        """The most that may go into adapting: the other half of a job's time is for filling."""
        return self.job_seconds / 120


def default_folder() -> Path:
    """Where results are kept if nothing is said: the user's state folder."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "mdtim"


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """Where the service listens, what it keeps and how much it takes on."""

    folder: Path = field(default_factory=default_folder)
    """For uploads and results; made if it does not exist, readable by its owner alone."""
    models: Path | None = None
    """Folder of model folders that requests may name."""
    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = field(default=None, repr=False)
    """Where given, requests must bear it."""
    workers: int = 1
    """Jobs that run at the same time, each in a process of its own."""
    queue_length: int = 20
    """Jobs that may wait."""
    max_kept: int = 2_000
    """Results on disk at the same time."""
    keep_hours: float = 24.0
    """How long a result is kept."""
    limits: Limits = field(default_factory=Limits)
    imputer: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of every `MDTIMImputer`."""
    worker_command: tuple[str, ...] = (sys.executable, "-m", "mdtim.service.worker")
    """Starts a worker; speaks :mod:`mdtim.service.protocol` over its standard streams."""

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("queue_length", 1), ("max_kept", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.keep_hours <= 0:
            raise ValueError(f"keep_hours must be above 0, got {self.keep_hours}")
        if self.models is not None and not self.models.is_dir():
            raise ValueError(f"there is no folder {self.models} with models; check its name")
        if self.token is not None and (len(self.token) < 16 or not self.token.isascii()):
            raise ValueError("the token must have at least 16 characters, plain ASCII")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the service."""
        return self.host in LOOPBACK
