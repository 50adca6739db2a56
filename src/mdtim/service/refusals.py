"""Parameters that cannot be followed, each in one sentence that says what could be."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from mdtim.service.schemas import MAX_LEVELS, MAX_NAME, MAX_PLACEHOLDERS, ImputeChoices

_NAME = f"the name of a column, of at most {MAX_NAME} characters,"
_TRUTH = "true or false"
EXPECTED = {
    "time": _NAME,
    "id": _NAME,
    "columns": "at most 500 names of columns",
    "freq": "a sampling period such as h or 10min",
    "inf_as_missing": _TRUTH,
    "missing_values": f"at most {MAX_PLACEHOLDERS} numbers such as -999",
    "quantiles": f"at most {MAX_LEVELS} numbers between 0 and 1, such as 0.05,",
    "model": "a name that GET /v1/models lists",
    "seed": "a whole number from 0 to 2147483647",
    "adapt": _TRUTH,
    "max_minutes": "a number above 0",
    "format": "csv, parquet or json",
}
"""What each parameter takes."""
_MAX_SHOWN = 40


def refusal(errors: list[Mapping[str, Any]]) -> str:
    """One sentence of what pydantic found in the parameters of a call."""
    return "; ".join(dict.fromkeys(map(_sentence, errors)))


def _sentence(error: Mapping[str, Any]) -> str:
    _, name, *_ = (*map(str, error["loc"]), "")
    if error["type"] == "extra_forbidden":
        return f"there is no parameter {_shown(name)} here; {_hint(name)}"
    found = error["input"]
    # Of a list that is too long its items are of no interest.
    got = f"{len(found)} of them" if error["type"] == "too_long" else _shown(str(found))
    return f"expected {EXPECTED.get(name, error['msg'])} for {name}, got {got}"


def _hint(name: str) -> str:
    close = get_close_matches(name.lower(), ImputeChoices.model_fields, n=1)
    if close and close[0] != name:
        return f"did you mean {close[0]!r}?"
    return "/openapi.json lists those that there are"


def _shown(said: str) -> str:
    return repr(said if len(said) <= _MAX_SHOWN else f"{said[: _MAX_SHOWN - 1]}…")
