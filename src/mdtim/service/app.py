"""The application: calls, page, guard and queue put together, and the server that runs it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles

from mdtim import __version__
from mdtim.service.api import Service, pulse, router
from mdtim.service.guard import Guard
from mdtim.service.jobs import QueueFull
from mdtim.service.refusals import refusal
from mdtim.service.settings import ServiceSettings
from mdtim.service.wording import WORDING_HEADER, wording

STATIC = Path(__file__).parent / "static"
_DESCRIPTION = """Fill the gaps in time series. A table is the body of a request: CSV or Parquet, as
a form's file or as it is, or JSON of the form {"columns": {name: cells}}. Options are query
parameters. Every error is {"detail": one sentence}."""


def create_app(settings: ServiceSettings) -> FastAPI:
    """Put the application together; it takes its folder now and starts its workers later."""
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.queue.start()
        yield
        await service.queue.stop()
        service.store.close()

    app = FastAPI(
        title="mdtim",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        # The usual pages for these load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        # Nothing is sent anywhere, whatever the environment says.
        telemetry={"auto_configure": False, "tracing": False, "metrics": False, "logs": False},
    )
    app.state.service = service
    app.include_router(router)
    app.include_router(pulse)
    app.add_api_route("/", _page, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.add_exception_handler(HTTPException, _refuse_in_words)
    app.add_exception_handler(RequestValidationError, _say_what_is_wrong)
    app.add_exception_handler(QueueFull, _ask_to_wait)
    app.add_exception_handler(OSError, _admit_a_bad_disk)
    app.add_middleware(Guard, settings=settings, metrics=service.metrics)
    return app


def run(settings: ServiceSettings) -> None:
    """Serve until interrupted."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    uvicorn.run(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        access_log=False,
        server_header=False,
        log_level="warning",
        timeout_keep_alive=15,
        timeout_graceful_shutdown=10,
    )


async def _page() -> FileResponse:
    return FileResponse(STATIC / "index.html")


async def _refuse_in_words(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    words = wording(request.headers.get(WORDING_HEADER))
    body = {"detail": words(error.detail)}
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


async def _say_what_is_wrong(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    words = wording(request.headers.get(WORDING_HEADER))
    return JSONResponse({"detail": words(refusal(list(error.errors())))}, status_code=422)


async def _admit_a_bad_disk(_: Request, error: Exception) -> JSONResponse:
    logging.getLogger("mdtim.service").error("the folder of the service: %s", error)
    sentence = "the service cannot write to its disk; tell whoever runs it"
    return JSONResponse({"detail": sentence}, status_code=507)


async def _ask_to_wait(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, QueueFull)
    headers = {"Retry-After": str(error.seconds)}
    return JSONResponse({"detail": str(error)}, status_code=429, headers=headers)
