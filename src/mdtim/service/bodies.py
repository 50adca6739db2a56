"""The body of a request becomes a file; nothing of it is looked at here."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import HTTPException, Request
from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect

from mdtim.service.schemas import ColumnTable
from mdtim.service.settings import Limits
from mdtim.service.uploads import shown_name, source_suffix

_SUFFIXES = {
    "application/json": ".json",
    "text/csv": ".csv",
    "text/tab-separated-values": ".tsv",
    "application/vnd.apache.parquet": ".parquet",
}
_FORM = "multipart/form-data"
_BLOCK = 2**20
_CSV_EXAMPLE = "time,level\n2024-01-01,1.0\n2024-01-02,\n2024-01-03,1.4\n"

REQUEST_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "The table, as a file of a form or as the body itself.",
        "content": {
            _FORM: {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {"file": {"type": "string", "format": "binary"}},
                }
            },
            "application/json": {"schema": ColumnTable.model_json_schema()},
            "text/csv": {"schema": {"type": "string"}, "example": _CSV_EXAMPLE},
            "text/tab-separated-values": {"schema": {"type": "string"}},
            "application/vnd.apache.parquet": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}
"""For the OpenAPI document: FastAPI itself knows one form of a body per call."""


def content_type(request: Request) -> str:
    """Media type of the body, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


@dataclass(frozen=True)
class Upload:
    """A table that was sent."""

    path: Path
    """`input` with the suffix of its kind; only the suffix is the sender's."""
    name: str | None = None
    """What the sender calls the file, for people to read; None of a body without a name."""


async def receive_table(request: Request, folder: Path, limits: Limits) -> Upload:
    """Write the table of a request to a file."""
    try:
        async with asyncio.timeout(limits.upload_seconds):
            if content_type(request) == _FORM:
                return await _receive_form(request, folder)
            return await _receive_plain(request, folder)
    except TimeoutError as error:
        sentence = f"the upload took longer than {limits.upload_seconds:g} s; try again"
        raise HTTPException(408, sentence) from error
    except ClientDisconnect as error:
        raise HTTPException(400, "the upload was broken off") from error


async def _receive_form(request: Request, folder: Path) -> Upload:
    async with request.form(max_files=1, max_fields=8) as form:
        upload = form.get("file")
        if not isinstance(upload, UploadFile):
            raise HTTPException(422, "expected a form with a file in its field 'file'")
        name = upload.filename or ""
        try:
            path = folder / f"input{source_suffix(name)}"
        except ValueError as error:
            raise HTTPException(415, str(error)) from error
        with path.open("wb") as file:
            while block := await upload.read(_BLOCK):
                file.write(block)
    return Upload(path, shown_name(name))


async def _receive_plain(request: Request, folder: Path) -> Upload:
    suffix = _SUFFIXES.get(content_type(request))
    if suffix is None:
        known = ", ".join((_FORM, *_SUFFIXES))
        raise HTTPException(415, f"the Content-Type of a table is one of {known}")
    path = folder / f"input{suffix}"
    with path.open("wb") as file:
        async for block in request.stream():
            file.write(block)
    return Upload(path)
