"""A table in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table.

    Examples
    --------
    >>> table(["data", "MAE"], [["etth", "0.1"]])
    ['| data | MAE |', '| --- | --- |', '| etth | 0.1 |']
    """
    lines = [header, ["---"] * len(header), *body]
    return [f"| {' | '.join(line)} |" for line in lines]
