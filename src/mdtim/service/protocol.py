"""What the service and its workers say to each other: one JSON object a line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter

from mdtim.service.schemas import FillChoices, Format, Reason
from mdtim.service.settings import Limits


class Task(BaseModel):
    """Something for a worker to do with the table in a job's folder."""

    kind: Literal["check", "preview", "fill"]
    """check reads the table and says what is wrong, preview describes it, fill fills it."""
    source: Path
    """The table, a file with one of the suffixes of :mod:`mdtim.tables.files`, or .json."""
    name: str | None = None
    """What messages and the report call it."""
    choices: FillChoices
    limits: Limits
    imputer: dict[str, Any] = {}
    """Arguments of `MDTIMImputer`, or of nothing where there is a model."""
    model: Path | None = None
    formats: tuple[Format, ...] = ()
    """Results to write, as `result.csv` and so on beside the source."""
    with_pictures: bool = False
    """Also write `report.html` and `chart.json`."""


class Ready(BaseModel):
    """A worker has started and waits for a task."""

    say: Literal["ready"] = "ready"


class Progress(BaseModel):
    """A task goes on."""

    say: Literal["progress"] = "progress"
    share: float
    """Of the whole task, from 0 to 1."""
    since: float = 0.0
    """The share at which the present stage began; each stage has a pace of its own."""
    text: str


class Done(BaseModel):
    """A task has ended as it should."""

    say: Literal["done"] = "done"
    facts: dict[str, Any]
    notes: list[str]


class Failed(BaseModel):
    """A task has ended otherwise."""

    say: Literal["failed"] = "failed"
    reason: Reason
    sentence: str


Message = Annotated[Ready | Progress | Done | Failed, Field(discriminator="say")]
MESSAGE: TypeAdapter[Ready | Progress | Done | Failed] = TypeAdapter(Message)
