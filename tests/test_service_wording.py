"""What the service says: in the words of its parameters, or in those of the page's fields."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from mdtim import doubts
from mdtim.learning.fitting import FitReport
from mdtim.service.app import STATIC, create_app
from mdtim.service.protocol import Failed, Task
from mdtim.service.refusals import EXPECTED
from mdtim.service.schemas import FillChoices, ImputeChoices
from mdtim.service.settings import Limits
from mdtim.service.wording import (
    LABELS,
    MAX_NOTES_BYTES,
    for_person,
    for_program,
    notes_header,
    wording,
)
from mdtim.service.worker import perform
from service_cases import stub_settings


def told(text: str, folder: Path, **choices: Any) -> str:
    """Everything that the library says of a table, in its own words."""
    source = folder / "input.csv"
    source.write_text(text)
    task = Task(
        kind="check",
        source=source,
        choices=FillChoices(**choices),
        limits=Limits(),
        imputer={},
        formats=(),
        with_pictures=False,
    )
    answer = perform(task, lambda message: None)
    return answer.sentence if isinstance(answer, Failed) else "\n".join(answer.notes)


DAYS = [f"2024-01-0{day}" for day in range(1, 10)]
TWICE = "\n".join([*DAYS, *DAYS])
UNEVEN = "day,a\n2024-01-01,1\n2024-01-02,\n2024-01-03 05:00:01,2\n2024-01-09,4\n"


@pytest.mark.parametrize(
    ("text", "choices", "for_a_program", "for_a_person"),
    [
        (
            "day,place,a\n" + "\n".join(f"{day},{p},1" for p in "ns" for day in DAYS),
            {},
            "pass 'place' as the parameter id",
            "choose 'place' as “Series column”",
        ),
        (
            "day,a\n" + "".join(f"{day},1\n" for day in TWICE.split()),
            {},
            "tells the series apart with the parameter id, or drop",
            "tells the series apart under “Series column”, or drop",
        ),
        (
            "x,y,a\n" + "".join(f"{day},{day},1\n" for day in DAYS),
            {},
            "orders the rows with the parameter time",
            "orders the rows under “Time column”",
        ),
        (
            "t,a\n" + "".join(f"{1_700_000_000 + 60 * n},{n}\n" for n in range(9)),
            {},
            "pass 't' as the parameter time if",
            "choose 't' as “Time column” if",
        ),
        ("a\n1\ninf\n3\n", {}, "pass inf_as_missing=true", "tick “Infinite cells are missing”"),
        (
            "a\n" + "".join(f"{n}\n-999\n" for n in range(1, 40)),
            {},
            "pass -999 as the parameter missing_values",
            "enter -999 under “Missing values”",
        ),
        (
            "a\n1\n2\n",
            {"freq": "h"},
            "freq was given, but the table has no time; name the time column with the parameter",
            "a sampling period was given, but the table has no time; name the time column under",
        ),
        (UNEVEN, {"freq": "moon"}, "freq 'moon' is not", "the sampling period 'moon' is not"),
        (UNEVEN, {"freq": "h"}, "give the freq of", "give the sampling period of"),
        (UNEVEN, {}, "or give the parameter freq", "or fill in “Sampling period”"),
        (
            "day,a\n" + "".join(f"0{month}/02/2024,1\n" for month in (1, 3, 5, 6)),
            {},
            "is taken as MM/DD/YYYY. Write",
            "is taken as MM/DD/YYYY. Write",
        ),
        (
            "a,b\n1,1\nx,2\n3,3\n",
            {},
            "or name the columns to fill",
            "or choose other columns to fill",
        ),
    ],
)
def test_options_are_called_as_the_reader_knows_them(
    text: str, choices: dict[str, Any], for_a_program: str, for_a_person: str, tmp_path: Path
) -> None:
    said = told(text, tmp_path, **choices)
    assert for_a_program in for_program(said)
    assert for_a_person in for_person(said)
    for words in (for_program(said), for_person(said)):
        assert not re.search(r"=True|=\.\.\.|--|\b(id|time|freq)='|%[a-zA-Z]", words)


def test_the_advice_to_train_names_the_choice_that_does() -> None:
    fit = FitReport("no longer improving", 0, 0, 1.0, 10, 0.5, 0.4, 0.1, 0.9, False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        doubts.of_the_fit(fit)
    (said,) = (str(warning.message) for warning in caught)
    assert "train on this table (adapt=true), give" in for_program(said)
    assert "tick “Adapt to this table first”, give" in for_person(said)


def test_the_fields_are_called_as_they_are_on_the_page() -> None:
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    found = re.findall(r"<(label|legend)[^>]*>(?:<input[^>]*>)?\s*([^<]+?)\s*</\1>", page)
    assert set(LABELS.values()) <= {text for _, text in found}


def test_only_the_page_is_told_of_its_fields() -> None:
    assert wording("page") is for_person
    assert wording(None) is wording("other") is for_program


# -- parameters that cannot be followed -----------------------------------------------------


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    settings = stub_settings(tmp_path_factory.mktemp("jobs"))
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        yield client


def test_every_parameter_says_what_it_takes() -> None:
    assert set(EXPECTED) == set(ImputeChoices.model_fields)


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        (
            {"quantiles": "1.5"},
            "expected at most 9 numbers between 0 and 1, such as 0.05, for {quantiles}, got '1.5'",
        ),
        (
            {"quantiles": ["0.5"] * 10},
            (
                "expected at most 9 numbers between 0 and 1, such as 0.05, for {quantiles}, "
                "got 10 of them"
            ),
        ),
        (
            {"quantiles": ["2", "3"], "max_minutes": "soon"},
            (
                "expected at most 9 numbers between 0 and 1, such as 0.05, for {quantiles}, "
                "got '2'; "
                "expected at most 9 numbers between 0 and 1, such as 0.05, for {quantiles}, "
                "got '3'; "
                "expected a number above 0 for {max_minutes}, got 'soon'"
            ),
        ),
        (
            {"missing_values": "none"},
            "expected at most 20 numbers such as -999 for {missing_values}, got 'none'",
        ),
        (
            {"freq": "h" * 50},
            f"expected a sampling period such as h or 10min for {{freq}}, got '{'h' * 39}…'",
        ),
        (
            {"time": ""},
            "expected the name of a column, of at most 500 characters, for {time}, got ''",
        ),
        (
            {"max_minutes": "99", "adapt": "true"},
            "{max_minutes} is 99, this service allows at most 15",
        ),
        ({"seed": "2147483648"}, "expected a whole number from 0 to 2147483647 for seed, got "),
        ({"quantile": "0.5"}, "there is no parameter 'quantile' here; did you mean 'quantiles'?"),
        ({"format": "csv"}, "there is no parameter 'format' here; /openapi.json lists those that "),
    ],
)
def test_a_refusal_is_one_sentence_of_what_was_expected_and_found(
    client: TestClient, choices: dict[str, Any], sentence: str
) -> None:
    def refused(**headers: str) -> str:
        headers["Content-Type"] = "text/csv"
        answer = client.post("/v1/jobs", content="ok", params=choices, headers=headers)
        assert answer.status_code == 422
        return str(answer.json()["detail"])

    assert refused().startswith(sentence.format_map({name: name for name in EXPECTED}))
    labels = {name: f"“{label}”" for name, label in LABELS.items()}
    page = refused(**{"X-Mdtim-Wording": "page"})
    assert page.startswith(sentence.format_map(labels))


@pytest.mark.parametrize("id", ["a", "x" * 22])
def test_an_id_that_no_job_has_is_not_found_whatever_it_looks_like(
    client: TestClient, id: str
) -> None:
    answer = client.get(f"/v1/jobs/{id}")
    assert answer.status_code == 404
    assert "may have expired" in answer.json()["detail"]


# -- notes in a header ----------------------------------------------------------------------


def test_notes_in_a_header_are_a_list_in_ascii() -> None:
    notes = ["Zähler: 100 °C", 'a "quote"\nand a new line', "\x7f"]
    header = notes_header(notes)
    assert re.fullmatch("[ -~]*", header)
    assert json.loads(header) == notes


def test_notes_that_do_not_fit_in_a_header_are_counted() -> None:
    assert json.loads(notes_header(["x" * 601])) == ["x" * 599 + "…"]
    header = notes_header([f"{number:03} " + "ü" * 50 for number in range(90)])
    assert len(header) <= MAX_NOTES_BYTES
    *kept, rest = json.loads(header)
    assert [note[:3] for note in kept] == [f"{number:03}" for number in range(len(kept))]
    assert rest == f"{90 - len(kept)} more; JSON and jobs tell all of them"
    assert len(notes_header(["漢" * 1_000])) <= MAX_NOTES_BYTES
