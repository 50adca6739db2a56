"""A service to test: on a free port with real workers, or in this process with stubs."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import uvicorn

from conftest import waves
from mdtim import MDTIMImputer
from mdtim.service.app import create_app
from mdtim.service.settings import Limits, ServiceSettings
from mdtim.tables.files import read_frame, write_frame

STUB = (sys.executable, str(Path(__file__).with_name("stub_worker.py")))
QUICK = {"window": 16, "num_draws": 1, "device": "cpu"}
"""Fills in a moment, and the same way wherever it runs."""


def stub_settings(folder: Path, **changes: Any) -> ServiceSettings:
    return ServiceSettings(folder=folder, **{"worker_command": STUB, **changes})


@contextmanager
def running(settings: ServiceSettings) -> Iterator[httpx.Client]:
    """A client of a real server in a thread."""
    # A browser may leave a request open: as in `mdtim serve`, nobody waits for it for long.
    times = {"timeout_keep_alive": 1, "timeout_graceful_shutdown": 5}
    server = uvicorn.Server(
        uvicorn.Config(create_app(settings), port=0, log_level="warning", **times)
    )
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(60)
        if thread.is_alive():
            waits = io.StringIO()
            for task in asyncio.all_tasks(loops[0]):
                task.print_stack(file=waits)
            raise AssertionError(f"the server did not end; it waits for\n{waits.getvalue()}")


def wait_until(is_so: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not become so"
        time.sleep(0.02)


def send(client: Any, text: str | bytes, path: str = "/v1/jobs", **choices: Any) -> Any:
    """Send a CSV as the body."""
    return client.post(path, content=text, params=choices, headers={"Content-Type": "text/csv"})


def ended(client: Any, job: str) -> dict[str, Any]:
    """How a job stands when it has ended."""
    found: dict[str, Any] = {}

    def has_ended() -> bool:
        found.update(client.get(f"/v1/jobs/{job}").json())
        return found["state"] not in ("queued", "running")

    wait_until(has_ended)
    return found


def sensors(num_steps: int = 120) -> pd.DataFrame:
    """Two waves with gaps, a time column, and texts that a spreadsheet would run."""
    values = waves(num_steps, 2)
    values[np.random.default_rng(3).random(values.shape) < 0.1] = np.nan
    values[40:46, 0] = np.nan
    frame = pd.DataFrame(values, columns=["level", "flow"])
    times = pd.date_range("2024-01-01", periods=num_steps, freq="h")
    frame.insert(0, "when", times.strftime("%Y-%m-%d %H:%M:%S"))
    frame["note"] = ["=1+1", "@SUM(A1)", "-2+3|cmd", '"quoted", text'] * (num_steps // 4)
    return frame


def csv_of(frame: pd.DataFrame) -> bytes:
    return frame.to_csv(index=False).encode()


@dataclass(frozen=True)
class Place:
    """A running service."""

    client: httpx.Client
    settings: ServiceSettings


@contextmanager
def quick_service(folder: Path) -> Iterator[Place]:
    """A real server with one real worker and a model called "pumps"."""
    with warnings.catch_warnings(action="ignore"):
        MDTIMImputer(**QUICK, progress=False).fit(sensors()).save(make(folder / "models") / "pumps")
    make(folder / "models" / "no model")
    settings = ServiceSettings(
        folder=folder / "jobs",
        models=folder / "models",
        imputer=QUICK,
        limits=Limits(memory_bytes=4 * 2**30, result_bytes=10_000_000),
    )
    with running(settings) as client:
        yield Place(client, settings)


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


def write_library_answers(folder: Path) -> None:
    """out.csv, out.parquet and quantiles.csv for the table in.csv."""
    (folder / "in.csv").write_bytes(csv_of(sensors()))
    frame = read_frame(folder / "in.csv")
    with warnings.catch_warnings(action="ignore"):
        imputer = MDTIMImputer(**QUICK, seed=0, progress=False).fit(frame)
        result = imputer.impute(frame)
    for suffix in ("csv", "parquet"):
        write_frame(result.values, folder / f"out.{suffix}")
    write_frame(result.with_quantiles([0.05, 0.95]), folder / "quantiles.csv")
