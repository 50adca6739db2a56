"""What travels over HTTP: options in, states and facts out."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Format = Literal["csv", "parquet", "json"]
State = Literal["queued", "running", "done", "failed", "cancelled"]
Reason = Literal["input", "memory", "time", "crash", "error"]
"""Why a job failed: the table, a limit, the worker's end, or a fault of ours."""

JOB_ID = r"^[A-Za-z0-9_-]{22}$"
MODEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
ADAPT_MINUTES = 1.0
"""Time limit for adapting where a request names none."""
MAX_NAME = 500
"""Characters of a column's name."""
MAX_PLACEHOLDERS = 20
MAX_LEVELS = 9
ColumnName = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
Level = Annotated[float, Field(gt=0, lt=1)]


class TableChoices(BaseModel):
    """What is known about a table; everything may be left out."""

    model_config = ConfigDict(extra="forbid")

    time: ColumnName | None = Field(None, description="Time column; found by itself if not given.")
    id: ColumnName | None = Field(None, description="Column that tells several series apart.")
    freq: Annotated[str, Field(max_length=40)] | None = Field(
        None, description="Sampling period (h, 10min): missing timestamps become rows."
    )
    columns: list[ColumnName] = Field(
        [], max_length=500, description="Columns to look at and fill; without, all numeric ones."
    )
    inf_as_missing: bool = Field(
        False, description="Treat infinite cells as missing instead of refusing the table."
    )
    missing_values: list[Annotated[float, Field(allow_inf_nan=False)]] = Field(
        [], max_length=MAX_PLACEHOLDERS, description="Numbers that stand for missing, such as -999."
    )

    def table_options(self) -> dict[str, Any]:
        """What was said, as arguments of `TableOptions` and `MDTIMImputer`."""
        given = self.model_dump(include={"time", "id", "freq"}, exclude_none=True)
        given |= {"columns": tuple(self.columns)} if self.columns else {}
        given |= {"missing_values": tuple(self.missing_values)} if self.missing_values else {}
        return given | ({"inf_as_missing": True} if self.inf_as_missing else {})


class FillChoices(TableChoices):
    """How a table is to be filled."""

    quantiles: list[Level] = Field(
        [], max_length=MAX_LEVELS, description="Adds a column name_q0.05 per column and level."
    )
    model: Annotated[str, Field(pattern=MODEL_NAME)] | None = Field(
        None, description="A model of GET /v1/models; without, the pretrained network."
    )
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None = Field(
        None,
        description="The same seed gives the same result; 0 if not given. Not with a model, which "
        "has its own.",
    )
    adapt: bool = Field(
        False,
        description="Train the pretrained network further on this table before it is filled: takes "
        "minutes, and the fill is never worse on held-out cells. Not with a model.",
    )
    max_minutes: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description=f"Time limit for adapting, {ADAPT_MINUTES:g} if not given; at most half the "
        "time of a job. Only with adapt=true.",
    )


class ImputeChoices(FillChoices):
    """How a table is to be filled, and what comes back."""

    format: Format | None = Field(
        None, description="Of the answer; json for a JSON body, csv for others."
    )


class ColumnTable(BaseModel):
    """A table as JSON: the cells of every column, null where missing."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "columns": {
                        "time": [f"2024-01-01T{hour:02}:00:00" for hour in range(6)],
                        "level": [1.0, 1.2, None, None, 1.8, 2.0],
                    }
                }
            ]
        }
    )
    columns: dict[str, list[float | int | str | bool | None]]


class FilledTable(BaseModel):
    """A filled table as JSON, and what its owner should know."""

    columns: dict[str, list[float | int | str | bool | None]]
    notes: list[str]


class ErrorBody(BaseModel):
    """Every error: one sentence that says what was found and what to do."""

    detail: str = Field(examples=["the table has no rows; pass at least one"])


class ColumnFacts(BaseModel):
    """One numeric column and its gaps."""

    column: str
    missing: int
    share: float
    gaps: int
    median_gap: float
    longest_gap: int


class MissingMap(BaseModel):
    """Where along the rows cells are missing; rows sorted by series and time."""

    columns: list[str]
    shares: list[list[float]] = Field(description="For each column, the share missing per stretch.")
    ticks: list[tuple[float, str]] = Field(description="Place from 0 to 1, and its label.")
    several_series: bool


class TableFacts(BaseModel):
    """What a table looks like when read with the given choices."""

    steps: int
    skipped_steps: int = Field(description="Steps that no row has; they count as missing here.")
    series: int
    step_seconds: float | None
    missing: int
    share: float
    columns: list[ColumnFacts]
    map: MissingMap


class Preview(BaseModel):
    """A table before it is filled."""

    rows: int
    names: list[str] = Field(description="All columns of the file.")
    numeric: list[str] = Field(description="Those that can be filled.")
    time: str | None = Field(description="The column taken for the time.")
    id: str | None = Field(description="The column taken for the series: yours, or a suggestion.")
    table: TableFacts | None = Field(description="null where the table cannot be read that way.")
    problem: str | None = Field(
        description="Why it cannot be read, or not all of its columns: then the chosen are shown."
    )
    notes: list[str] = Field(description="What its owner should know about how it was read.")


class JobStatus(BaseModel):
    """Where a job stands."""

    id: str = Field(pattern=JOB_ID, examples=["pVXZ3vIKWtZUe-0V8nTqlA"])
    name: str | None = Field(description="Of the file that was sent; null of a body without one.")
    state: State
    share: float = Field(description="Of the work that is done, from 0 to 1.")
    text: str = Field(description="What is being done, in words.")
    seconds_left: float | None = Field(description="An estimate; null where there is none.")
    ahead: int = Field(description="Jobs that will start before this one.")
    message: str | None = Field(description="Why it failed.")
    notes: list[str] = Field(description="What the owner of the table should know.")
    facts: dict[str, Any] = Field(
        description="rows, missing, filled, the encoding of the result as CSV, the steps trained "
        "on this table, and the mean errors of the fill and of linear interpolation on held-out "
        "cells (null where there are none)."
    )
    created: datetime
    expires: datetime | None = Field(description="When the result is removed.")


class ModelFacts(BaseModel):
    """A model that requests may name."""

    model_config = ConfigDict(extra="allow")
    name: str = Field(pattern=MODEL_NAME)
    window: int | None = None
    variates: list[str] | None = None


class Health(BaseModel):
    """The service answers, and how busy it is."""

    status: Literal["ok"]
    version: str
    workers: int
    running: int
    queued: int
