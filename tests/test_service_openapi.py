"""What the OpenAPI document says, tried with all kinds of requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from mdtim.service.settings import Limits
from service_cases import STUB, ended, running, send, stub_settings


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    service = stub_settings(
        tmp_path_factory.mktemp("jobs"),
        worker_command=(*STUB, "real-reader"),
        queue_length=50,
        limits=Limits(rows=1_000),
    )
    with running(service) as client:
        yield client


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_request_makes_the_service_fail_or_answer_what_it_did_not_promise(
    client: httpx.Client, mode: GenerationMode
) -> None:
    schema = schemathesis.openapi.from_url(f"{client.base_url}/openapi.json")
    tried = 0
    for operation in schema.get_all_operations():

        @settings(max_examples=10, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(case=operation.ok().as_strategy(mode))
        def ask(case: schemathesis.Case) -> None:
            nonlocal tried
            tried += 1
            case.call_and_validate(checks=CHECKS)

        with suppress(Unsatisfiable):  # nothing can be wrong with a call that takes nothing
            ask()
    assert tried > 50


def test_the_document_shows_what_a_finished_job_answers(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    job = send(client, "a\n1\n\n3\n").json()["id"]
    assert ended(client, job)["state"] == "done"
    for path, calls in paths.items():
        for method, call in calls.items():
            if method == "get" and "{id}" in path:
                answer = client.get(path.replace("{id}", job))
                assert answer.status_code == 200
                kind = answer.headers["Content-Type"].partition(";")[0]
                assert kind in call["responses"]["200"]["content"]


def test_every_call_is_described_with_an_error_model(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    for calls in document["paths"].values():
        for call in calls.values():
            assert call["summary"]
            assert call["description"]
            errors = [code for code in call["responses"] if code >= "400"]
            assert errors
            for code in errors:
                body = call["responses"][code]["content"]["application/json"]["schema"]
                assert body == {"$ref": "#/components/schemas/ErrorBody"}
