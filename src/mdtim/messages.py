"""What the command line says to people: one sentence for a mistake, a note for a warning."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from rich.console import Console

out, notes = Console(), Console(stderr=True)


@contextmanager
def user_messages() -> Iterator[list[str]]:
    """Turn a user's mistake into one sentence and exit code 2, and warnings into notes.

    Yields
    ------
    list of str : the notes so far
    """
    said: list[str] = []

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) in said:  # a table is read once for the fit and once for the fill
            return
        said.append(str(message))
        notes.print(f"note: {message}", style="yellow", markup=False, highlight=False)

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = show
        try:
            yield said
        except (ValueError, OSError) as error:
            fail(str(error))


def fail(sentence: str) -> NoReturn:
    """Print the sentence on stderr and end with exit code 2."""
    notes.print(f"error: {sentence}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(2)
