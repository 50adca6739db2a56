"""The queue, its workers and what is kept: with workers that only pretend."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from mdtim.service import process
from mdtim.service.app import create_app
from mdtim.service.jobs import Job, JobQueue
from mdtim.service.process import WorkerProcess
from mdtim.service.protocol import Progress, Ready
from mdtim.service.schemas import FillChoices
from mdtim.service.settings import Limits
from mdtim.service.store import JobRecord, JobStore, now
from service_cases import ended, running, send, stub_settings, wait_until


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    settings = stub_settings(tmp_path / "jobs", workers=2, queue_length=2)
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        yield client


def queue_of(client: TestClient) -> JobQueue:
    queue: JobQueue = client.app.state.service.queue  # type: ignore[attr-defined]
    return queue


def is_running(client: TestClient, job: str) -> bool:
    return bool(client.get(f"/v1/jobs/{job}").json()["text"] == "half way")


def test_a_killed_worker_fails_its_own_job_with_a_sentence_and_no_other(client: TestClient) -> None:
    victim = send(client, "sleep 60").json()["id"]
    wait_until(lambda: is_running(client, victim))
    bystander = send(client, "sleep 0.5").json()["id"]
    wait_until(lambda: is_running(client, bystander))
    worker = queue_of(client)._jobs[victim].worker
    assert worker is not None
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    failed = ended(client, victim)
    assert failed["state"] == "failed"
    assert "ended unexpectedly (signal SIGKILL" in failed["message"]
    assert ended(client, bystander)["state"] == "done"
    for _ in range(2):  # both workers take jobs again
        assert ended(client, send(client, "ok").json()["id"])["state"] == "done"
    assert client.get(f"/v1/jobs/{victim}/result").status_code == 409


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ("die", "SIGKILL"),
        ("quit", "exit code 3"),
        ("babble", "unexpectedly"),
        ("ramble", "unexpectedly"),
    ],
)
def test_a_worker_that_ends_or_babbles_gives_the_caller_a_sentence(
    client: TestClient, table: str, sentence: str
) -> None:
    answer = send(client, table, "/v1/impute")
    assert answer.status_code == 500
    assert sentence in answer.json()["detail"]
    assert send(client, "ok", "/v1/impute").text == "filled"


def test_a_fault_of_ours_fails_its_job_and_the_worker_goes_on(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkerProcess, "perform", None)
    jobs = [JobRecord.new(folder_with_table(client), FillChoices()) for _ in range(3)]
    queue = queue_of(client)
    assert client.portal is not None
    for job in jobs:
        client.portal.call(queue.submit, job)
    for job in jobs:
        status = ended(client, job.id)
        assert status["state"] == "failed"
        assert "a fault inside the service" in status["message"]
    monkeypatch.undo()
    assert ended(client, send(client, "ok").json()["id"])["state"] == "done"


def folder_with_table(client: TestClient) -> Path:
    source = queue_of(client)._store.new_folder() / "input.csv"
    source.write_text("ok")
    return source


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_workers_end_with_a_service_that_was_killed(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "hold = 'import time, sys; from mdtim.service import worker; "
        "worker.watch_parent(0.1); print(1, flush=True); time.sleep(60)'\n"
        "worker = subprocess.Popen([sys.executable, '-c', hold], stdout=subprocess.PIPE)\n"
        "worker.stdout.readline()\n"
        "print(worker.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    service = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert service.stdout is not None
    worker = int(service.stdout.readline())
    assert is_alive(worker)
    service.kill()
    service.communicate()
    wait_until(lambda: not is_alive(worker), 20)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_full_queue_says_when_to_come_again(client: TestClient) -> None:
    jobs = [send(client, "sleep 60").json()["id"] for _ in range(2)]
    for job in jobs:
        wait_until(lambda job=job: is_running(client, job))
    jobs += [send(client, "sleep 60").json()["id"] for _ in range(2)]
    assert [client.get(f"/v1/jobs/{job}").json()["ahead"] for job in jobs] == [0, 0, 0, 1]
    for path in ("/v1/jobs", "/v1/impute", "/v1/preview"):
        refused = send(client, "ok", path)
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 1
        assert "full" in refused.json()["detail"]
    assert client.delete(f"/v1/jobs/{jobs[2]}").status_code == 204
    assert send(client, "ok").status_code == 202


def test_progress_comes_with_an_estimate_of_the_time_left(client: TestClient) -> None:
    job = send(client, "sleep 60").json()["id"]
    wait_until(lambda: is_running(client, job))
    status = client.get(f"/v1/jobs/{job}").json()
    assert status["share"] == 0.5
    assert 0 <= status["seconds_left"] < 30


def test_the_time_left_follows_the_pace_of_the_present_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    # The module's own clock: servers of other tests sleep by the real one.
    monkeypatch.setattr("mdtim.service.jobs.time", SimpleNamespace(monotonic=lambda: clock[0]))
    job = Job(JobRecord.new(Path("x" * 22, "input.csv"), FillChoices()), keep_seconds=1)
    job.record.state = "running"
    for clock[0], since, share, left in (
        (0.0, 0.0, 0.0, None),
        (1.0, 0.3, 0.3, None),  # a quick look at the table says nothing about the fill
        (11.0, 0.3, 0.4, 60.0),
        (21.0, 0.3, 0.5, 50.0),
        (99.0, 0.95, 0.95, None),
    ):
        job.listen(Progress(share=share, since=since, text="filling"))
        assert job.seconds_left() == left


def test_a_cancelled_job_ends_at_once_and_leaves_nothing(client: TestClient) -> None:
    job = send(client, "sleep 60").json()["id"]
    wait_until(lambda: is_running(client, job))
    assert client.delete(f"/v1/jobs/{job}").status_code == 204
    assert client.get(f"/v1/jobs/{job}").status_code == 404
    assert client.delete(f"/v1/jobs/{job}").status_code == 404
    assert list(queue_of(client)._store.root.glob("[!.]*")) == []
    assert 'mdtim_jobs_total{state="cancelled"} 1.0' in client.get("/metrics").text


def test_a_job_ends_at_its_time_limit(tmp_path: Path) -> None:
    settings = stub_settings(tmp_path, limits=Limits(job_seconds=2))
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        failed = ended(client, send(client, "sleep 60").json()["id"])
        assert "time limit of 2 s" in failed["message"]
        assert ended(client, send(client, "ok").json()["id"])["state"] == "done"


def test_a_worker_that_does_not_start_fails_jobs_with_a_sentence(tmp_path: Path) -> None:
    settings = stub_settings(tmp_path, worker_command=("/nowhere/at/all",))
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        answer = send(client, "ok")
        assert answer.status_code == 500
        assert "did not start" in answer.json()["detail"]
        assert client.get("/healthz").status_code == 200


def test_a_restart_keeps_results_and_fails_what_was_unfinished(tmp_path: Path) -> None:
    settings, jobs = stub_settings(tmp_path), tmp_path / "jobs"
    app = create_app(settings)
    with TestClient(app, base_url="http://localhost") as client:
        done = send(client, "ok").json()["id"]
        before = ended(client, done)
        assert not list((tmp_path / "jobs" / done).glob("input*"))
        unfinished = send(client, "sleep 60").json()["id"]
        wait_until(lambda: is_running(client, unfinished))
        # As a crash of the service would leave it: the record says running.
        shutil.copytree(jobs / unfinished, tmp_path / "copy")
    shutil.rmtree(jobs / unfinished)
    (tmp_path / "copy").rename(jobs / unfinished)
    (jobs / ("x" * 22)).mkdir()
    (jobs / ("y" * 22)).touch()
    (jobs / "of somebody else").mkdir()
    (tmp_path / "my-sensor-archive-2024").mkdir()  # named as a job might be
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        assert client.get(f"/v1/jobs/{done}").json() == before
        assert client.get(f"/v1/jobs/{done}/result?format=parquet").text == "filled"
        assert client.get(f"/v1/jobs/{done}/report").text == "<p>report</p>"
        status = client.get(f"/v1/jobs/{unfinished}").json()
        assert status["state"] == "failed"
        assert "restarted" in status["message"]
    assert {path.name for path in jobs.iterdir()} >= {done, unfinished, "of somebody else"}
    assert not (jobs / ("x" * 22)).exists()
    assert (tmp_path / "my-sensor-archive-2024").exists()


def test_a_stop_leaves_a_sentence_with_what_was_unfinished(tmp_path: Path) -> None:
    with TestClient(create_app(stub_settings(tmp_path)), base_url="http://localhost") as client:
        jobs = [send(client, "sleep 60").json()["id"] for _ in range(2)]
        wait_until(lambda: is_running(client, jobs[0]))
    for job in jobs:
        record = json.loads((tmp_path / "jobs" / job / "job.json").read_text())
        assert record["state"] == "failed"
        assert "stopped" in record["message"]
        assert not list((tmp_path / "jobs" / job).glob("input*"))


def test_results_are_gone_when_they_expire(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mdtim.service.jobs.SWEEP_SECONDS", 0.05)
    with TestClient(
        create_app(stub_settings(queue_of(client)._store.root / "other")),
        base_url="http://localhost",
    ) as other:
        job = send(other, "ok").json()["id"]
        ended(other, job)
        folder = queue_of(other)._store.folder(job)
        assert folder.exists()
        queue_of(other)._jobs[job].record.expires = now() - timedelta(seconds=1)
        assert other.get(f"/v1/jobs/{job}").status_code == 404
        assert folder.exists(), "a download under way must be able to end"
        queue_of(other)._jobs[job].record.expires = now() - timedelta(hours=1)
        wait_until(lambda: not folder.exists())


def test_a_disk_that_failed_for_a_while_leaves_the_queue_as_it_was(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> Path:
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(queue_of(client)._store, "new_folder", full)
        for _ in range(3):  # more than may wait
            assert send(client, "ok").status_code >= 500
    assert ended(client, send(client, "ok").json()["id"])["state"] == "done"


def test_a_job_that_cannot_be_removed_is_not_forgotten(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = send(client, "ok").json()["id"]
    ended(client, job)

    def locked(name: str) -> None:
        raise OSError(16, "busy")

    with monkeypatch.context() as patched:
        patched.setattr(queue_of(client)._store, "remove", locked)
        assert client.delete(f"/v1/jobs/{job}").status_code >= 500
    assert client.delete(f"/v1/jobs/{job}").status_code == 204


def test_two_services_do_not_share_a_folder(client: TestClient) -> None:
    with pytest.raises(ValueError, match="another service uses"):
        create_app(stub_settings(queue_of(client)._store.root.parent))


def test_no_more_results_are_kept_than_allowed(tmp_path: Path) -> None:
    settings = stub_settings(tmp_path, max_kept=1)
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        job = send(client, "ok").json()["id"]
        ended(client, job)
        assert send(client, "ok").status_code == 429
        client.delete(f"/v1/jobs/{job}")
        assert send(client, "ok").status_code == 202


def test_a_disk_that_cannot_be_written_is_admitted_and_stops_no_worker(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = send(client, "sleep 0.3").json()["id"]
    wait_until(lambda: is_running(client, job))

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(JobStore, "save", fail)
    refused = send(client, "ok")
    assert refused.status_code == 507
    assert "disk" in refused.json()["detail"]
    assert ended(client, job)["state"] == "done"
    monkeypatch.undo()
    assert ended(client, send(client, "ok").json()["id"])["state"] == "done"


def test_a_caller_that_goes_away_frees_the_worker(tmp_path: Path) -> None:
    with running(stub_settings(tmp_path)) as client:
        with pytest.raises(httpx.ReadTimeout):
            client.post(
                "/v1/impute",
                content="sleep 60",
                headers={"Content-Type": "text/csv"},
                timeout=httpx.Timeout(10, read=0.5),
            )
        wait_until(lambda: client.get("/healthz").json()["running"] == 0, 20)
        assert send(client, "ok", "/v1/impute").text == "filled"


def test_many_callers_at_once_each_get_an_answer(tmp_path: Path) -> None:
    answers: list[Any] = []
    with running(stub_settings(tmp_path, workers=2, queue_length=4)) as client:

        def ask() -> None:
            answers.append(send(client, "sleep 0.05", "/v1/impute").status_code)

        threads = [threading.Thread(target=ask) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.get("/healthz").json()["queued"] == 0
    assert len(answers) == 20
    assert set(answers) <= {200, 429}
    assert answers.count(200) >= 4
    assert list((tmp_path / "jobs").iterdir()) == []


def test_a_worker_that_leaves_a_process_behind_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it left holds its pipes, for whose end asyncio waits as well."""
    monkeypatch.setattr(process, "END_SECONDS", 0.2)
    ready = Ready().model_dump_json()
    code = f"import subprocess as s; s.Popen(['sleep', '6']); print({ready!r}, flush=True); input()"

    async def stop() -> float:
        worker = WorkerProcess((sys.executable, "-c", code), "fill", Limits(), 1)
        await worker.start()
        began = time.monotonic()
        await worker.stop()
        seconds = time.monotonic() - began
        assert worker.pid is None
        await asyncio.sleep(7)  # until the pipes are closed
        return seconds

    assert asyncio.run(asyncio.wait_for(stop(), 60)) < 4


def test_a_process_whose_end_is_never_told_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process, "END_SECONDS", 0.2)

    class Endless:
        """Killed, but asyncio never learns of it."""

        pid, returncode = 4711, None
        kills = 0

        def kill(self) -> None:
            self.kills += 1

        async def wait(self) -> None:
            await asyncio.sleep(60)

    worker = WorkerProcess((sys.executable,), "fill", Limits(), 1)
    endless: Any = Endless()
    worker._process = endless
    asyncio.run(asyncio.wait_for(worker.stop(), 10))
    assert endless.kills == 1
    assert worker.pid is None, "the next task starts another one"
    assert "4711" in caplog.text
