"""The service as callers see it: a real server, real workers, and the library's own answers."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mdtim.service.settings import Limits
from mdtim.tables.files import read_frame
from service_cases import Place, csv_of, ended, send, sensors, wait_until

pytestmark = pytest.mark.filterwarnings("ignore::mdtim.doubts.ImputationWarning")


@pytest.fixture(scope="module")
def job(place: Place) -> dict[str, Any]:
    """A job that is done."""
    answer = send(place.client, csv_of(sensors()))
    assert answer.status_code == 202
    status = ended(place.client, answer.json()["id"])
    assert status["state"] == "done", status
    assert answer.headers["Location"] == f"/v1/jobs/{status['id']}"
    return status


def test_a_result_is_the_librarys_answer_byte_for_byte(
    place: Place, job: dict[str, Any], expected: Path
) -> None:
    for form in ("csv", "parquet"):
        answer = place.client.get(f"/v1/jobs/{job['id']}/result", params={"format": form})
        assert answer.content == (expected / f"out.{form}").read_bytes()
        assert answer.headers["Content-Disposition"] == f'attachment; filename="filled.{form}"'
    columns = place.client.get(f"/v1/jobs/{job['id']}/result?format=json").json()["columns"]
    filled = read_frame(expected / "out.csv")
    assert columns == {name: filled[name].tolist() for name in filled.columns}


def test_a_parquet_table_comes_back_with_its_types(place: Place) -> None:
    table = pa.Table.from_pandas(sensors(), preserve_index=False)
    places = pa.array(["a", "b"] * (len(table) // 2) + ["a"] * (len(table) % 2))
    table = table.append_column("place", places.dictionary_encode())
    body = io.BytesIO()
    pq.write_table(table, body)
    answer = place.client.post("/v1/jobs", files={"file": ("a.parquet", body.getvalue())})
    status = ended(place.client, answer.json()["id"])
    assert status["state"] == "done", status
    result = place.client.get(f"/v1/jobs/{status['id']}/result?format=parquet").content
    assert pq.read_schema(io.BytesIO(result)).types == table.schema.types


def test_a_job_says_what_was_done_and_leaves_report_and_chart_but_not_the_table(
    place: Place, job: dict[str, Any]
) -> None:
    missing = int(sensors()[["level", "flow"]].isna().sum().sum())
    assert job["facts"]["missing"] == job["facts"]["filled"] == missing
    assert job["share"] == 1
    report = place.client.get(f"/v1/jobs/{job['id']}/report")
    assert report.headers["Content-Security-Policy"].startswith("sandbox allow-scripts;")
    assert report.text.lstrip().lower().startswith("<!doctype html>")
    chart = place.client.get(f"/v1/jobs/{job['id']}/chart").json()
    assert set(chart["columns"]) == {"level", "flow"}
    files = {path.name for path in (place.settings.folder / "jobs" / job["id"]).iterdir()}
    results = {"result.csv", "result.parquet", "result.json"}
    assert files == results | {"job.json", "report.html", "chart.json"}


def test_what_libraries_print_does_not_get_between_the_messages() -> None:
    code = (
        "import os, sys\n"
        "from mdtim.service import worker\n"
        "worker._serve = lambda _, answers: (os.write(1, b'MKL ERROR'), answers.write('mine'))\n"
        "worker.main(['read', '4000000000', '1000000', '1'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "mine"
    assert "MKL ERROR" in done.stderr


def test_texts_that_a_spreadsheet_would_run_stay_as_they_were(
    place: Place, job: dict[str, Any]
) -> None:
    answer = place.client.get(f"/v1/jobs/{job['id']}/result?format=csv")
    filled = pd.read_csv(io.BytesIO(answer.content))
    pd.testing.assert_frame_equal(filled[["when", "note"]], sensors()[["when", "note"]])


def test_nothing_is_trained_unless_asked_for_and_then_within_the_time(
    place: Place, job: dict[str, Any]
) -> None:
    assert job["facts"]["steps"] == 0
    asked = send(place.client, csv_of(sensors()), adapt=True, max_minutes=0.02)
    texts: set[str] = set()

    def has_ended() -> bool:
        status = place.client.get(f"/v1/jobs/{asked.json()['id']}").json()
        texts.add(status["text"])
        return bool(status["state"] not in ("queued", "running"))

    wait_until(has_ended)
    adapted = ended(place.client, asked.json()["id"])
    assert adapted["state"] == "done", adapted
    assert 0 < adapted["facts"]["steps"] < 400
    assert any(text.startswith("training, step") for text in texts)
    # Each is judged by held-out cells of its own: where nothing is trained, they are more.
    for facts in (job["facts"], adapted["facts"]):
        assert 0 < facts["validation_mae"] < 0.2


def test_infinite_cells_are_refused_or_filled_as_asked(place: Place) -> None:
    frame = sensors()
    frame.loc[7, "flow"] = float("inf")
    refused = send(place.client, csv_of(frame), "/v1/impute")
    assert refused.status_code == 422
    assert "inf_as_missing" in refused.json()["detail"]
    filled = send(place.client, csv_of(frame), "/v1/impute", inf_as_missing=True)
    assert -2 < pd.read_csv(io.BytesIO(filled.content))["flow"][7] < 2


def test_one_call_sends_the_filled_table_with_quantiles(place: Place, expected: Path) -> None:
    answer = place.client.post(
        "/v1/impute",
        files={"file": ("../<img src=x>.csv", csv_of(sensors()))},
        params={"quantiles": [0.05, 0.95]},
    )
    assert answer.content == (expected / "quantiles.csv").read_bytes()
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"


@pytest.mark.parametrize(
    ("encoding", "charset"), [("cp1252", "windows-1252"), ("utf-8-sig", "utf-8"), ("utf-16",) * 2]
)
def test_text_comes_back_in_its_own_style_and_encoding(
    place: Place, expected: Path, encoding: str, charset: str
) -> None:
    text = sensors().rename(columns={"flow": "größe"}).to_csv(index=False, sep=";", decimal=",")
    answer = send(place.client, text.encode(encoding), "/v1/impute")
    assert answer.headers["Content-Type"] == f"text/csv; charset={charset}"
    filled = pd.read_csv(io.BytesIO(answer.content), sep=";", decimal=",", encoding=encoding)
    told = pd.read_csv(expected / "out.csv").rename(columns={"flow": "größe"})
    pd.testing.assert_frame_equal(filled, told)


def test_files_of_a_result_are_called_after_the_one_that_was_sent(place: Place) -> None:
    sent = place.client.post("/v1/jobs", files={"file": ("Zähler.csv", csv_of(sensors()))})
    status = ended(place.client, sent.json()["id"])
    assert (status["name"], status["facts"]["encoding"]) == ("Zähler.csv", "utf-8")
    names = []
    for path in ("result?format=parquet", "report"):
        answer = place.client.get(f"/v1/jobs/{status['id']}/{path}")
        names.append(answer.headers["Content-Disposition"])
    assert names == [
        "attachment; filename*=utf-8''Z%C3%A4hler_filled.parquet",
        "inline; filename*=utf-8''Z%C3%A4hler_report.html",
    ]
    assert "<title>Zähler.csv: filled gaps</title>" in answer.text


def test_notes_come_with_the_table_and_with_the_job(place: Place) -> None:
    frame = sensors().assign(site=["north", "south"] * 60)
    frame["when"] = frame["when"].to_numpy().repeat(2)[: len(frame)]
    answer = send(place.client, csv_of(frame), "/v1/impute", id="site", columns=["flow", "level"])
    assert answer.status_code == 200
    assert "X-Mdtim-Notes" not in answer.headers
    frame["count"] = [f"1,{n:03}.5" for n in range(119)] + [None]
    told = []
    answer = send(place.client, csv_of(frame), "/v1/impute", id="site")
    told.append(json.loads(answer.headers["X-Mdtim-Notes"]))
    answer = send(place.client, csv_of(frame), "/v1/impute", id="site", format="json")
    told.append(answer.json()["notes"])
    told.append(
        ended(place.client, send(place.client, csv_of(frame), id="site").json()["id"])["notes"]
    )
    assert told[0] == told[1] == told[2]
    assert ["count" in note for note in told[0]] == [True]


def test_json_goes_in_and_json_comes_out(place: Place, expected: Path) -> None:
    table = json.loads(sensors().to_json(orient="split", double_precision=15))
    columns = dict(zip(table["columns"], map(list, zip(*table["data"], strict=True)), strict=True))
    answer = place.client.post(
        "/v1/impute", json={"columns": columns}, params={"columns": ["flow"], "time": "when"}
    )
    filled = answer.json()["columns"]
    assert list(filled) == list(columns)
    assert None not in filled["flow"]
    assert filled["level"] == columns["level"]


def test_models_of_the_folder_can_be_named_and_nothing_else(place: Place) -> None:
    listed = place.client.get("/v1/models").json()
    assert [model["name"] for model in listed] == ["pumps"]
    assert listed[0]["variates"] == ["level", "flow"]
    answer = send(place.client, csv_of(sensors()), "/v1/impute", model="pumps", time="when")
    assert answer.status_code == 200
    assert pd.read_csv(io.BytesIO(answer.content)).notna().all().all()
    assert send(place.client, csv_of(sensors()), model="others").status_code == 404
    wrong = csv_of(sensors().rename(columns={"flow": "flux"}))
    refused = send(place.client, wrong, "/v1/impute", model="pumps")
    assert refused.status_code == 422
    assert str(place.settings.models) not in refused.text


@pytest.mark.parametrize(
    ("table", "choices", "sentence"),
    [
        ("a,b\n1,2\n3\n", {}, "cannot be read"),
        ("a,a\n1,2\n", {}, "several columns"),
        ("a\nx\ny\n", {}, "numeric"),
        ("", {}, "empty"),
        ("a\n1\n\n3\n", {"time": "when"}, "when"),
        ("a\n1\n\n3\n", {"columns": "b"}, "b"),
        ("day,a\n2024-01-01,1\n2024-01-03,2\n", {"freq": "fortnight"}, "freq"),
        ("day,a\n1970-01-01,1\n2024-01-03,2\n", {"freq": "ns"}, ""),
    ],
)
def test_a_bad_table_gets_a_sentence_at_once(
    place: Place, table: str, choices: dict[str, str], sentence: str
) -> None:
    for path in ("/v1/jobs", "/v1/impute"):
        answer = send(place.client, table, path, **choices)
        assert answer.status_code in (413, 422)
        assert sentence in answer.json()["detail"]
        assert str(place.settings.folder) not in answer.text


def test_a_small_parquet_that_stands_for_gigabytes_is_refused(place: Place) -> None:
    answer = place.client.post(
        "/v1/jobs", files={"file": ("a.parquet", repeated_text(20_000, as_codes=False))}
    )
    assert answer.status_code == 413
    assert "memory" in answer.json()["detail"]
    assert send(place.client, csv_of(sensors()), "/v1/preview").status_code == 200


def test_a_small_table_whose_result_would_be_huge_fails_with_a_sentence(place: Place) -> None:
    body = repeated_text(200, as_codes=True)
    answer = place.client.post("/v1/impute", files={"file": ("a.parquet", body)})
    assert answer.status_code == 422
    assert "would exceed 10,000,000 bytes" in answer.json()["detail"]


def repeated_text(times: int, *, as_codes: bool) -> bytes:
    """One long text, repeated: neither rows nor bytes of the file say how large it becomes."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * times), ["x" * 1_000_000])
    table = pa.table({"a": [None, 1.0, 2.0, 1.5] * (times // 4), "t": texts})
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd", store_schema=as_codes)
    assert len(file.getvalue()) < 1_000_000
    return file.getvalue()


def test_hostile_names_come_back_as_they_are_and_stay_names(place: Place) -> None:
    name = "<img src=x onerror=alert(1)>"
    frame = sensors().rename(columns={"flow": name})
    found = send(place.client, csv_of(frame), "/v1/preview").json()
    assert found["table"]["map"]["columns"] == ["level", name]
    status = ended(place.client, send(place.client, csv_of(frame)).json()["id"])
    assert status["state"] == "done"
    report = place.client.get(f"/v1/jobs/{status['id']}/report").text
    assert name not in report


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds its workers in /proc")
def test_a_real_worker_killed_at_work_fails_its_job_alone(place: Place) -> None:
    started = send(place.client, csv_of(sensors(4_000)), seed=1).json()["id"]
    wait_until(lambda: place.client.get(f"/v1/jobs/{started}").json()["state"] == "running")
    workers = [pid for pid in children(os.getpid()) if "service.worker fill" in command(pid)]
    assert workers
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    status = ended(place.client, started)
    assert status["state"] == "failed"
    assert "SIGKILL" in status["message"]
    assert "send this one again" in status["message"]
    again = send(place.client, csv_of(sensors()), "/v1/impute")
    assert again.status_code == 200


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in tasks for child in path.read_text().split()]


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def test_numbers_for_prometheus_name_routes_but_no_jobs(place: Place, job: dict[str, Any]) -> None:
    text = place.client.get("/metrics").text
    assert 'route="/v1/jobs/{id}"' in text
    assert job["id"] not in text
    assert "process_resident_memory_bytes" in text
    assert 'mdtim_jobs_total{state="done"}' in text


def test_the_example_can_be_previewed(place: Place) -> None:
    example = place.client.get("/v1/example")
    found = send(place.client, example.content, "/v1/preview").json()
    assert found["problem"] is None
    assert found["time"] is not None
    assert found["table"]["missing"] > 0


def test_without_the_weather_the_example_is_made_up() -> None:
    from mdtim.service.example import _sensors
    from mdtim.service.preview import preview
    from mdtim.service.schemas import TableChoices

    found = preview(_sensors(), TableChoices(), Limits())
    assert found.time == "time"
    assert found.table is not None
    assert 0.02 < found.table.share < 0.3


def test_the_command_says_what_to_install_and_help_stays_light(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['fastapi'] = None\n"
        "from mdtim.cli import app\n"
        "import typer.testing\n"
        "run = lambda *words: typer.testing.CliRunner().invoke(app, list(words))\n"
        "assert run('--help').exit_code == 0\n"
        "assert not {'torch', 'uvicorn', 'pandas', 'pydantic'} & set(sys.modules)\n"
        "import importlib.util as util\n"
        "import mdtim.service.cli as cli\n"
        "cli.find_spec = lambda name: None\n"
        "answer = run('serve')\n"
        "assert answer.exit_code == 2 and 'mdtim[app]' in answer.output, answer.output\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
