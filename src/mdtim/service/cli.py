"""`mdtim serve`: the web page and the REST service on this machine."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from mdtim.messages import fail, notes, user_messages


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8000,
    models: Annotated[
        Path | None, typer.Option(help="Folder of models that requests may name.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder for uploads and results; the user's own without.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="MDTIM_TOKEN",
            help="Ask for this bearer token. Other users may see it here; not in the variable.",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(help="Jobs at the same time.")] = 1,
    queue: Annotated[int, typer.Option(help="Jobs that may wait.")] = 20,
    keep_hours: Annotated[float, typer.Option(help="How long results are kept.")] = 24.0,
    job_minutes: Annotated[float, typer.Option(help="Time limit of a job.")] = 30.0,
    upload_mb: Annotated[int, typer.Option(help="Largest upload.")] = 64,
    max_rows: Annotated[int, typer.Option(help="Most rows of a table.")] = 1_000_000,
    max_columns: Annotated[int, typer.Option(help="Most columns of a table.")] = 500,
    memory_gb: Annotated[float, typer.Option(help="Memory of one job.")] = 4.0,
) -> None:
    """Open the web page and the REST service."""
    needed = ("fastapi", "uvicorn", "python_multipart", "prometheus_client", "filelock")
    if any(find_spec(name) is None for name in needed):
        fail("the service needs further packages: pip install 'mdtim[app]'")
    with user_messages():
        from mdtim.service.settings import Limits, ServiceSettings, default_folder

        limits = Limits(
            upload_bytes=upload_mb * 2**20,
            rows=max_rows,
            columns=max_columns,
            memory_bytes=int(memory_gb * 2**30),
            job_seconds=60 * job_minutes,
        )
        settings = ServiceSettings(
            folder=default_folder() if folder is None else folder,
            models=models,
            host=host,
            port=port,
            token=token,
            workers=workers,
            queue_length=queue,
            keep_hours=keep_hours,
            limits=limits,
        )
        if not settings.is_local and token is None:
            notes.print("note: without --token, whoever reaches this address can use the service")
        from mdtim.service.app import run

        name = f"[{host}]" if ":" in host else host
        notes.print(f"mdtim on http://{name}:{port}/  (Ctrl+C ends it)", highlight=False)
        run(settings)
