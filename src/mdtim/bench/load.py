"""The service under load: many clients on loopback upload tables at the same time."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from mdtim.bench.environment import commit, device_name, versions

ROWS, COLUMNS, SHARE_MISSING = 1_000, 8, 0.1
MODEL = "load"
FIT = ("--preset", "small", "--window", "24", "--max-steps", "3", "--quiet")
"""How the model is fitted that the clients name: the load is about filling."""
POLL_SECONDS = 0.5
START_SECONDS = 120.0


@dataclass(frozen=True)
class LoadRow:
    """One run of the load test."""

    clients: int
    workers: int
    seconds: float
    rows: int
    columns: int
    accepted: int
    """Jobs that the service took."""
    done: int
    """Jobs whose result came back whole, with nothing missing."""
    failed: int
    """Jobs that ended with a message."""
    refused: int
    """Answers 429: the queue was full."""
    server_errors: int
    """Answers 5xx, and connections that broke."""
    job_p50: float
    """Seconds from an upload to its result in the client's hands."""
    job_p95: float
    job_p99: float
    upload_p50: float
    """Seconds of one upload that was taken."""
    upload_p99: float
    status_p50: float
    """Seconds of one question how a job stands."""
    status_p99: float
    service_mb_before: float
    """Resident memory of the service after the first jobs."""
    service_mb_after: float
    workers_mb_before: float
    """Of its workers together."""
    workers_mb_after: float
    device: str
    versions: str
    commit: str


@dataclass
class _Counts:
    """What all clients saw."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    accepted: int = 0
    done: int = 0
    failed: int = 0
    refused: int = 0
    server_errors: int = 0
    jobs: list[float] = field(default_factory=list)
    uploads: list[float] = field(default_factory=list)
    questions: list[float] = field(default_factory=list)

    def add(self, name: str) -> None:
        with self.lock:
            setattr(self, name, getattr(self, name) + 1)


def run_load(seconds: float, clients: int, workers: int) -> LoadRow:
    """Start a service, let clients upload for a while, wait for their results, and count."""
    with tempfile.TemporaryDirectory() as name, _service(Path(name), workers) as (port, process):
        warm_up = _Counts()
        for seed in range(2 * workers):
            _job(port, _csv(seed), warm_up)
        assert warm_up.done == 2 * workers, "the service did not fill the first tables"
        before = _memory(process)
        counts, stop = _Counts(), time.monotonic() + seconds
        threads = [
            threading.Thread(target=_client, args=(port, number, stop, counts))
            for number in range(clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        after = _memory(process)
    job, upload, question = (
        np.quantile(times or [np.nan], (0.5, 0.95, 0.99)).round(3).tolist()
        for times in (counts.jobs, counts.uploads, counts.questions)
    )
    return LoadRow(
        clients=clients,
        workers=workers,
        seconds=seconds,
        rows=ROWS,
        columns=COLUMNS,
        accepted=counts.accepted,
        done=counts.done,
        failed=counts.failed,
        refused=counts.refused,
        server_errors=counts.server_errors,
        job_p50=job[0],
        job_p95=job[1],
        job_p99=job[2],
        upload_p50=upload[0],
        upload_p99=upload[2],
        status_p50=question[0],
        status_p99=question[2],
        service_mb_before=before[0],
        service_mb_after=after[0],
        workers_mb_before=before[1],
        workers_mb_after=after[1],
        device=device_name(torch.device("cpu")),
        versions=versions(),
        commit=commit(),
    )


@contextmanager
def _service(folder: Path, workers: int) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """`mdtim serve` on a free port, with a model to name."""
    (folder / "models").mkdir()
    (folder / "table.csv").write_bytes(_csv(0))
    table, model = folder / "table.csv", folder / "models" / MODEL
    fit = ("fit", str(table), "-o", str(model), *FIT)
    subprocess.run([sys.executable, "-m", "mdtim", *fit], check=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {
        "port": port,
        "workers": workers,
        "models": folder / "models",
        "folder": folder / "s",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    process = subprocess.Popen([sys.executable, "-m", "mdtim", "serve", *words])
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _is_up(port):
            assert process.poll() is None, "the service ended at its start"
            assert time.monotonic() < deadline, "the service did not start"
            time.sleep(0.2)
        yield port, process
    finally:
        process.terminate()
        process.wait(timeout=60)


def _client(port: int, number: int, stop: float, counts: _Counts) -> None:
    body = _csv(number)
    while time.monotonic() < stop:
        _job(port, body, counts)


def _job(port: int, body: bytes, counts: _Counts) -> None:
    """Upload, wait, download, delete; a refusal is waited out."""
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
            _upload_and_follow(connection, body, counts)
    except (OSError, http.client.HTTPException):
        counts.add("server_errors")


def _upload_and_follow(
    connection: http.client.HTTPConnection, body: bytes, counts: _Counts
) -> None:
    began = time.monotonic()
    connection.request("POST", f"/v1/jobs?model={MODEL}", body, {"Content-Type": "text/csv"})
    answer = connection.getresponse()
    content = answer.read()
    if answer.status == 429:
        counts.add("refused")
        time.sleep(int(answer.headers["Retry-After"]))
        return
    if answer.status != 202:
        counts.add("server_errors" if answer.status >= 500 else "failed")
        return
    counts.add("accepted")
    counts.uploads.append(time.monotonic() - began)
    job, state = json.loads(content)["id"], "queued"
    while state in ("queued", "running"):
        time.sleep(POLL_SECONDS)
        asked = time.monotonic()
        state = json.loads(_get(connection, f"/v1/jobs/{job}"))["state"]
        counts.questions.append(time.monotonic() - asked)
    if state != "done":
        counts.add("failed")
        return
    result = _get(connection, f"/v1/jobs/{job}/result?format=csv").decode()
    if result.count("\n") != ROWS + 1 or re.search(r",(,|\n)", result):
        counts.add("failed")  # cut short, or with missing cells
        return
    counts.jobs.append(time.monotonic() - began)
    counts.add("done")
    connection.request("DELETE", f"/v1/jobs/{job}")
    connection.getresponse().read()


def _get(connection: http.client.HTTPConnection, path: str) -> bytes:
    connection.request("GET", path)
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200:
        raise http.client.HTTPException(f"{path} answered {answer.status}")
    return content


def _is_up(port: int) -> bool:
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
            _get(connection, "/healthz")
    except OSError:
        return False
    return True


def _memory(process: subprocess.Popen[bytes]) -> tuple[float, float]:
    """Megabytes of the service and of its workers together."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
    children = [int(child) for path in tasks for child in path.read_text().split()]
    return _resident(process.pid), round(sum(map(_resident, children)), 1)


def _resident(pid: int) -> float:
    kilobytes = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return 0.0 if kilobytes is None else round(int(kilobytes[1]) / 1000, 1)


def _values(seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    steps = np.arange(ROWS)[:, None]
    waves = np.sin(steps * 2 * np.pi / 24 + generator.uniform(0, 6, COLUMNS))
    values = waves + generator.normal(scale=0.1, size=waves.shape)
    values[generator.random(values.shape) < SHARE_MISSING] = np.nan
    return np.asarray(values)


def _names() -> list[str]:
    return [f"c{number}" for number in range(COLUMNS)]


def _csv(seed: int) -> bytes:
    lines = [",".join("" if np.isnan(v) else f"{v:.6f}" for v in row) for row in _values(seed)]
    return "\n".join([",".join(_names()), *lines, ""]).encode()
