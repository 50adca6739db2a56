"""The REST calls; each is a few lines over the queue."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path
from typing import Annotated, Any, NoReturn

from fastapi import APIRouter, Depends, Header, HTTPException, Query, Request, Response
from fastapi import Path as PathParameter
from fastapi.responses import FileResponse
from starlette.background import BackgroundTask

from mdtim import __version__
from mdtim.service.bodies import REQUEST_BODY, content_type, receive_table
from mdtim.service.example import example_csv
from mdtim.service.guard import REPORT_POLICY
from mdtim.service.jobs import Job, JobQueue
from mdtim.service.metrics import CONTENT_TYPE, Metrics
from mdtim.service.protocol import Failed
from mdtim.service.schemas import (
    JOB_ID,
    MODEL_NAME,
    ErrorBody,
    FillChoices,
    FilledTable,
    Format,
    Health,
    ImputeChoices,
    JobStatus,
    ModelFacts,
    Preview,
    TableChoices,
)
from mdtim.service.settings import ServiceSettings
from mdtim.service.store import JobRecord, JobStore
from mdtim.service.uploads import result_name
from mdtim.service.wording import WORDING_HEADER, Wording, for_program, notes_header, wording

logger = logging.getLogger("mdtim.service")
MEDIA_TYPES: dict[str, str] = {
    "csv": "text/csv",
    "parquet": "application/vnd.apache.parquet",
    "json": "application/json",
}
_CHARSETS = {"utf-8-sig": "utf-8", "cp1252": "windows-1252", "latin-1": "iso-8859-1"}
"""Encodings whose names on the web are others."""
NOTES_HEADER = "X-Mdtim-Notes"
_FORMATS: tuple[Format, ...] = ("csv", "parquet", "json")
_STATUS = {"input": 422, "time": 422, "memory": 413, "crash": 500, "error": 500}
_WATCH_SECONDS = 1.0
_ANSWER_SECONDS = 600.0
"""How long the result of `POST /v1/impute` may stay if its removal fails."""


class Service:
    """What the calls work with."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.store = JobStore(settings.folder)
        self.queue = JobQueue(settings, self.store, self.metrics)
        watch = self.metrics.watch
        watch("mdtim_queued_jobs", "Jobs that wait.", lambda: self.queue.num_queued)
        watch("mdtim_running_jobs", "Jobs that run.", lambda: self.queue.num_running)
        watch(
            "mdtim_worker_starts",
            "Processes started to do jobs.",
            lambda: sum(worker.starts for worker in self.queue.workers),
        )


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _words(
    asked: Annotated[
        str | None,
        Header(
            alias=WORDING_HEADER,
            description="page: messages speak of the page's fields in place of parameters.",
        ),
    ] = None,
) -> Wording:
    return wording(asked)


# An id of another form is one that no job has: it is documented, not checked.
JobId = Annotated[str, PathParameter(json_schema_extra={"pattern": JOB_ID})]


def _job(service: Here, id: JobId) -> Job:
    job = service.queue.get(id)
    if job is None:
        raise HTTPException(404, "there is no such job; it may have expired or been deleted")
    return job


Here = Annotated[Service, Depends(_service)]
OneJob = Annotated[Job, Depends(_job)]
Words = Annotated[Wording, Depends(_words)]


def _errors(*codes: int) -> dict[int | str, dict[str, Any]]:
    return {code: {"model": ErrorBody} for code in codes}


def _files(*codes: int) -> dict[int | str, dict[str, Any]]:
    content: dict[str, Any] = {
        "text/csv": {"schema": {"type": "string"}},
        "application/vnd.apache.parquet": {"schema": {"type": "string", "format": "binary"}},
        "application/json": {"schema": FilledTable.model_json_schema()},
    }
    told = (
        "What the owner of the table should know: a JSON list of sentences in ASCII, if there is "
        "anything, shortened where it is long."
    )
    headers = {NOTES_HEADER: {"description": told, "schema": {"type": "string"}}}
    table = {"description": "The filled table.", "content": content, "headers": headers}
    return {200: table, **_errors(*codes)}


_UPLOAD_ERRORS = (400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 507)
_JOB_ERRORS = (400, 401, 403, 404, 413, 422)
_PLAIN_ERRORS = (400, 401, 403, 413)
router = APIRouter(prefix="/v1")


@router.post("/preview", openapi_extra=REQUEST_BODY, responses=_errors(*_UPLOAD_ERRORS))
async def preview_table(
    request: Request, service: Here, words: Words, choices: Annotated[TableChoices, Query()]
) -> Preview:
    """Look at a table: its columns, where cells are missing, how it could be read."""
    with service.queue.place() as folder:
        upload = await receive_table(request, folder, service.settings.limits)
        wanted = FillChoices(**choices.model_dump())
        answer = await service.queue.read("preview", upload, wanted)
    if isinstance(answer, Failed):
        _refuse(answer)
    problem = answer.facts["problem"] and words(answer.facts["problem"])
    told = {"problem": problem, "notes": [words(note) for note in answer.notes]}
    return Preview(**{**answer.facts, **told})


@router.post(
    "/impute",
    openapi_extra=REQUEST_BODY,
    response_class=FileResponse,
    responses=_files(*_UPLOAD_ERRORS),
)
async def impute_table(
    request: Request, service: Here, choices: Annotated[ImputeChoices, Query()]
) -> Response:
    """Fill a table and send it back, all in one call; long ones are better sent as jobs."""
    is_json = content_type(request) == "application/json"
    form: Format = choices.format or ("json" if is_json else "csv")
    wanted = FillChoices(**choices.model_dump(exclude={"format"}))
    job = await _accept(request, service, wanted, (form,), keep_seconds=_ANSWER_SECONDS)
    while not job.ended.is_set():
        try:
            await asyncio.wait_for(job.ended.wait(), _WATCH_SECONDS)
        except TimeoutError:
            if await request.is_disconnected():
                await service.queue.remove(job)
                raise HTTPException(400, "the caller went away") from None
    record = job.record
    if record.state != "done":
        await service.queue.remove(job)
        _refuse(Failed(reason=record.reason or "input", sentence=record.message or record.state))
    return _file(service, job, form, BackgroundTask(service.queue.remove, job))


@router.post(
    "/jobs",
    status_code=202,
    openapi_extra=REQUEST_BODY,
    responses=_errors(*_UPLOAD_ERRORS),
)
async def create_job(
    request: Request,
    response: Response,
    service: Here,
    words: Words,
    choices: Annotated[FillChoices, Query()],
) -> JobStatus:
    """Put a table in the queue to be filled; the answer says where to ask how it goes."""
    job = await _accept(request, service, choices, _FORMATS, with_pictures=True)
    response.headers["Location"] = f"/v1/jobs/{job.record.id}"
    return _status(service, job, words)


@router.get("/jobs/{id}", responses=_errors(*_JOB_ERRORS))
async def read_job(service: Here, words: Words, job: OneJob) -> JobStatus:
    """Say where a job stands, with an estimate of the time left."""
    return _status(service, job, words)


@router.delete("/jobs/{id}", status_code=204, responses=_errors(*_JOB_ERRORS))
async def delete_job(service: Here, job: OneJob) -> None:
    """Cancel a job, or remove its result."""
    await service.queue.remove(job)


@router.get(
    "/jobs/{id}/result",
    response_class=FileResponse,
    responses=_files(*_JOB_ERRORS, 409),
)
async def read_result(service: Here, job: OneJob, format: Format = "csv") -> Response:
    """Send the filled table."""
    _require_done(job)
    return _file(service, job, format)


@router.get(
    "/jobs/{id}/report",
    response_class=FileResponse,
    responses={200: {"content": {"text/html": {}}}, **_errors(*_JOB_ERRORS, 409)},
)
async def read_report(service: Here, job: OneJob) -> Response:
    """Send the report, one self-contained page."""
    _require_done(job)
    headers = {"Content-Security-Policy": REPORT_POLICY}
    path = service.store.folder(job.record.id) / "report.html"
    name = _name_of(job, "report.html")
    return FileResponse(
        path,
        media_type="text/html",
        headers=headers,
        filename=name,
        content_disposition_type="inline",
    )


@router.get(
    "/jobs/{id}/chart",
    response_class=FileResponse,
    responses={200: {"content": {"application/json": {}}}, **_errors(*_JOB_ERRORS, 409)},
)
async def read_chart(service: Here, job: OneJob) -> Response:
    """Send the lines and 90 % bands that the page draws."""
    _require_done(job)
    path = service.store.folder(job.record.id) / "chart.json"
    return FileResponse(path, media_type=MEDIA_TYPES["json"])


@router.get("/models", responses=_errors(*_PLAIN_ERRORS))
async def list_models(service: Here) -> list[ModelFacts]:
    """List the models that requests may name."""
    return _models(service.settings.models)


@router.get(
    "/example",
    response_class=Response,
    responses={200: {"content": {"text/csv": {}}}, **_errors(*_PLAIN_ERRORS)},
)
async def read_example() -> Response:
    """Send a table with gaps, to try things with."""
    return Response(example_csv(), media_type=f"{MEDIA_TYPES['csv']}; charset=utf-8")


pulse = APIRouter()


@pulse.get("/healthz", responses=_errors(400, 403, 413))
async def check_health(service: Here) -> Health:
    """Say that the service answers."""
    return Health(
        status="ok",
        version=__version__,
        workers=service.settings.workers,
        running=service.queue.num_running,
        queued=service.queue.num_queued,
    )


@pulse.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}, **_errors(*_PLAIN_ERRORS)},
)
async def read_metrics(service: Here) -> Response:
    """Numbers for Prometheus."""
    return Response(service.metrics.text(), media_type=CONTENT_TYPE)


# -- pieces the calls share -----------------------------------------------------------------


async def _accept(
    request: Request,
    service: Service,
    choices: FillChoices,
    formats: tuple[Format, ...],
    *,
    with_pictures: bool = False,
    keep_seconds: float | None = None,
) -> Job:
    """Take the table of a request, have it checked, and put it in the queue."""
    _check(choices, service.settings)
    queue = service.queue
    with queue.place() as folder:
        upload = await receive_table(request, folder, service.settings.limits)
        answer = await queue.read("check", upload, choices)
        if isinstance(answer, Failed):
            _refuse(answer)
        record = JobRecord.new(
            upload.path, choices, formats, name=upload.name, with_pictures=with_pictures
        )
        return await queue.submit(record, keep_seconds)


def _check(choices: FillChoices, settings: ServiceSettings) -> None:
    """Refuse choices that cannot be followed, so that none is passed over in silence."""
    limit = settings.limits.adapt_minutes
    if choices.max_minutes is not None and not choices.adapt:
        raise HTTPException(
            422, "max_minutes is a limit for adapting; add adapt=true, or leave it out"
        )
    if choices.max_minutes is not None and choices.max_minutes > limit:
        raise HTTPException(
            422, f"max_minutes is {choices.max_minutes:g}, this service allows at most {limit:g}"
        )
    if choices.model is None:
        return
    if choices.adapt or choices.seed is not None:
        given = "adapt" if choices.adapt else "seed"
        raise HTTPException(422, f"a model fills as it was fitted; leave out {given}, or the model")
    if choices.model not in {model.name for model in _models(settings.models)}:
        raise HTTPException(404, "there is no model of that name; GET /v1/models lists them")


def _refuse(failed: Failed) -> NoReturn:
    raise HTTPException(_STATUS[failed.reason], failed.sentence)


def _status(service: Service, job: Job, words: Wording) -> JobStatus:
    status = service.queue.status(job)
    message = None if status.message is None else words(status.message)
    notes = [words(note) for note in status.notes]
    return status.model_copy(update={"message": message, "notes": notes})


def _require_done(job: Job) -> None:
    state = job.record.state
    if state != "done":
        hint = job.record.message or "ask again later"
        raise HTTPException(409, f"the job is {state}, it has no result: {hint}")


def _file(
    service: Service, job: Job, form: Format, after: BackgroundTask | None = None
) -> FileResponse:
    if form not in job.record.formats:
        raise HTTPException(404, f"this job has no result as {form}")
    path = service.store.folder(job.record.id) / f"result.{form}"
    media_type = MEDIA_TYPES[form]
    if form == "csv":
        encoding = str(job.record.facts.get("encoding", "utf-8"))
        media_type += f"; charset={_CHARSETS.get(encoding, encoding)}"
    notes = [for_program(note) for note in job.record.notes]
    return FileResponse(
        path,
        media_type=media_type,
        headers={NOTES_HEADER: notes_header(notes)} if notes else None,
        filename=_name_of(job, f"filled.{form}"),
        background=after,
    )


def _name_of(job: Job, what: str) -> str:
    """What to call a file of the result, after the one that was sent."""
    suffix = "".join(Path(job.record.source).suffixes)
    return result_name(job.record.name, suffix, what)


def _models(folder: Path | None) -> list[ModelFacts]:
    if folder is None:
        return []
    found = []
    for path in sorted(folder.glob("*/config.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if re.fullmatch(MODEL_NAME, path.parent.name) and document["kind"] == "imputer":
                facts = {key: document.get(key) for key in ("window", "variates")}
                found.append(ModelFacts(name=path.parent.name, **facts))
        except (OSError, ValueError, KeyError, TypeError):
            logger.warning("%s is not of a model; it is not listed", path)
    return found
