"""What the library says, in the words of those who ask: programs, or people on the page.

The library names its options as Python does: `id='station'`, `inf_as_missing=True`. A program has
query parameters in their place, and a person on the page fields with labels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

Wording = Callable[[str], str]
WORDING_HEADER = "X-Mdtim-Wording"
"""By its value "page" the page asks for messages that speak of its fields."""
MAX_NOTES_BYTES = 2_000
"""Of the notes in a header: proxies refuse answers whose headers exceed 4 KiB."""
_MAX_NOTE = 600
LABELS = {
    "time": "Time column",
    "id": "Series column",
    "freq": "Sampling period",
    "columns": "Columns",
    "missing_values": "Missing values",
    "inf_as_missing": "Infinite cells are missing",
    "quantiles": "Quantiles",
    "adapt": "Adapt to this table first",
    "max_minutes": "Minutes at most",
}
"""What the page calls a parameter."""

_QUOTED = r"""(?P<value>'[^']*'|"[^"]*")"""
_PHRASES = tuple(
    (re.compile(pattern), for_program, for_person)
    for pattern, for_program, for_person in (
        (
            rf"pass (?P<option>time|id)={_QUOTED}",
            "pass {value} as the parameter {option}",
            "choose {value} as “{label}”",
        ),
        (
            r"with (?P<option>time|id)=\.\.\.",
            "with the parameter {option}",
            "under “{label}”",
        ),
        (
            r"pass (?P<option>inf_as_missing)=True\b",
            "pass {option}=true",
            "tick “{label}”",
        ),
        (
            r"pass (?P<option>missing_values)=\[(?P<value>[^]]*)\] \(--missing-values \S+\)",
            "pass {value} as the parameter {option}",
            "enter {value} under “{label}”",
        ),
        (
            r"train on this table \((?P<option>adapt)=True\)",
            "train on this table ({option}=true)",
            "tick “{label}”",
        ),
        (rf"\b(?P<option>freq)={_QUOTED}", "{option} {value}", "the sampling period {value}"),
        (r"^(?P<option>freq) was given", "{option} was given", "a sampling period was given"),
        (r"\bor give (?P<option>freq)$", "or give the parameter {option}", "or fill in “{label}”"),
        (
            r"\bgive (?P<value>the|a coarser) (?P<option>freq)\b",
            "give {value} {option}",
            "give {value} sampling period",
        ),
        (r"^(?P<option>max_minutes) is\b", "{option} is", "“{label}” is"),
        (
            r"\bname the columns to fill$",
            "name the columns to fill",
            "choose other columns to fill",
        ),
        (rf"(?<=\bfor )(?P<option>{'|'.join(LABELS)})(?=, got )", "{option}", "“{label}”"),
    )
)
"""What the library or the service says, what a program is told, and what a person is told."""
_DATE = re.compile(r"(?<=is taken as )%.*?(?=\. Write dates)")
_SIGNS = {
    **{"%Y": "YYYY", "%y": "YY", "%m": "MM", "%d": "DD", "%b": "Mon", "%B": "Month"},
    **{"%H": "hh", "%I": "hh", "%M": "mm", "%S": "ss", "%f": "ffffff", "%p": "AM/PM"},
}


def wording(asked: str | None) -> Wording:
    """The words for a caller who sent this value of the header."""
    return for_person if asked == "page" else for_program


def for_program(sentence: str) -> str:
    """Say a sentence to a caller of REST.

    Examples
    --------
    >>> for_program("if the table holds several series, pass id='station'")
    "if the table holds several series, pass 'station' as the parameter id"
    """
    for pattern, said, _ in _PHRASES:
        sentence = _say(pattern, said, sentence)
    return _without_signs(sentence)


def for_person(sentence: str) -> str:
    """Say a sentence to somebody in front of the page.

    Examples
    --------
    >>> for_person("if the table holds several series, pass id='station'")
    "if the table holds several series, choose 'station' as “Series column”"
    """
    for pattern, _, said in _PHRASES:
        sentence = _say(pattern, said, sentence)
    return _without_signs(sentence)


def _say(pattern: re.Pattern[str], said: str, sentence: str) -> str:
    def words(found: re.Match[str]) -> str:
        groups = found.groupdict()
        return said.format(**groups, label=LABELS.get(groups.get("option", ""), ""))

    return pattern.sub(words, sentence)


def _without_signs(sentence: str) -> str:
    """DD.MM.YYYY in place of %d.%m.%Y."""
    return _DATE.sub(
        lambda date: re.sub(r"%\w", lambda sign: _SIGNS.get(sign[0], sign[0]), date[0]), sentence
    )


def notes_header(notes: Sequence[str]) -> str:
    r"""Notes as the value of a header: a JSON list in ASCII, and at its end how many did not fit.

    Examples
    --------
    >>> notes_header(["column 'Zähler' is not numeric"])
    '["column \'Z\\u00e4hler\' is not numeric"]'
    """
    told = [note if len(note) <= _MAX_NOTE else f"{note[: _MAX_NOTE - 1]}…" for note in notes]
    left: list[str] = []
    while len(text := json.dumps([*told, *left]).replace("\x7f", "\\u007f")) > MAX_NOTES_BYTES:
        told.pop()
        left = [f"{len(notes) - len(told)} more; JSON and jobs tell all of them"]
    return text
