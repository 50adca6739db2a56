"""Who may ask, how much may be sent, and what a browser is told."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from mdtim.service.app import create_app
from mdtim.service.settings import Limits, ServiceSettings
from service_cases import running, send, stub_settings

TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    settings = stub_settings(
        tmp_path_factory.mktemp("jobs"), token=TOKEN, limits=Limits(upload_bytes=10_000)
    )
    with TestClient(create_app(settings), base_url="http://localhost:8000") as client:
        yield client


def allowed(**headers: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKEN}", **headers}


@pytest.mark.parametrize("given", [None, "", TOKEN, f"Bearer {TOKEN}x", "Bearer ", "Basic abc"])
def test_calls_without_the_token_are_refused(client: TestClient, given: str | None) -> None:
    headers = {} if given is None else {"Authorization": given}
    for path in ("/v1/models", "/v1/jobs/" + "x" * 22, "/metrics", "/v1/example", "/v1/nothing"):
        answer = client.get(path, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert TOKEN not in answer.text


def test_the_token_opens_and_the_page_and_the_pulse_need_none(client: TestClient) -> None:
    assert client.get("/v1/models", headers=allowed()).json() == []
    assert "mdtim_requests_total" in client.get("/metrics", headers=allowed()).text
    for path in ("/", "/static/app.js", "/healthz"):
        assert client.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/", "/healthz", "/v1/models", "/static/style.css", "/nowhere"])
def test_every_answer_tells_browsers_to_be_careful_and_sets_no_cookie(
    client: TestClient, path: str
) -> None:
    headers = client.get(path).headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "Set-Cookie" not in headers


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "10.0.0.1", "[::", ""])
def test_a_service_on_loopback_answers_to_no_other_name(client: TestClient, host: str) -> None:
    assert client.get("/healthz", headers={"Host": host}).status_code == 400


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:9999"])
def test_pages_of_other_sites_are_refused(client: TestClient, origin: str) -> None:
    assert client.get("/v1/models", headers=allowed(Origin=origin)).status_code == 403


def test_the_own_page_may_ask(client: TestClient) -> None:
    answer = client.get("/v1/models", headers=allowed(Origin="http://localhost:8000"))
    assert answer.status_code == 200


def test_methods_of_a_callers_own_do_not_fill_the_metrics(client: TestClient) -> None:
    for number in range(5):
        assert client.request(f"X{number}", "/healthz").status_code == 405
    text = client.get("/metrics", headers=allowed()).text
    assert 'method="other",route="/healthz",status="405"} 5.0' in text
    assert "X1" not in text


def test_a_fault_of_ours_is_a_sentence_too_and_as_careful(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("secret")

    monkeypatch.setattr("mdtim.service.api.example_csv", fail)
    with running(stub_settings(tmp_path)) as client:
        answer = client.get("/v1/example")
        assert answer.status_code == 500
        assert "a fault inside the service" in answer.json()["detail"]
        assert "secret" not in answer.text
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert 'route="/v1/example",status="500"' in client.get("/metrics").text


@pytest.mark.parametrize("text", ["{", "[1]", '{"kind": "run"}', "\udcff"])
def test_what_is_no_model_is_not_listed_and_hides_no_other(tmp_path: Path, text: str) -> None:
    for name, content in (("bad", text), ("good", '{"kind": "imputer", "window": 24}')):
        (tmp_path / "models" / name).mkdir(parents=True)
        path = tmp_path / "models" / name / "config.json"
        path.write_bytes(content.encode(errors="surrogateescape"))
    settings = stub_settings(tmp_path / "jobs", models=tmp_path / "models")
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        assert [model["name"] for model in client.get("/v1/models").json()] == ["good"]


def test_a_service_for_a_network_answers_to_any_name(tmp_path: Path) -> None:
    app = create_app(stub_settings(tmp_path, host="0.0.0.0"))
    with TestClient(app, base_url="http://tables.example") as client:
        assert client.get("/healthz").status_code == 200


def test_a_large_body_is_refused_whether_or_not_it_says_its_length(tmp_path: Path) -> None:
    limits = Limits(upload_bytes=10_000)
    with running(stub_settings(tmp_path, limits=limits)) as client:
        body = b"ok " * 5_000
        form = client.post("/v1/jobs", files={"file": ("a.csv", body)})
        told = send(client, body)
        untold = client.post(
            "/v1/jobs", content=iter([body] * 3), headers={"Content-Type": "text/csv"}
        )
        for answer in (form, told, untold):
            assert answer.status_code == 413
            assert "larger than 10,000 bytes" in answer.json()["detail"]
        assert send(client, "ok").status_code == 202
    assert len(list(tmp_path.glob("[!.]*"))) == 1


def test_a_body_that_takes_too_long_is_refused(tmp_path: Path) -> None:
    with running(stub_settings(tmp_path, limits=Limits(upload_seconds=0.2))) as client:
        # The rest of it never comes: only the limit can end this, however slow the machine.
        sender = http.client.HTTPConnection("127.0.0.1", client.base_url.port, timeout=60)
        try:
            sender.putrequest("POST", "/v1/jobs")
            sender.putheader("Content-Type", "text/csv")
            sender.putheader("Content-Length", "4")
            sender.endheaders(b"ok")
            assert sender.getresponse().status == 408
        finally:
            sender.close()


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"other": ("a.csv", b"ok")}, 422),
        ({"file": ("a.zip", b"ok")}, 415),
        ({"file": ("", b"ok")}, 422),
    ],
)
def test_a_form_without_a_table_gets_a_sentence(
    client: TestClient, files: dict[str, tuple[str, bytes]], code: int
) -> None:
    answer = client.post("/v1/jobs", files=files, headers=allowed())
    assert answer.status_code == code
    assert isinstance(answer.json()["detail"], str)


def test_another_kind_of_body_gets_a_sentence(client: TestClient) -> None:
    answer = client.post("/v1/jobs", content=b"ok", headers=allowed())
    assert answer.status_code == 415
    assert "text/csv" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"quantiles": 1.5}, "quantiles"),
        ({"seed": -1}, "seed"),
        ({"nonsense": 1}, "nonsense"),
        ({"model": "../secret"}, "model"),
        ({"max_minutes": 0, "adapt": True}, "max_minutes"),
        ({"max_minutes": 2}, "add adapt=true"),
        ({"max_minutes": 99, "adapt": True}, "at most 15"),
        ({"adapt": "maybe"}, "adapt"),
        ({"adapt": True, "model": "pumps"}, "leave out adapt"),
        ({"seed": 1, "model": "pumps"}, "leave out seed"),
    ],
)
def test_wrong_choices_get_a_sentence_that_names_them(
    client: TestClient, choices: dict[str, object], sentence: str
) -> None:
    answer = client.post(
        "/v1/jobs", content="ok", params=choices, headers=allowed(**{"Content-Type": "text/csv"})
    )
    assert answer.status_code == 422
    assert sentence in answer.json()["detail"]


@pytest.mark.parametrize("id", ["..", "a", "x" * 23, "../../etc/passwd", "%2e%2e%2fjobs", "é" * 22])
def test_an_id_that_is_none_never_reaches_the_disk(client: TestClient, id: str) -> None:
    for path in ("", "/result", "/report", "/chart"):
        answer = client.get(f"/v1/jobs/{id}{path}", headers=allowed())
        assert answer.status_code in (404, 405, 422)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"workers": 0}, "workers"),
        ({"queue_length": 0}, "queue_length"),
        ({"keep_hours": 0}, "keep_hours"),
        ({"token": "short"}, "16 characters"),
        ({"models": Path("/nowhere/at/all")}, "no folder"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    changes: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=sentence):
        ServiceSettings(folder=tmp_path, **changes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rows must be above 0"):
        Limits(rows=0)
